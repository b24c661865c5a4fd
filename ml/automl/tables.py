"""Choose the encoding of each column of a search's table, and record the reasons."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import Kind, read_date
from ml.toolkit.automl.cells import as_texts, is_number, single, stop, written

if TYPE_CHECKING:
    import pandas as pd

# Maximum categories of a column; rarer ones count as unknown (`ml.serving.scoring.columns`).
MOST_CATEGORIES = 1000
# Columns with more categories are target-encoded, unless there are more classes than MOST_MEANS.
MANY_CATEGORIES, MOST_MEANS = 255, 10
# A text column with a larger share of distinct values is treated as names or ids and excluded.
MOST_DIFFERENT = 0.5
# With at least this share of numbers, an excluded text column was probably meant to be numeric.
MOSTLY_NUMBERS = 0.9
# Largest absolute target, so that sums of squared errors do not overflow.
LARGEST_TARGET = 1e150
# Minimum mean words per value of a column with free text.
PROSE = 4
# How `Column.choice` begins for dates and timestamps.
A_TIME = "a time"
Feature = Literal["", "number", "category", "mean", "date", "words"]
# Azure ML's column purpose (how-to-configure-auto-features) → the purpose here.
PURPOSES: Mapping[str, str] = {
    **{"numeric": "numeric", "categorical": "categorical", "categoricalhash": "categorical"},
    **{"text": "words", "datetime": "date", "ignore": "aside"},
}
_OF_TEXTS = ("categorical", "words", "date")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d?([/.])\d\d?\2\d{4}([T ]\d\d?:\d\d.*)?")


@dataclass(frozen=True)
class Column:
    """A column of requests, and its encoding."""

    name: str
    kind: Kind
    choice: str  # text: the encoding and its reason
    feature: Feature = ""  # the encoding; "" for an excluded column
    missing: float = 0.0  # share of missing values, from 0 to 1
    # Format of dates: "iso", "month-first" or "day-first"; "" if the values are no dates.
    order: str = ""
    required: bool = False  # requests without a value in this column are rejected

    @property
    def used(self) -> bool:
        """Whether models use the column."""
        return bool(self.feature)


@dataclass(frozen=True)
class Table:
    """The rows of a search: features, labels, weights and fold columns."""

    frame: pd.DataFrame  # numbers (missing: NaN) and texts (missing: None)
    labels: NDArray[Any]  # class names, or numbers for a regression; `Problem` has class numbers
    columns: Sequence[Column]
    weights: NDArray[np.float64] | None = None  # with mean 1; None: all rows have the same weight
    splits: Sequence[NDArray[np.bool_]] = ()  # for each fold column, whether a row is for training
    notes: Sequence[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


@contextmanager
def of_every_trial() -> Iterator[None]:
    """End the program with EX_DATAERR, instead of 1, if the block ends it.

    This exit status tells the sweep that every trial would fail for the same reason.
    """
    try:
        yield
    except SystemExit as error:
        print(error, file=sys.stderr)
        raise SystemExit(os.EX_DATAERR) from error


@dataclass(frozen=True)
class Choices:
    """The spec's settings for columns; "" and () if unset."""

    weight: str = ""  # column of row weights
    splits: Sequence[str] = ()  # fold columns: 1 for training, 0 for validation
    purposes: Mapping[str, str] = field(default_factory=dict)  # column → purpose
    blocked: frozenset[str] = frozenset()  # Azure ML's names of transformers to leave out
    # Column → parameters of its imputer.
    fills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group: str = ""  # rows with the same value in this column stay together
    time: str = ""  # splits hold out the latest rows by this column

    def meaning(self, name: str) -> str:
        """Return a column's purpose in the spec; "" if unset. Ends the program if it is unknown."""
        purpose = str(self.purposes.get(name, ""))
        meaning = PURPOSES.get(purpose.replace("_", "").lower(), "")
        if purpose and not meaning:
            supported = "Numeric, Categorical, CategoricalHash, Text, DateTime, Ignore"
            stop("column-purpose", f"unknown type in `{name}: {purpose}`", f"one of {supported}")
        return meaning

    @property
    def texts(self) -> frozenset[str]:
        """Return the columns to read as strings, even if they look like numbers."""
        purposes = {name for name in self.purposes if self.meaning(name) in _OF_TEXTS}
        return frozenset(purposes | ({self.group} if self.group else set()))

    @property
    def of_fits(self) -> list[str]:
        """Return the weight column and the fold columns, which are not features."""
        return [*([self.weight] if self.weight else []), *self.splits]

    @property
    def names(self) -> list[str]:
        """Return all columns that the spec names, except the target."""
        single = [name for name in (self.group, self.time) if name]
        return [*self.of_fits, *single, *self.purposes, *self.fills]


def as_table(
    rows: pd.DataFrame, choices: Choices | None = None, *, target: str, regression: bool
) -> Table:
    """Return the table of a search, with an encoding chosen for each column.

    Ends the program if no model can be trained: missing column, constant target, no feature.
    """
    import pandas as pd

    choices = choices or Choices()
    for name in (target, *choices.names):
        if name not in rows.columns:
            names = ", ".join(map(str, rows.columns[:12]))
            stop("no-such-column", f"the table has no column `{name}`", f"one of {names}")
    _refuse_two_uses(target, choices)
    has_label = rows[target].notna()
    notes = []
    if not has_label.all():
        notes.append(f"{int((~has_label).sum())} rows without a `{target}` are dropped")
        rows = rows[has_label].reset_index(drop=True)
    labels = _labels(rows[target], target, regression)
    classes = 1 if regression else len({*labels})
    columns, data = [], {}
    for name in map(str, rows.columns):
        if name in (target, choices.weight, *choices.splits):
            continue
        column, data[name] = _column(name, rows[name], choices, classes)
        excluded = "the group of the rows: excluded"
        is_group = name == choices.group
        columns.append(replace(column, choice=excluded, feature="") if is_group else column)
    if not any(column.used for column in columns):
        reasons = "; ".join(f"{column.name}: {column.choice}" for column in columns[:5])
        stop("no-feature", f"no usable column: {reasons}", "a number or a category", "add columns")
    weights = _weights(rows[choices.weight], choices.weight) if choices.weight else None
    marks = [_marks(rows[name], name) for name in choices.splits]
    return Table(pd.DataFrame(data, copy=False), labels, columns, weights, marks, notes)


def _refuse_two_uses(target: str, choices: Choices) -> None:
    """End the program if the spec uses one column twice, for example as target and as weight."""
    uses = [(target, "the target"), (choices.weight, "the row weight")]
    uses += [(name, "a split of `cv_split_column_names`") for name in choices.splits]
    uses += [(choices.group, "the group"), (choices.time, "the time")]
    first: dict[str, str] = {}
    for name, use in uses:
        if name in first:
            actual, hint = (
                f"`{name}` is both {first[name]} and {use}",
                "use a different column for one of them",
            )
            stop("duplicate-use", actual, "one use for each column", hint)
        if name:
            first.setdefault(name, use)


def _weights(values: pd.Series[Any], name: str) -> NDArray[np.float64]:
    import pandas as pd

    numbers = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(np.float64)
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        cell = values.iloc[int(np.argmax(wrong))]
        actual = "missing" if pd.isna(cell) else repr(cell) if isinstance(cell, str) else str(cell)
        stop("bad-weights", f"`{name}` is {actual} in a row", "a number of 0 or more", "correct it")
    if not numbers.any():
        stop(
            "bad-weights", f"`{name}` is 0 in all rows", "a positive weight", "name another column"
        )
    # Scale to a mean of 1, as the libraries' penalties and thresholds expect. The first division
    # keeps the sum from overflowing.
    numbers /= numbers.max()
    numbers /= numbers[numbers > 0].mean()
    return numbers


def _marks(values: pd.Series[Any], name: str) -> NDArray[np.bool_]:
    """Return whether each row is a training row by a fold column: 1 or true, else 0 or false."""
    coded = values.astype("category").cat.remove_unused_categories()
    texts = [str(category).strip().lower().removesuffix(".0") for category in coded.cat.categories]
    wrong = [text for text in texts if text not in ("0", "1", "false", "true")]
    if wrong or values.isna().any():
        actual = f"{wrong[0]!r}" if wrong else "missing"
        expected = "1 for a training row and 0 for a validation row of the fold"
        stop("bad-splits", f"the fold column `{name}` is {actual} in a row", expected, "correct it")
    fitted = np.array([text in ("1", "true") for text in texts], dtype=bool)
    return fitted[coded.cat.codes.to_numpy()]


def _labels(values: pd.Series[Any], target: str, regression: bool) -> NDArray[Any]:
    import pandas as pd

    if regression:
        numbers = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            row = int(np.argmin(np.isfinite(numbers)))
            actual = f"`target_column_name: {target}` is {values.iloc[row]!r} in a row"
            hint = "correct it, drop the row, or set `task: classification`"
            stop("target-no-number", actual, "a finite number", hint)
        if (largest := float(np.abs(numbers).max(initial=0))) > LARGEST_TARGET:
            actual, limit = f"`{target}` is {largest:g} in a row", f"at most {LARGEST_TARGET:g}"
            stop("target-too-large", actual, limit, "rescale the target: its square overflows")
        if not len(numbers) or np.ptp(numbers) == 0:
            actual = f"`{target}` has one value in all {len(values)} rows"
            stop("constant-target", actual, "two or more values", "choose another target")
        return numbers
    coded = values.astype("category").cat.remove_unused_categories()
    stripped = np.array(written(coded.cat.categories), dtype=object)
    texts = stripped[coded.cat.codes.to_numpy()] if len(coded) else np.array([], dtype=object)
    names = sorted({*stripped})
    if len(names) < 2:
        value = f"only {names[0]!r}" if names else "no value"
        stop(
            "single-class",
            f"`{target}` has {value} in {len(texts)} rows",
            "at least two classes",
            "add rows",
        )
    if len(names) > max(20, len(texts) // 5):
        actual = f"`{target}` has {len(names)} different values in {len(texts)} rows"
        stop("too-many-classes", actual, "classes with several rows each", "task: regression")
    return texts


def _column(
    name: str, values: pd.Series[Any], choices: Choices, classes: int
) -> tuple[Column, pd.Series[Any]]:
    import pandas as pd

    meaning = choices.meaning(name)
    if meaning == "numeric" and not is_number(values):
        texts = as_texts(values)
        values = pd.to_numeric(texts.astype(object), errors="coerce").astype(np.float32)
        if values.isna().all() and texts.notna().any():
            odd = texts.cat.categories[0]
            actual = f"`{name}: Numeric` has no number, only values such as {odd!r}"
            stop("not-numbers", actual, "a number in some row", f"{name}: Categorical")
    if is_number(values) and meaning not in _OF_TEXTS:
        return _number(name, values, meaning, choices)
    if name in choices.fills and meaning != "aside":
        hint = "remove it from `imputer`: a missing text is a category of its own"
        stop("bad-imputer", f"the imputer's column `{name}` is not numeric", "numbers", hint)
    return _text(name, as_texts(values), meaning, choices, classes)


def _number(
    name: str, values: pd.Series[Any], meaning: str, choices: Choices
) -> tuple[Column, pd.Series[Any]]:
    import pandas as pd

    missing = float(values.isna().mean())
    note = f", {missing:.0%} missing" if missing else ""
    is_integer = values.dtype.kind in "iu"
    if values.dtype == np.float64 and name not in (choices.group, choices.time):
        values = pd.Series(single(values.to_numpy()))
    infinite = 0 if is_integer else int(np.isinf(values.to_numpy()).sum())
    if infinite:
        values = values.replace([np.inf, -np.inf], np.nan)
        note += f", {infinite} infinite treated as missing"
    if fill := choices.fills.get(name):
        note += f", imputed by {fill.get('strategy', 'mean')}"
    is_constant = bool(values.min() == values.max()) and not missing
    out = _out(meaning, bool(values.isna().all()), is_constant)
    if not out and is_integer and meaning != "numeric" and _counts(values.to_numpy()):
        out = "a row number: excluded"
    kind: Kind = "integer" if is_integer else "float"
    return Column(name, kind, out or f"a number{note}", "" if out else "number", missing), values


def _out(meaning: str, is_empty: bool, is_constant: bool) -> str:
    """Return why a column is excluded: empty, constant, or by the spec; "" if it is not."""
    if is_empty:
        return "empty: excluded"
    if is_constant:
        return "constant: excluded"
    return "excluded by the spec" if meaning == "aside" else ""


def _text(
    name: str, texts: pd.Series[Any], meaning: str, choices: Choices, classes: int
) -> tuple[Column, pd.Series[Any]]:
    """Return a text column with its encoding, and its values, which are of a categorical dtype."""
    count = int(texts.notna().sum())
    missing = 1 - count / max(1, len(texts))
    note = f", {missing:.0%} missing" if missing else ""
    different = len(texts.cat.categories)
    sample = [str(category) for category in texts.cat.categories[:: max(1, different // 200)][:200]]
    order = _order_of_dates(sample)
    varies = different > MOST_DIFFERENT * count and count > 20
    is_prose = bool(sample) and float(np.mean([len(text.split()) for text in sample])) >= PROSE

    def column(choice: str, feature: Feature = "") -> tuple[Column, pd.Series[Any]]:
        return Column(name, "text", choice, feature, missing, order), texts

    if out := _out(meaning, not count, different == 1 and not missing):
        return column(out)
    if meaning == "date" and not order:
        odd = next((text for text in sample if not _order_of_dates([text])), sample[0])
        stop("not-a-time", f"`{name}: DateTime` has {odd!r}", "2026-01-31", f"{name}: Categorical")
    if order and meaning in ("", "date"):
        form = "" if order == "iso" else f", {order}"
        return column(f"{A_TIME}{form}: calendar features and days{note}", "date")
    if meaning == "words" or (not meaning and is_prose and varies):
        if choices.blocked & {"tf_idf"}:
            return column("free text, and TfIdf is blocked: excluded")
        return column(f"free text: TF-IDF of its words{note}", "words")
    if not meaning and varies:
        return column(
            _why_no_number(texts)
            or f"high cardinality, {different} values in {count} rows: excluded"
        )
    choice = f"a category of {different} values{note}"
    is_blocked = "cat_target_encoder" in choices.blocked
    if different > MANY_CATEGORIES and classes <= MOST_MEANS and not is_blocked:
        return column(f"{choice}: target encoding", "mean")
    if different > MOST_CATEGORIES:
        choice += f", all but the {MOST_CATEGORIES} most frequent grouped"
    return column(choice, "category")


def _why_no_number(texts: pd.Series[Any]) -> str:
    """Return why a text column of mostly numbers is not numeric; "" for other text columns."""
    import pandas as pd

    written: Any = texts.cat.categories
    is_number = pd.to_numeric(written, errors="coerce").notna()
    of_rows = is_number[texts.cat.codes[texts.notna()]]
    if MOSTLY_NUMBERS <= of_rows.mean() < 1:
        counts = f"{of_rows.sum()} of {len(of_rows)} values are numbers"
        odd = f"{written[~is_number][0]!r} is not: excluded; leave a cell empty for a missing value"
        return f"{counts}, {odd}"
    if pd.to_numeric(written.str.replace(",", "."), errors="coerce").notna().all():
        return "numbers with a decimal comma: excluded"
    return ""


def _order_of_dates(sample: Sequence[str]) -> str:
    """Return the date format of all texts: iso, month-first or day-first; "" if there is none."""
    if not sample or not all(_DATE.fullmatch(text) for text in sample):
        return ""
    orders = ("iso", "month-first", "day-first")
    return next((order for order in orders if all(read_date(text, order) for text in sample)), "")


def _counts(numbers: NDArray[Any]) -> bool:
    """Return whether whole numbers are probably row numbers: all distinct, with few gaps."""
    if len(numbers) < 20 or float(np.ptp(numbers.astype(np.float64))) >= 2 * len(numbers):
        return False
    return len(np.unique(numbers)) == len(numbers)
