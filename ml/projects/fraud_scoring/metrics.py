"""Metrics of the cost of errors and of the decisions at the cost-based threshold of `costs.py`.

A missed fraud costs its amount; a false alarm costs a review. Each transaction has its own
threshold, which depends on its amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.metrics import CustomMetric, ScoredRows
from ml.projects.fraud_scoring.costs import REVIEW, threshold

Columns = Mapping[str, NDArray[Any]]


def _of(scored: ScoredRows, columns: Columns) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return three arrays (rows,): 1 for fraud, 1 for a reviewed row, and the amount."""
    amount = columns["amount"].astype(np.float64)
    return (
        scored.ones,
        np.asarray(scored.score > np.vectorize(threshold)(amount), np.float64),
        amount,
    )


def cost(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (rows, 2): the cost of each row's error, and its fraud cost without any review."""
    fraud, review, amount = _of(scored, columns)
    return np.stack(
        [fraud * (1 - review) * amount + (1 - fraud) * review * REVIEW, fraud * amount], axis=1
    )


def reviewed(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (rows,): 1 for a reviewed transaction, else 0; the mean is the selection rate."""
    return np.asarray(_of(scored, columns)[1])


def caught(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (rows, 2) flags: reviewed fraud, fraud.

    The ratio of their sums is the true positive rate.
    """
    fraud, review, _ = _of(scored, columns)
    return np.stack([fraud * review, fraud], axis=1)


def false_alarms(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (rows, 2) flags: reviewed non-fraud, non-fraud.

    The ratio of their sums is the false positive rate.
    """
    fraud, review, _ = _of(scored, columns)
    return np.stack([(1 - fraud) * review, 1 - fraud], axis=1)


METRICS: dict[str, CustomMetric] = {
    "cost": CustomMetric("minimize", (0, 1), cost, ratio=True),
    "reviewed": CustomMetric("minimize", (0, 1), reviewed),
    "caught": CustomMetric("maximize", (0, 1), caught, ratio=True),
    "false_alarms": CustomMetric("minimize", (0, 1), false_alarms, ratio=True),
}
