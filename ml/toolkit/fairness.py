"""How far a metric lies apart between slices of the data, by Fairlearn's MetricFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.toolkit.metrics import METRICS

# Slices of fewer units are not compared: their difference is mostly chance.
FEWEST = 20


def disparities(
    found: NDArray[np.int64], slices: Sequence[str], split: str, fewest: int = FEWEST
) -> dict[str, dict[str, Any]]:
    """For every metric of `METRICS` the difference between the highest and the lowest slice.

    `found` holds the rank of every unit of `split`, `slices` where it belongs. Empty when fewer
    than two slices have `fewest` units. See
    https://fairlearn.org/main/user_guide/assessment/perform_fairness_assessment.html
    """
    labels = np.asarray(slices)
    names, counts = np.unique(labels, return_counts=True)
    compared = names[counts >= fewest]
    if len(compared) < 2:
        return {}
    from fairlearn.metrics import MetricFrame  # 1.3 s: it imports pandas and scikit-learn

    kept = np.isin(labels, compared)
    frame = MetricFrame(
        metrics={name: _mean_of(name) for name in METRICS},
        y_true=found[kept],
        y_pred=found[kept],
        sensitive_features=labels[kept],
    )
    apart = frame.difference(method="between_groups")
    return {
        name: {
            "split": split,
            "difference": float(apart[name]),
            "lowest": str(frame.by_group[name].astype(float).idxmin()),
            "highest": str(frame.by_group[name].astype(float).idxmax()),
            "slices": len(compared),
        }
        for name in METRICS
    }


def _mean_of(metric: str) -> Any:
    # Fairlearn hands over truth and prediction; a rank has both in it.
    return lambda _, found: float(METRICS[metric](np.asarray(found)).mean())
