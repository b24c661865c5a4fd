"""Measure the differences of metrics between slices, with Fairlearn's MetricFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.metrics import Metric, ScoredRows, value, values
from ml.measures.schema import Disparity

# Minimum number of units of a slice; the differences of smaller slices are mostly chance.
FEWEST = 20


def differences(
    metrics: Mapping[str, Metric],
    scored: ScoredRows,
    slices: Sequence[str],
    split: str,
    fewest: int = FEWEST,
) -> dict[str, Disparity]:
    """Return, for every metric, the difference between the highest and the lowest slice.

    `slices` has the slice of each unit of `split`. Slices with fewer than `fewest` units, or on
    which the metric is undefined, are skipped; a metric with fewer than two remaining slices is
    omitted. See https://fairlearn.org/main/user_guide/assessment/perform_fairness_assessment.html
    """
    labels = np.asarray(slices)
    names, counts = np.unique(labels, return_counts=True)
    large = names[counts >= fewest]
    gaps = {}
    for name, metric in metrics.items():
        compared = [label for label in large if values({name: metric}, scored[labels == label])]
        if len(compared) >= 2:
            gaps[name] = _difference(metric, scored, labels, compared, split)
    return gaps


def _difference(
    metric: Metric, scored: ScoredRows, labels: NDArray[Any], compared: Sequence[str], split: str
) -> Disparity:
    from fairlearn.metrics import MetricFrame  # 1.3 s: it imports pandas and scikit-learn

    rows = np.flatnonzero(np.isin(labels, compared))
    # Fairlearn passes labels and predictions; pass row numbers as both.
    frame = MetricFrame(
        metrics=lambda numbers, _: value(metric, scored[np.asarray(numbers)]),
        y_true=rows,
        y_pred=rows,
        sensitive_features=labels[rows],
    )
    by_slice = frame.by_group.astype(float)
    return Disparity(
        split,
        float(frame.difference(method="between_groups")),
        lowest=str(by_slice.idxmin()),
        highest=str(by_slice.idxmax()),
        slices=len(compared),
    )
