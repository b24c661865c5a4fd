"""Compute metrics of the rank of the right answer.

Ranks count from 1 and are pessimistic: entries with the same score as the right answer rank before
it, so that a constant score has no advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.bootstrap import Groups, Values, mean_estimate
from ml.measures.schema import Estimate


def ranks(scores: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of column `expected[i]` in row i of `scores`; a NaN score ranks last."""
    clean = np.where(np.isnan(scores), -np.inf, scores)
    target = clean[np.arange(len(clean)), expected][:, None]
    return np.asarray((clean >= target).sum(axis=1), dtype=np.int64)


def gain_at(positions: NDArray[np.int64], k: int) -> float:
    """Return the share of questions whose right answer is among the first k."""
    return float((positions <= k).mean())


def mean_rank(positions: NDArray[np.int64]) -> float:
    """Return the mean rank of the right answer; 1 is perfect."""
    return float(positions.mean())


METRICS: Mapping[str, Callable[[NDArray[np.int64]], Values]] = {
    "gain_at_1": lambda positions: (positions <= 1).astype(np.float64),
    "gain_at_3": lambda positions: (positions <= 3).astype(np.float64),
    "mean_rank": lambda positions: positions.astype(np.float64),
}


def estimates(
    positions: NDArray[np.int64], seed: int = 0, groups: Groups | None = None
) -> dict[str, Estimate]:
    """Return all `METRICS` with their intervals; raise ValueError without questions."""
    return {name: mean_estimate(score(positions), seed, groups) for name, score in METRICS.items()}
