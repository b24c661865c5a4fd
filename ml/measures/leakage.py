"""Leakage checks: does the evaluation give the answers away?

Three of the ways in which leakage comes about (Kapoor and Narayanan, Leakage and the
reproducibility crisis in machine-learning-based science, Patterns 4, 2023): the same rows in
training and test (L1.4), a feature that stands for the target (L2), and a test that lies in
training's past (L3.1). Every check is returned, whether it found something or not: the gate
`leakage` refuses an evaluation that lists none.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ml.measures.schema import Check

Values = NDArray[np.float64]
# The most that a check may find; policies/promotion/gates.yml has the same for the gate.
# - An AUC of one feature: H2O Driverless AI reports 0.95 or more as a possible leak
#   (`detect_features_leakage_threshold_auc`); what blocks is set higher.
# - Spearman's correlation with a numeric target: an AUC of 0.98 is 98 pairs of 100 in the right
#   order, Kendall's tau 0.96; for two normal variables tau = 2/π·asin(r) and Spearman's is
#   6/π·asin(r/2) (Kruskal, JASA 53, 1958), hence 0.998.
BOUNDS: Mapping[str, float] = {
    "feature.auc": 0.98,
    "feature.correlation": 0.998,
    "identifiers.shared": 0,
    "time.not_later": 0,
}
# Values that a message lists; the others are counted.
NAMED = 3
SHARED = "identifiers.shared"
# Where what `SHARED` compared is kept: of which identifier, in which part, and the value hashed.
IDENTIFIERS = "identifiers.csv"
COLUMNS = ("of", "part", "sha256")
TRAINING, TEST = "training", "test"
# Hexadecimal digits of a hash: two of 10 million are alike by a chance of 1 in 300,000.
DIGITS = 16


def leaks(check: Check) -> bool:
    """Whether a check measured more than the bound; so does what is not a number."""
    return not check.value <= BOUNDS[check.check or ""]


def identifiers(checks: Iterable[Check]) -> str:
    """The content of identifiers.csv, "" when none of the checks compared any."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for check in checks:
        rows.writerows((check.of, TRAINING, of) for of in sorted(check.training))
        rows.writerows((check.of, TEST, of) for of in check.test)
    return f"{','.join(COLUMNS)}\n{table.getvalue()}" if table.getvalue() else ""


def features(table: ArrayLike, target: ArrayLike, names: Sequence[str]) -> list[Check]:
    """How well each column of `table` (rows × features) alone gives the target away: every feature
    beyond the bound, and the strongest if there is none.

    With two values of the target that is the AUC, in whichever direction; with more, numbers all,
    the size of Spearman's correlation; with three or more classes the largest AUC of one class
    against the others. A missing value (NaN) counts as the largest: that it is missing may give the
    answer away. Not for the pairs of a ranking, of which few are right: a good similarity alone
    comes as close. Raises ValueError when shapes do not fit, or when a target is missing or always
    the same.
    """
    rows, answers = np.asarray(table, np.float64), np.asarray(target)
    if rows.ndim != 2 or rows.shape != (len(answers), len(names)) or not names:
        raise ValueError(f"{rows.shape} values, expected {len(answers)} rows of {len(names)}")
    classes, of = np.unique(answers, return_inverse=True)
    if len(classes) < 2:
        raise ValueError("the target is always the same: nothing can give it away")
    if len(classes) == 2:
        kind, measured = "feature.auc", [_auc(column, of == 1) for column in rows.T]
    elif answers.dtype.kind in "iuf" and np.isfinite(answers).all():
        kind, measured = "feature.correlation", [_spearman(column, answers) for column in rows.T]
    elif answers.dtype.kind in "US":
        kind = "feature.auc"
        measured = [max(_auc(column, of == at) for at in range(len(classes))) for column in rows.T]
    else:
        raise ValueError("the target is neither classes nor finite numbers")
    checks = [
        Check(kind, name, value, len(rows), f"{name} alone: {kind.split('.')[1]} {value:.4f}")
        for name, value in zip(names, measured, strict=True)
    ]
    checks.sort(key=lambda check: -check.value)
    return [check for check in checks if leaks(check)] or checks[:1]


def shared(train: Collection[str], test: Sequence[str], of: str) -> Check:
    """How many rows of the test are in training too, by the identifiers (or texts) of both.

    `test` has one for every row that was measured, in the splits that decide.
    """
    if not train or not test:
        raise ValueError(f"{len(train)} rows of training and {len(test)} of the test: no {of}")
    training = set(train)
    both = [row for row in test if row in training]
    named = ", ".join(dict.fromkeys(both[:NAMED])) + (", …" if len(both) > NAMED else "")
    finding = f"{len(both)} of {len(test)} by {of} were trained on" + (f": {named}" if both else "")
    return Check(
        SHARED,
        of,
        len(both),
        len(test),
        finding,
        frozenset(map(_hashed, training)),
        tuple(map(_hashed, test)),
    )


def not_later(train: Sequence[Any] | Values, test: Sequence[Any] | Values, of: str) -> Check:
    """How many rows of the test are not later than the last of training, by a column of times
    (numbers, datetime64, or datetimes of one zone). A time that is missing is not later.
    """
    before, after = np.asarray(train), np.asarray(test)
    if not before.size or not after.size:
        raise ValueError(f"{before.size} times of training and {after.size} of the test: no {of}")
    # NaN and NaT are greater than nothing; max() of training passes them on, so all fail.
    late = int(after.size - np.count_nonzero(after > before.max()))
    finding = (
        f"{late} of {after.size} by {of} are not later than training, which ends {before.max()}"
    )
    return Check("time.not_later", of, late, int(after.size), finding)


def _hashed(identifier: str) -> str:
    return hashlib.sha256(identifier.encode()).hexdigest()[:DIGITS]


def _ranks(values: Values) -> Values:
    """Ranks from 1, the mean of those that tie."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    last: Values = np.cumsum(counts).astype(np.float64)
    return np.asarray((last - (counts - 1) / 2)[at], np.float64)


def _auc(values: Values, positive: NDArray[np.bool_]) -> float:
    """P(a positive is above a negative) + half of P(they tie), or 1 minus that (Mann-Whitney)."""
    n = int(positive.sum())
    above = _ranks(values)[positive].sum() - n * (n + 1) / 2
    area = float(above / (n * (len(positive) - n)))
    return max(area, 1 - area)


def _spearman(values: Values, target: Values) -> float:
    """The size of the correlation of the ranks; 0 for a constant."""
    a, b = _ranks(values), _ranks(target)
    a, b = a - a.mean(), b - b.mean()
    spread = math.sqrt(float(a @ a) * float(b @ b))
    return min(1.0, abs(float(a @ b)) / spread) if spread else 0.0
