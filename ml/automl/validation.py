"""Split rows for training and validation, in the same way for every trial of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.tables import Choices, Table
from ml.serving.scoring.columns import days, read_date
from ml.toolkit.automl.cells import stop

# Row numbers, as 4-byte integers since a search has several such arrays.
Rows = NDArray[Any]
Fold = tuple[Rows, Rows]
# Defaults: "if the dataset is larger than 20,000 rows … 10% is taken", "less than 1,000 rows, 10
# folds", else 3 (how-to-configure-cross-validation-data-splits). Here cross-validation is used up
# to 50,000 rows: with many trials, a holdout of 2,000 rows would select by chance, and three folds
# take no longer than the fits with other seeds that a holdout needs.
SHARE, MANY_ROWS, FEW_ROWS = 0.1, 50_000, 1_000
FOLDS_OF_FEW, FOLDS = 10, 3
# Maximum draws of groups, until both parts have two classes.
DRAWS = 20
_FEWER = "add rows, or ask for fewer folds"
# Minimum training rows for an early stopping split, minimum for a smaller share, and both shares.
FEW_TO_PART, MANY_TO_PART, EARLY_STOPPING, EARLY_STOPPING_OF_MANY = 200, 2_500, 0.2, 0.1


@dataclass(frozen=True)
class Divided:
    """A method to split rows: random, by group, or by time. Arrays have a value per table row."""

    labels: NDArray[Any] | None  # class numbers to stratify by; None for a regression
    length: int
    seed: int
    # Group number of each row, which are not separated; None: not by group.
    groups: NDArray[np.int64] | None = None
    # Time of each row, the latest of which are held out; None: not by time.
    times: NDArray[np.float64] | None = None
    by: str = ""  # name of the group or time column

    def hold_out(self, rows: Rows, share: float) -> Fold:
        """Return (training rows, holdout): a random holdout, whole groups, or the latest rows.

        Ends the program if either part would be empty.
        """
        if self.groups is not None:
            self._demand_groups(rows, 2)
        train, held = self._parted(rows, share)
        if len(train) and len(held):
            return train, held
        if self.times is not None:
            stop("few-times", f"`{self.by}` has too few different times", "several", "add rows")
        stop(
            "too-few-rows",
            f"{share:g} of {len(rows)} rows is less than one row",
            "at least one validation row",
            "add rows",
        )

    def _parted(self, rows: Rows, share: float) -> Fold:
        """Split as `hold_out` does, but return an empty part instead of ending the program."""
        from sklearn.model_selection import GroupShuffleSplit

        if self.times is not None:
            times = np.sort(self.times[rows])
            # Rows with the same time stay together.
            first = times[min(len(times) - 1, int(len(times) * (1 - share)))]
            held = self.times[rows] >= first
        elif self.groups is not None:
            splitter = GroupShuffleSplit(n_splits=DRAWS, test_size=share, random_state=self.seed)
            parts = rows, rows[:0]
            for train, validation in splitter.split(rows, groups=self.groups[rows]):
                parts = rows[train], rows[validation]
                if _have_classes(self.labels, [parts]):
                    break
            return parts
        else:
            labels = np.zeros(len(rows), np.int64) if self.labels is None else self.labels[rows]
            held = _drawn(labels, share, self.seed)
        return rows[~held], rows[held]

    def split_early_stopping(self, rows: Rows) -> Fold:
        """Return (training rows, rows for early stopping).

        The latter are empty if there are few rows, or if groups, times or classes cannot be split.
        """
        nobody = rows[:0]
        if len(rows) < FEW_TO_PART:
            return rows, nobody
        for keys in (self.groups, self.times):
            if keys is not None and len(np.unique(keys[rows])) < 2 / EARLY_STOPPING:
                return rows, nobody
        train, held = self._parted(
            rows, EARLY_STOPPING if len(rows) < MANY_TO_PART else EARLY_STOPPING_OF_MANY
        )
        if not (len(train) and len(held)):
            return rows, nobody
        if self.labels is not None:
            classes = np.unique(self.labels[rows])
            if not np.array_equal(np.unique(self.labels[train]), classes):
                return rows, nobody
        return train, held

    def most(self, rows: Rows) -> int:
        """Return the maximum number of folds: by distinct groups or times, else half the rows."""
        if self.times is not None:
            return len(np.unique(self.times[rows])) - 1
        return len(rows) // 2 if self.groups is None else len(np.unique(self.groups[rows]))

    def folds(self, rows: Rows, count: int, setting: str = "") -> Sequence[Fold]:
        """Return `count` folds; by time, the validation rows are later than the training rows.

        `setting` is the spec's setting with the count, for error messages. Ends the program if
        there are too few groups or times.
        """
        import warnings

        from sklearn import model_selection as cv

        if self.times is not None:
            return [*self._rolling(rows, count, setting)]
        labels = np.zeros(len(rows)) if self.labels is None else self.labels[rows]
        groups, splitters = None, (cv.KFold, cv.StratifiedKFold)
        if self.groups is not None:
            self._demand_groups(rows, count, setting)
            groups, splitters = (
                self.groups[rows],
                (cv.GroupKFold, cv.StratifiedGroupKFold),
            )
        splitter = splitters[self.labels is not None](
            n_splits=count, shuffle=True, random_state=self.seed
        )
        with warnings.catch_warnings():
            # scikit-learn warns of classes with fewer rows than folds, which are accepted here.
            warnings.simplefilter("ignore", UserWarning)
            parts = splitter.split(rows, labels, groups)
            return [(rows[train], rows[validation]) for train, validation in parts]

    def _rolling(self, rows: Rows, count: int, setting: str) -> Iterator[Fold]:
        from sklearn.model_selection import TimeSeriesSplit

        assert self.times is not None
        different, positions = np.unique(self.times[rows], return_inverse=True)
        if len(different) <= count:
            actual = f"`{self.by}` has {len(different)} different times"
            stop("few-times", actual, f"more than {count} for {count} folds{setting}", _FEWER)
        for train, validation in TimeSeriesSplit(n_splits=count).split(different):
            yield (
                rows[positions <= train[-1]],
                rows[(positions >= validation[0]) & (positions <= validation[-1])],
            )

    def _demand_groups(self, rows: Rows, count: int, setting: str = "") -> None:
        assert self.groups is not None
        different = len(np.unique(self.groups[rows]))
        if different < count:
            actual = f"`{self.by}` has {different} different values"
            stop("few-groups", actual, f"{count} or more, one for each fold{setting}", _FEWER)


def _drawn(labels: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask that draws about `share` of each class's rows at random.

    It is written in NumPy, since scikit-learn's stratified split needs more memory.
    """
    order = np.lexsort((np.random.default_rng(seed).random(len(labels)), labels))
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    place = np.arange(len(labels)) - np.repeat(starts, counts)
    held = np.empty(len(labels), dtype=bool)
    held[order] = place < np.round(share * np.repeat(counts, counts))
    return held


def divided(table: Table, labels: NDArray[Any] | None, choices: Choices, seed: int) -> Divided:
    """Return how to split the table's rows; `labels` are class numbers, None for a regression."""
    if choices.group and choices.time:
        actual = f"the folds are split by both `{choices.group}` and `{choices.time}`"
        stop("conflicting-columns", actual, "one of them", "remove one from the job")
    name = choices.group or choices.time
    if not name:
        return Divided(labels, len(table), seed)
    values = table.frame[name]
    if choices.group:
        # Every row without a group becomes a group of its own.
        codes = values.astype("category").cat.codes.to_numpy().astype(np.int64)
        alone = -1 - np.arange(len(table))
        return Divided(labels, len(table), seed, np.where(codes < 0, alone, codes), by=name)
    return Divided(labels, len(table), seed, times=times(table, name), by=name)


def times(table: Table, name: str) -> NDArray[np.float64]:
    """Return a time column as numbers, larger for later rows; end the program if one is missing."""
    numbers = read_times(table, name)
    if not np.isfinite(numbers).all():
        value = table.frame[name].iloc[int(np.argmin(np.isfinite(numbers)))]
        cell = repr(value) if isinstance(value, str) else "missing"
        expected = "2026-01-31, 31/01/2026 or 01/31/2026, with a time or without, or a number"
        stop("not-a-time", f"`{name}` is {cell} in a row", expected, "correct it")
    return numbers


def read_times(table: Table, name: str) -> NDArray[np.float64]:
    """Return a time column as numbers, larger for later rows; NaN if a value is not a time."""
    values = table.frame[name]
    if str(values.dtype) != "category":
        return values.to_numpy(np.float64)
    order = next(column.order for column in table.columns if column.name == name)
    read = [read_date(str(text), order or "iso") for text in values.cat.categories]
    of_texts = np.array([np.nan if time is None else days(time) for time in read] + [np.nan])
    numbers: NDArray[np.float64] = of_texts[values.cat.codes.to_numpy()]
    return numbers


def folds(
    divided: Divided,
    marks: Sequence[NDArray[np.bool_]],
    rows: Rows,
    settings: Mapping[str, Any],
    repeats: int = 1,
) -> tuple[Sequence[Fold], str]:
    """Return the folds of these rows, and a text that describes them.

    The folds come from fold columns (`marks`), or from the validation share or number of folds in
    `settings`. By default, the number depends on the rows, and is lower with few groups or times. A
    classification is stratified. Cross-validation is repeated `repeats` times with other seeds
    (Kohavi 1995), except by time. Ends the program if the rows are too few.
    """
    labels = None if divided.labels is None else divided.labels[rows]
    if marks:
        marked = [(rows[mark[rows]], rows[~mark[rows]]) for mark in marks]
        if any(len(train) == 0 or len(validation) == 0 for train, validation in marked):
            stop(
                "empty-fold",
                "a fold column has one value",
                "1 for training rows and 0 for validation rows",
                "correct it",
            )
        return marked, f"{len(marked)} folds by the columns of `cv_split_column_names`"
    share = settings.get("validation_data_size")
    number = settings.get("n_cross_validations")
    chosen = how = ""
    if divided.by:
        how = f", grouped by {divided.by}"
        how = how if divided.times is None else f", in time order by {divided.by}"
    setting = ""
    if isinstance(number, int):
        share, most, setting = None, number, f" (`n_cross_validations: {number}`)"
        if number > len(rows) // 2:
            what = f"`n_cross_validations: {number}` of {len(rows)} rows"
            stop("few-folds", what, f"at most {len(rows) // 2}: two rows in each fold", _FEWER)
    else:
        chosen = "" if share else f", by the number of rows ({len(rows)})"
        share = share or (SHARE if len(rows) > MANY_ROWS else None)
        most = FOLDS_OF_FEW if len(rows) < FEW_ROWS else FOLDS
    if share:
        fold = divided.hold_out(rows, float(share))
        return [fold], f"{len(fold[1])} rows are held out{chosen}{how}"
    counts = np.array([len(rows)]) if labels is None else np.unique(labels, return_counts=True)[1]
    fewest = int(counts.min())
    count = max(2, min(most, fewest, len(rows) // 2))
    if len(rows) < 4 or (labels is not None and fewest < 2 and len(counts) == 2):
        actual = f"{len(rows)} rows, {fewest} of the rarest class"
        stop("too-few-rows", actual, "two or more rows of each class", "add rows")
    if count != most:
        chosen += f"; {most} would leave folds without the rarest class"
    if divided.by and not setting and divided.most(rows) < count:
        count = max(2, divided.most(rows))
        chosen = f"; {most} need more different values of {divided.by}"
    parts = divided.folds(rows, count, setting)
    while divided.by and not setting and count > 2 and not _have_classes(divided.labels, parts):
        count -= 1
        parts = divided.folds(rows, count)
        chosen = "; more would leave a fold with one class"
    if repeats > 1 and divided.times is None:
        seeds = range(divided.seed + 1, divided.seed + repeats)
        more = [replace(divided, seed=seed).folds(rows, count, setting) for seed in seeds]
        parts, chosen = [*parts, *chain(*more)], f", repeated {repeats} times{chosen}"
    return parts, f"{count} folds{chosen}{how}"


def _have_classes(labels: NDArray[Any] | None, parts: Sequence[Fold]) -> bool:
    """Return whether both parts of each fold have two classes or more; true for a regression."""
    return labels is None or all(
        len(np.unique(labels[rows])) > 1 for fold in parts for rows in fold
    )
