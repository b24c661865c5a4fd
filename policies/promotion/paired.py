"""The paired comparison of two models on the same units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
SEED = 20_240_229  # fixed, so that the same evidence always gets the same decision
# With fewer groups an interval over them is not to be relied on (Cameron, Gelbach and Miller 2008).
FEWEST_GROUPS = 10


@dataclass(frozen=True)
class Difference:
    """Candidate less champion: the mean over `count` units and its bootstrap interval."""

    mean: float
    low: float
    high: float
    count: int


def difference(
    candidate: Mapping[str, float],
    champion: Mapping[str, float],
    confidence: float,
    groups: Mapping[str, str] | None = None,
) -> Difference:
    """The paired percentile bootstrap of the mean difference (Efron and Tibshirani 1993, ch. 13).

    `confidence` is two-sided: 0.95 gives the 2.5th and 97.5th percentiles. With `groups`, unit →
    group, all units of a group are drawn together (Field and Welsh 2007). Raises ValueError when
    the units are not the same ones, there are none, a value is not finite, a unit has no group, or
    there are too few groups.
    """
    if not candidate or candidate.keys() != champion.keys():
        raise ValueError("the two were not measured on the same units")
    units = sorted(candidate)
    differences = np.array([candidate[unit] - champion[unit] for unit in units], dtype=float)
    if not np.isfinite(differences).all():
        raise ValueError("a unit's value is not finite")
    drawn = np.stack([differences, np.ones(len(units))], axis=1)
    if groups:
        drawn = _grouped(drawn, [groups.get(unit, "") for unit in units])
    # Resampling one by one equals drawing how often each distinct sum occurs, and a metric such as
    # gain@1 has three of them: thousands of questions cost no more than ten.
    kinds, counts = np.unique(drawn, axis=0, return_counts=True)
    times = np.random.default_rng(SEED).multinomial(len(drawn), counts / len(drawn), size=RESAMPLES)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(times @ kinds[:, 0] / (times @ kinds[:, 1]), [tail, 100 - tail])
    return Difference(float(differences.mean()), float(low), float(high), len(units))


def _grouped(rows: np.ndarray, labels: list[str]) -> np.ndarray:
    """The sum of the rows of every group."""
    names, at = np.unique(labels, return_inverse=True)
    if "" in names:
        raise ValueError("a unit has no group")
    if len(names) < FEWEST_GROUPS:
        raise ValueError(f"{len(names)} groups, where {FEWEST_GROUPS} are the fewest")
    return np.stack([np.bincount(at, column) for column in rows.T], axis=1)
