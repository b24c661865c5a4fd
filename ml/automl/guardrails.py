"""Check the table and the validation for problems that make a score unreliable."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import encoding, validation
from ml.automl.problem import GROUP, TIME, Problem
from ml.automl.tables import Column
from ml.automl.validation import Rows
from ml.measures.leakage import features as leaking_features
from ml.measures.leakage import leaks

if TYPE_CHECKING:
    import pandas as pd

# With fewer training rows, metrics are reported as unreliable.
FEW_ROWS = 200
# A class with a smaller share is reported as rare.
RARE = 0.1
MOSTLY_MISSING = 0.4
# Maximum rows in the check for target leakage.
PROBED = 10_000
# A column may define groups if it has this many distinct values, and a mean number of rows per
# value in this range.
GROUPS, ROWS_OF_GROUP = 20, (2.0, 50.0)
# Report a column if more than this share of validation rows have a value that training rows have,
# or are not later than all training rows.
SHARED = 0.2
# Report duplicates of training rows if they are at least this share of the validation rows, at
# least this share of the training rows is distinct, and chance explains less than this share of the
# equal pairs, as it may with few categorical columns. The check for chance skips columns in which
# two rows are equal with at least the last probability.
REPEATED, DIFFERENT, BY_NATURE, HARDLY_VARIES = 0.01, 0.4, 0.5, 0.6
# Significance levels: p-value for similar rows in a group, standard errors for adjacent times.
SIGNIFICANT, DEVIATIONS = 0.001, 3.0
# The check for target-encoded columns: maximum rows, minimum share of noise in the variance of the
# means, and maximum unexplained variance as a share of the noise.
MEANS_OF_ROWS, NOISE, LACKING = 200_000, 0.02, 0.2
# Smoothing weights that are common in target encoding.
SMOOTHED = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)

ARE_FITTED = "are duplicates of training rows, target included: remove duplicate rows"

Finding = tuple[str, str]
Values = NDArray[np.float64]


def report(problem: Problem, document: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the findings as {"check", "finding"}; `document` is a model's columns.json."""
    findings = [
        *_of_rows(problem),
        *_of_classes(problem),
        *_of_leakage(problem, document),
        *_of_validation(problem),
        *_of_test(problem),
    ]
    return [{"check": check, "finding": result} for check, result in findings]


def _of_rows(problem: Problem) -> Iterator[Finding]:
    yield from (("rows", note) for note in problem.table.notes)
    if len(problem.fitted) < FEW_ROWS:
        yield "rows", f"{len(problem.fitted)} rows: metrics of so few rows have a high variance"
    for column in problem.table.columns:
        if not column.used:
            yield "columns", f"{column.name}: {column.choice}"
        elif column.missing > MOSTLY_MISSING:
            yield "missing", f"{column.name}: {column.missing:.0%} missing"


def _of_classes(problem: Problem) -> Iterator[Finding]:
    classes, labels = problem.classes, problem.labels[problem.fitted]
    if not classes:
        return
    counts = np.bincount(labels.astype(np.int64), minlength=len(classes))
    rare = int(counts.argmin())
    share = counts[rare] / max(1, len(labels))
    if share < RARE:
        actual = f"{classes[rare]} is {share:.2%} of the rows"
        if problem.job.metric == "accuracy":
            actual += ": accuracy is misleading here; use AUC_weighted or norm_macro_recall"
        yield "imbalance", actual


def _of_leakage(problem: Problem, document: Mapping[str, Any]) -> Iterator[Finding]:
    many = len(problem.fitted) > PROBED
    probed = problem.sample(problem.fitted, PROBED) if many else problem.fitted
    # Encode as for training, with cross-fitted target means.
    numbers = encoding.matrix(problem.table, document, probed, problem.labels)
    labels: Any = problem.labels_of(probed)
    if problem.task == "multiclass":
        labels = labels.astype(str)
    columns = encoding.columns(document)
    names = columns.names
    if len(np.unique(labels)) > 1:  # the sample may have only one label
        checks = leaking_features(numbers.astype(np.float64), labels, names, columns.categorical)
        yield from (("leakage", check.actual or "") for check in checks if leaks(check))
    if len(problem.labels) > MEANS_OF_ROWS:
        return
    for column in problem.table.columns:
        if column.feature != "number" or column.kind != "float":
            continue
        values = problem.table.frame[column.name].to_numpy()
        sets = [problem.fitted, np.arange(len(values))]
        if any(
            _are_means(values[rows], target) for rows in sets for target in _targets(problem, rows)
        ):
            yield (
                "leakage",
                f"{column.name}: a target encoding that includes the validation rows; use the "
                "category itself, which is target-encoded inside each fold",
            )


def _targets(problem: Problem, rows: NDArray[Any]) -> Iterator[Values]:
    labels = problem.labels[rows]
    if problem.task != "multiclass":
        yield labels.astype(np.float64)
        return
    yield from ((labels == label).astype(np.float64) for label in range(len(problem.classes)))


def _of_groups(groups: NDArray[Any], target: Values) -> tuple[Values, Values, float, float]:
    """Return the groups' sizes and means, and the sums of squares within and between groups.

    `groups` has the group number of each row.
    """
    sizes = np.bincount(groups).astype(np.float64)
    means = np.bincount(groups, target) / sizes
    within = float(((target - means[groups]) ** 2).sum())
    return sizes, means, within, float((sizes * (means - target.mean()) ** 2).sum())


def _are_means(values: NDArray[Any], target: Values) -> bool:
    """Return whether the values are a target encoding, smoothed or not, of these rows' target.

    Such means reproduce the target's noise; means of other rows would not.
    """
    is_finite = np.isfinite(values)
    different, groups = np.unique(values[is_finite], return_inverse=True)
    count, target = len(different), target[is_finite]
    if not GROUPS <= count <= len(groups) / 2:
        return False
    sizes, means, within, between = _of_groups(groups, target)
    noise = count * within / (len(groups) - count) / between if between else 0.0
    smoothed = [(sizes * means + weight * target.mean()) / (sizes + weight) for weight in SMOOTHED]
    return noise >= NOISE and any(
        1 - _explained(estimate, different.astype(np.float64), sizes) < LACKING * min(noise, 1)
        for estimate in smoothed
    )


def _explained(a: Values, b: Values, weights: Values) -> float:
    """Return the squared weighted correlation of two variables."""
    covariance = np.cov(a, b, aweights=weights)
    product = covariance[0, 0] * covariance[1, 1]
    return float(covariance[0, 1] ** 2 / product) if product else 0.0


def _of_validation(problem: Problem) -> Iterator[Finding]:
    """Yield findings on validation rows: duplicates of training rows, shared groups, time order."""
    choices = problem.job.choices
    if actual := _duplicates(problem, *problem.folds[0]):
        yield "validation", f"{actual} validation rows {ARE_FITTED}"
    for column in problem.table.columns:
        actual = ""
        if column.name == choices.group:
            share, values = _shared(problem, column, *problem.folds[0])
            actual = f"{values} groups have both training and validation rows" if share else ""
            actual = actual and f" ({GROUP}): {actual}"
        elif column.name == choices.time or column.order:
            actual = _of_time(problem, column, is_named=column.name == choices.time)
        elif not choices.time:
            actual = _possible_group(problem, column)
        if actual:
            yield "validation", f"{column.name}{actual}"


def _of_test(problem: Problem) -> Iterator[Finding]:
    """Yield findings on test rows: duplicates of training rows, shared groups, time order."""
    sets, choices = (problem.fitted, problem.test), problem.job.choices
    if not len(problem.test):
        return
    if actual := _duplicates(problem, *sets):
        yield "test", f"{actual} test rows {ARE_FITTED}"
    for column in problem.table.columns:
        if column.name == choices.group and (values := _shared(problem, column, *sets)[1]):
            yield (
                "test",
                f"{column.name} ({GROUP}): {values} groups have both training and test rows",
            )
        if column.name == choices.time:
            times = validation.times(problem.table, column.name)
            if early := _not_later_count(times, *sets):
                actual = (
                    f"{early} of the {len(problem.test)} test rows are not later than training rows"
                )
                yield "test", f"{column.name} ({TIME}): {actual}"


def _duplicates(problem: Problem, fitted: Rows, validation_rows: Rows) -> str:
    """Return "N of the M" if N of M validation rows duplicate training rows, or "" if too few."""
    if not len(validation_rows):
        return ""
    keys: NDArray[np.uint64] = np.zeros(len(problem.table), np.uint64)
    for cells in _hashed(problem):
        keys += cells
    different = fitted[np.unique(keys[fitted], return_index=True)[1]]
    same = _pairs(keys, different, validation_rows)
    if same < REPEATED * len(validation_rows) or len(different) < DIFFERENT * len(fitted):
        return ""
    for cells in _hashed(problem):
        # The probability that two distinct rows are equal in this column.
        counts = np.unique(cells[different], return_counts=True)[1].astype(np.float64)
        alike = float(counts @ (counts - 1)) / (len(different) * max(1, len(different) - 1))
        # The number of pairs that are equal in all columns except this one.
        others = (
            _pairs(keys - cells, different, validation_rows) - same if alike < HARDLY_VARIES else 0
        )
        if alike * others > BY_NATURE * (1 - alike) * same:
            return ""
    return f"{same} of the {len(validation_rows)}"


def _hashed(problem: Problem) -> Iterator[NDArray[np.uint64]]:
    """Yield the hashes of the target's cells, then those of each feature, one column at a time.

    This avoids a copy of a large table.
    """
    import pandas as pd

    yield np.asarray(pd.util.hash_array(problem.labels), np.uint64)
    for index, column in enumerate(problem.table.columns):
        if column.used:
            cells = pd.util.hash_pandas_object(problem.table.frame[column.name], index=False)
            yield np.multiply(cells.to_numpy(), 2 * index + 3, dtype=np.uint64)


def _pairs(keys: NDArray[np.uint64], fitted: Rows, validation_rows: Rows) -> int:
    """Return the number of pairs of a training and a validation row with equal keys."""
    unique, counts = np.unique(keys[fitted], return_counts=True)
    positions = np.minimum(np.searchsorted(unique, keys[validation_rows]), len(unique) - 1)
    return int(counts[positions][unique[positions] == keys[validation_rows]].sum())


def _of_time(problem: Problem, column: Column, *, is_named: bool) -> str:
    """Return how many validation rows are not later than training rows, as a text; "" if few.

    `is_named` says that the spec names this column as the time.
    """
    times = validation.read_times(problem.table, column.name)
    fitted, validation_rows = problem.folds[0]
    if not np.isfinite(times).all():
        return ""
    early = _not_later_count(times, fitted, validation_rows)
    if early <= (0 if is_named else SHARED * len(validation_rows)):
        return ""
    if not (problem.shuffled or is_named) and not _neighbours_are_alike(problem, times):
        return ""
    actual = (
        f"{early} of the {len(validation_rows)} validation rows are not later than training rows"
    )
    if is_named:
        return f" ({TIME}): {actual}"
    return f": a time, and {actual}; if rows are ordered by it: tags: {{{TIME}: {column.name}}}"


def _not_later_count(times: Values, fitted: Rows, validation_rows: Rows) -> int:
    """Return the number of validation rows that are not later than all training rows."""
    return int((times[validation_rows] <= times[fitted].max()).sum())


def _neighbours_are_alike(problem: Problem, times: Values) -> bool:
    """Return whether the targets of consecutive rows in time correlate significantly."""
    rows = problem.fitted[np.argsort(times[problem.fitted], kind="stable")]
    correlations = [
        float(np.corrcoef(target[1:], target[:-1])[0, 1])
        for target in _targets(problem, rows)
        if np.ptp(target) > 0
    ]
    return max(correlations, default=0.0) * math.sqrt(len(rows)) > DEVIATIONS


def _shared(
    problem: Problem, column: Column, fitted: Rows, validation_rows: Rows
) -> tuple[float, int]:
    """Return the share of validation rows whose value training rows have, and count such values."""
    values = problem.table.frame[column.name]
    of_validation = values.iloc[validation_rows].dropna()
    both = of_validation[of_validation.isin(values.iloc[fitted].dropna().unique())]
    return len(both) / max(1, len(validation_rows)), both.nunique()


def _possible_group(problem: Problem, column: Column) -> str:
    """Return why the column may define groups that are in both training and validation; or ""."""
    values = problem.table.frame[column.name].iloc[problem.fitted]
    if column.kind == "float" or column.feature in ("words", "date"):
        return ""
    present = values.notna().to_numpy()
    codes, different = _codes(values[present])
    low, high = ROWS_OF_GROUP
    if different < GROUPS or not low <= len(codes) / different <= high:
        return ""
    if _shared(problem, column, *problem.folds[0])[0] <= SHARED:
        return ""
    rows = problem.fitted[present]
    same = _same_in_groups(problem, column, rows, codes)
    # Only for text: numbers such as counts have similar targets without being groups.
    alike = column.kind == "text" and any(
        _are_alike(target, codes) for target in _targets(problem, rows)
    )
    if not (same or alike):
        return ""
    why = f"each value has one `{same}`" if same else "rows of one value have similar targets"
    return (
        f": {different} values of about {len(codes) / different:.0f} rows each, in both training "
        f"and validation, and {why}; if it is a group, such as a customer: "
        f"tags: {{{GROUP}: {column.name}}}"
    )


def _codes(values: pd.Series[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the code of each value, and the number of distinct values."""
    codes, different = values.factorize()
    return codes.astype(np.int64), len(different)


def _same_in_groups(
    problem: Problem, column: Column, rows: NDArray[Any], codes: NDArray[np.int64]
) -> str:
    """Return the name of a column that varies between groups but hardly within them; or "".

    `codes` has the group of each row.
    """
    groups, values = len(np.unique(codes)), problem.table.frame[column.name].to_numpy()[rows]
    for candidate in problem.table.columns:
        if candidate.name == column.name or not candidate.used:
            continue
        of_rows, different = _codes(problem.table.frame[candidate.name].iloc[rows])
        # A column with more values than groups divides the rows more finely than the groups do.
        if not GROUPS // 4 <= different <= groups:
            continue
        if column.kind != "text" and _are_bands(values, codes, of_rows):
            continue
        shuffled = np.roll(of_rows, len(rows) // 3)
        pairs, by_chance = (
            len(np.unique(codes * (different + 1) + others)) for others in (of_rows, shuffled)
        )
        if pairs - groups < LACKING * (by_chance - groups):
            return candidate.name
    return ""


def _are_bands(values: NDArray[Any], codes: NDArray[np.int64], of_rows: NDArray[np.int64]) -> bool:
    """Return whether another column (`of_rows`) is a binning of these numbers, such as age bands.

    If the numbers were identifiers, consecutive ones would usually differ in the other column.
    """
    first = np.unique(codes, return_index=True)[1]
    of_groups = of_rows[first[np.argsort(values[first])]]
    different = len(np.unique(of_groups))
    changes = int(np.count_nonzero(np.diff(of_groups)))
    return changes < 2 * different <= len(first) / 2


def _are_alike(target: Values, codes: NDArray[np.int64]) -> bool:
    """Return whether targets differ significantly less within groups than between them (F-test)."""
    from scipy.stats import f

    sizes, _, within, between = _of_groups(codes, target)
    groups, free = len(sizes) - 1, len(codes) - len(sizes)
    if free < 1 or within == 0:
        return within == 0 and between > 0
    return bool(f.sf(between / groups / (within / free), groups, free) < SIGNIFICANT)
