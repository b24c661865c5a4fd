"""Check an evaluation for leakage of the target.

The checks cover three kinds of leakage (Kapoor and Narayanan, Leakage and the reproducibility
crisis in machine-learning-based science, Patterns 4, 2023): the same rows in training and test
(L1.4), features that are proxies for the target (L2), and a test set that is not later than the
training set (L3.1). Every check is returned, with or without a finding: the gate `leakage`
rejects an evaluation without checks.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml.measures.schema import Check

Values = NDArray[np.float64]
# Upper limits of the checks; policies/promotion/gates.yml has the same for the gate.
# - AUC of one feature: H2O Driverless AI reports 0.95 or more as a possible leak
#   (`detect_features_leakage_threshold_auc`); the limit that blocks is higher.
# - Correlation with a numeric target: an AUC of 0.98 means that 98 of 100 pairs are in the right
#   order, so Kendall's tau is 0.96. For two normal variables, tau = 2/π·asin(r) and Spearman's is
#   6/π·asin(r/2) (Kruskal, JASA 53, 1958), hence 0.998.
# - Three features together: the same. A good model never blocks; it only warns.
BOUNDS: Mapping[str, float] = {
    "feature.auc": 0.98,
    "feature.correlation": 0.998,
    "joint.auc": 0.98,
    "joint.correlation": 0.998,
    "model.auc": 1,
    "model.correlation": 1,
    "identifiers.shared": 0,
    "time.not_later": 0,
}
# Lower limits of warnings; gates.yml has the same. A correlation of √0.9 is an R² of 0.9. For
# comparison, the best three features together have an AUC of 0.85 in `adult`, 0.94 in
# `bank_marketing` and 0.93 in fraud_scoring, and a correlation of 0.91 in `bike-share`. With the
# leaking columns `casual` and `registered`, whose sum is the target, the latter is 1.
WARNINGS: Mapping[str, float] = {
    "feature.auc": 0.9,
    "feature.correlation": 0.9487,
    "joint.auc": 0.95,
    "joint.correlation": 0.975,
    "model.auc": 0.99,
    "model.correlation": 0.995,
}
# For the target encoding: number of bins of a numeric feature, and number of folds.
BINS, FOLDS = 20, 5
# Minimum number of rows of a class for its AUC.
FEWEST_OF_CLASS = 10
# The joint check: number of features, rows, trees, and columns per split. More change little.
JOINT, MOST_ROWS, TREES, MOST_TRIED = 3, 2000, 60, 100
# Maximum number of identifiers listed in a message.
NAMED = 3
SHARED = "identifiers.shared"
# The file of the identifiers that `SHARED` compared: identifier, part, hashed value.
IDENTIFIERS = "identifiers.csv"
COLUMNS = ("of", "part", "sha256")
TRAINING, TEST = "training", "test"
# Hexadecimal digits of a hash: the chance of a collision among 10 million is 1 in 300,000.
DIGITS = 16


def leaks(check: Check) -> bool:
    """Return whether a check's value exceeds its limit or is NaN."""
    return not check.value <= BOUNDS[check.check or ""]


def warning(check: Check) -> str:
    """Return the warning text for a check above its block or warning limit, else ""."""
    if leaks(check):
        limit = BOUNDS[check.check or ""]
        return f"warning[leak]: {check.actual} (limit {limit:g}): the gate `leakage` rejects it"
    if check.value < WARNINGS.get(check.check or "", math.inf):
        return ""
    limit, advice = WARNINGS[check.check or ""], "are its values known at prediction time?"
    return f"warning[possible-leak]: {check.actual} (warning limit {limit:g}): {advice}"


def identifiers(checks: Iterable[Check]) -> str:
    """Return the content of identifiers.csv; "" if no check compared identifiers."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for check in checks:
        rows.writerows((check.of, TRAINING, identifier) for identifier in sorted(check.training))
        rows.writerows((check.of, TEST, identifier) for identifier in check.test)
    return f"{','.join(COLUMNS)}\n{table.getvalue()}" if table.getvalue() else ""


def features(
    table: ArrayLike, target: ArrayLike, names: Sequence[str], categorical: Collection[int] = ()
) -> list[Check]:
    """Check how well each column of `table` (rows × features) alone predicts the target.

    Return the checks of all features that warn or leak, or of the strongest if none does.

    The measure is the AUC in either direction (two classes), the largest one-vs-rest AUC (three or
    more classes), or the larger of Spearman's and Pearson's absolute correlation (numbers). NaN
    counts as the largest value, since a missing value may reveal the target. Each column is also
    scored by its out-of-fold target encoding, which finds relations that are not monotonic: per
    category for the columns in `categorical`, per bin for the others.

    Do not use it for pairs of a ranking: few are right, so a good similarity scores like a leak.
    Raises ValueError if shapes differ, or if the target is missing or constant.
    """
    rows, answers, class_masks = _checked(table, target, names)
    kind = f"feature.{_measure(class_masks)}"
    checks = []
    for number, (name, column) in enumerate(zip(names, rows.T, strict=True)):
        cells = _cells(column, number in categorical)
        value = max(
            _score(predicted[:, None], side, [side] if class_masks else [])
            for side in class_masks or [answers]
            for predicted in (column, -column, _means(cells, side))
        )
        actual = f"{name} alone: {_measure(class_masks)} {value:.4f}"
        checks.append(Check(kind, name, value, len(rows), actual))
    checks.sort(key=lambda check: -check.value)
    return [check for check in checks if warning(check)] or checks[:1]


def joint_checks(table: ArrayLike, target: ArrayLike, names: Sequence[str]) -> tuple[Check, Check]:
    """Check how well the three most important features, and all features, predict the target.

    The value is the AUC (the mean one-vs-rest AUC of several classes) or the correlation, of the
    better of two predictions: out-of-bag extremely randomised trees (Geurts, Ernst and Wehenkel,
    Machine Learning 63, 2006), whose importances select the three features, and an out-of-fold
    linear model. Raises ValueError as `features` does.
    """
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import KFold, cross_val_predict

    rows, answers, class_masks = _checked(table, target, names)
    # Sample each class separately, which keeps rare classes and does not change the AUC.
    classes = (
        [answers == value for value in np.unique(answers)] if class_masks else [answers == answers]
    )
    drawn = np.concatenate(
        [
            rows[:: -(-len(rows) * len(classes) // MOST_ROWS)]
            for rows in map(np.flatnonzero, classes)
        ]
    )
    rows, answers, class_masks = rows[drawn], answers[drawn], [side[drawn] for side in class_masks]
    wanted = np.column_stack(class_masks or [answers / np.abs(answers).max()]).astype(np.float64)
    ranked = np.column_stack([_ranks(column) for column in rows.T])
    scaled = np.nan_to_num(rows / np.maximum(np.nanmax(np.abs(rows), axis=0, initial=0), 1e-300))
    folds = KFold(FOLDS, shuffle=True, random_state=0)

    def best(columns: NDArray[np.int64]) -> tuple[float, NDArray[np.int64]]:
        tried = min(len(columns), MOST_TRIED)
        trees = ExtraTreesRegressor(
            n_estimators=TREES,
            min_samples_leaf=3,
            max_features=tried,
            bootstrap=True,
            oob_score=True,
            random_state=0,
        ).fit(ranked[:, columns], np.squeeze(wanted))
        linear = cross_val_predict(LinearRegression(), scaled[:, columns], wanted, cv=folds)
        value = max(
            _score(np.reshape(predicted, wanted.shape), answers, class_masks)
            for predicted in (trees.oob_prediction_, linear)
        )
        return value, np.argsort(-trees.feature_importances_, kind="stable")

    full, order = best(np.arange(len(names)))
    chosen = np.sort(order[:JOINT])
    value, joined = best(chosen)[0], " + ".join(names[number] for number in chosen)
    actual, kind = (
        f"{joined} together: {_measure(class_masks)} {value:.4f}",
        f"joint.{_measure(class_masks)}",
    )
    joint = Check(kind, joined, value, len(rows), actual)
    actual = f"all features together, most of all {joined}: {_measure(class_masks)} {full:.4f}"
    return joint, Check(f"model.{_measure(class_masks)}", "all features", full, len(rows), actual)


def model(scores: ArrayLike, target: ArrayLike, split: str, classes: Sequence[str] = ()) -> Check:
    """Check the AUC or the correlation of a model's predictions on `split`.

    `classes` are the names of the columns of `scores` (multiclass).
    """
    answers = np.asarray(target)
    columns = np.asarray(scores, np.float64).reshape(len(answers), -1)
    class_masks = [answers == name for name in classes] or _class_masks(answers)
    return _of_model(_score(columns, answers, class_masks), split, len(answers), class_masks)


def shared(train: Collection[str], test: Sequence[str], by: str) -> Check:
    """Check how many test rows are also training rows, by their identifiers (ids or texts).

    `by` names the identifier in messages; `test` has one per evaluated row of the test splits.
    Texts that differ only in white space or compatible Unicode characters are equal. Raises
    ValueError if either is empty.
    """
    if not train or not test:
        raise ValueError(f"{len(train)} rows of training and {len(test)} of the test: no {by}")
    training, test = {*map(plain, train)}, [*map(plain, test)]
    both = [row for row in test if row in training]
    named = ", ".join(dict.fromkeys(both[:NAMED])) + (", …" if len(both) > NAMED else "")
    finding = f"{len(both)} of {len(test)} by {by} were trained on" + (f": {named}" if both else "")
    return Check(
        SHARED,
        by,
        len(both),
        len(test),
        finding,
        frozenset(map(_hashed, training)),
        tuple(map(_hashed, test)),
    )


def not_later(train: Sequence[Any] | Values, test: Sequence[Any] | Values, name: str) -> Check:
    """Check how many test rows are not later than the last training row, by the times of both.

    `name` is the time column. Times are numbers, datetime64, or datetimes of one zone. A missing
    time counts as not later. Raises ValueError if either is empty.
    """
    before, after = np.asarray(train), np.asarray(test)
    if not before.size or not after.size:
        raise ValueError(f"{before.size} times of training and {after.size} of the test: no {name}")
    # NaN and NaT are never greater; a missing training time makes max() missing, so all rows fail.
    late = int(after.size - np.count_nonzero(after > before.max()))
    finding = (
        f"{late} of {after.size} by {name} are not later than training, which ends {before.max()}"
    )
    return Check("time.not_later", name, late, int(after.size), finding)


def plain(text: str) -> str:
    """Return the text with single spaces and compatible characters unified (Unicode's NFKC)."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def _hashed(identifier: str) -> str:
    return hashlib.sha256(identifier.encode()).hexdigest()[:DIGITS]


def _ranks(values: Values) -> Values:
    """Return ranks from 1; ties have their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: Values = np.cumsum(counts).astype(np.float64)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


ClassMasks = Sequence[NDArray[np.bool_]]


def _of_model(value: float, split: str, count: int, class_masks: ClassMasks) -> Check:
    actual = f"the model on {split}: {_measure(class_masks)} {value:.4f}"
    return Check(f"model.{_measure(class_masks)}", split, value, count, actual)


def _measure(class_masks: ClassMasks) -> str:
    return "auc" if class_masks else "correlation"


def _checked(
    table: ArrayLike, target: ArrayLike, names: Sequence[str]
) -> tuple[Values, NDArray[Any], ClassMasks]:
    rows, answers = np.asarray(table, np.float64), np.asarray(target)
    if rows.ndim != 2 or rows.shape != (len(answers), len(names)) or not names:
        raise ValueError(f"{rows.shape} values, expected {len(answers)} rows of {len(names)}")
    return rows, answers, _class_masks(answers)


def _class_masks(answers: NDArray[Any]) -> ClassMasks:
    """Return a row mask per class for one-vs-rest AUCs, or [] for a numeric target."""
    classes, codes, counts = np.unique(answers, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise ValueError("the target is constant: its leakage cannot be checked")
    if len(classes) == 2:
        return [codes == 1]
    if answers.dtype.kind in "iuf" and np.isfinite(answers).all():
        return []
    if answers.dtype.kind not in "US":
        raise ValueError("the target is neither classes nor finite numbers")
    fewest = min(FEWEST_OF_CLASS, counts.max())
    return [codes == number for number in np.flatnonzero(counts >= fewest)]


def _cells(column: Values, is_category: bool) -> NDArray[np.int64]:
    """Return the bin number of each value.

    Each category, and each of at most BINS distinct numbers, has its own bin; so do missing values.
    """
    values, cells = np.unique(column, return_inverse=True)
    if is_category or len(values) <= BINS:
        return np.asarray(cells)
    bins = ((_ranks(column) - 1) * BINS / len(column)).astype(np.int64)
    return np.where(np.isnan(column), BINS, bins)


def _means(cells: NDArray[np.int64], answers: NDArray[Any]) -> Values:
    """Return each row's out-of-fold target encoding, the mean target of its bin; 0 for few rows."""
    if len(cells) < FEWEST_OF_CLASS * FOLDS:
        return np.zeros(len(cells))
    folds = np.random.default_rng(0).permutation(len(cells)) % FOLDS
    width = int(cells.max()) + 1
    counts, sums = (
        np.bincount(cells * FOLDS + folds, weights, width * FOLDS).reshape(width, FOLDS)
        for weights in (None, answers.astype(np.float64))
    )
    others = sums.sum(axis=1, keepdims=True) - sums + answers.mean()
    means: Values = others / (counts.sum(axis=1, keepdims=True) - counts + 1)
    return means[cells, folds]


def _score(columns: Values, answers: NDArray[Any], class_masks: ClassMasks) -> float:
    """Return the mean AUC over the classes (one column each), or for numbers the correlation."""
    if not class_masks:
        return _correlation(columns[:, 0], answers)
    pairs = zip(columns.T[-len(class_masks) :], class_masks, strict=True)
    return float(
        np.mean([_auc(column, side) for column, side in pairs if 0 < side.sum() < len(side)])
    )


def _auc(values: Values, positive: NDArray[np.bool_]) -> float:
    """Return the AUC: P(a positive is above a negative) + half of P(they tie) (Mann-Whitney)."""
    n = int(positive.sum())
    above = _ranks(values)[positive].sum() - n * (n + 1) / 2
    return float(above / (n * (len(positive) - n)))


def _correlation(values: Values, target: NDArray[Any]) -> float:
    """Return Spearman's or Pearson's correlation, whichever is larger, at least 0.

    For Pearson's, a missing value is replaced by the mean.
    """
    largest = np.nanmax(np.abs(values), initial=0) or 1.0
    scaled, wanted = values / largest, target / (np.abs(target).max() or 1.0)
    filled = np.where(np.isnan(scaled), np.nanmean(np.append(scaled, 0.0)), scaled)
    size = 0.0
    for a, b in ((_ranks(values), _ranks(target)), (filled, wanted)):
        a, b = a - a.mean(), b - b.mean()
        spread = math.sqrt(float(a @ a) * float(b @ b))
        size = max(size, min(1.0, float(a @ b) / spread) if spread else 0.0)
    return size
