"""Metrics of what errors cost, and of the decisions at the threshold that follows from the costs.

A fraud that is missed costs its amount, and a false alarm costs a review. A transaction is reviewed
where that is expected to cost less: the threshold of its probability follows from its amount.
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
    """Return 1 for each fraud, 1 for each review, and the amounts."""
    amount = columns["amount"].astype(np.float64)
    return (
        scored.ones,
        np.asarray(scored.score > np.vectorize(threshold)(amount), np.float64),
        amount,
    )


def cost(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return what errors cost, and what frauds cost without reviews, of each transaction."""
    fraud, review, amount = _of(scored, columns)
    return np.stack(
        [fraud * (1 - review) * amount + (1 - fraud) * review * REVIEW, fraud * amount], axis=1
    )


def reviewed(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return 1 for each transaction that is reviewed: the mean is the selection rate."""
    return np.asarray(_of(scored, columns)[1])


def caught(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (reviewed frauds, frauds): their ratio is the true positive rate."""
    fraud, review, _ = _of(scored, columns)
    return np.stack([fraud * review, fraud], axis=1)


def false_alarms(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """Return (other reviews, other transactions): their ratio is the false positive rate."""
    fraud, review, _ = _of(scored, columns)
    return np.stack([(1 - fraud) * review, 1 - fraud], axis=1)


METRICS: dict[str, CustomMetric] = {
    "cost": CustomMetric("minimize", (0, 1), cost, ratio=True),
    "reviewed": CustomMetric("minimize", (0, 1), reviewed),
    "caught": CustomMetric("maximize", (0, 1), caught, ratio=True),
    "false_alarms": CustomMetric("minimize", (0, 1), false_alarms, ratio=True),
}
