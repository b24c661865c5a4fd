"""The paired bootstrap: how two models differ on the same units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
SEED = 20_240_229  # fixed, so that the same evidence always gets the same decision
# An interval over fewer groups is not reliable (Cameron, Gelbach and Miller 2008).
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
    rows = np.stack([differences, np.ones(len(units))], axis=1)
    if groups:
        rows = _grouped(rows, [groups.get(unit, "") for unit in units])
    # To draw rows one by one is the same as to draw how often each distinct row occurs. A metric
    # such as gain@1 has three distinct rows, so thousands of questions cost no more than ten.
    distinct, counts = np.unique(rows, axis=0, return_counts=True)
    times = np.random.default_rng(SEED).multinomial(len(rows), counts / len(rows), size=RESAMPLES)
    tail = 100 * (1 - confidence) / 2
    sums, sizes = times @ distinct[:, 0], times @ distinct[:, 1]
    low, high = np.percentile(sums / sizes, [tail, 100 - tail])
    return Difference(float(differences.mean()), float(low), float(high), len(units))


def _grouped(rows: np.ndarray, labels: list[str]) -> np.ndarray:
    """The sum of the rows of every group."""
    names, at = np.unique(labels, return_inverse=True)
    if "" in names:
        raise ValueError("a unit has no group")
    if len(names) < FEWEST_GROUPS:
        raise ValueError(f"{len(names)} groups, at least {FEWEST_GROUPS} are needed")
    return np.stack([np.bincount(at, column) for column in rows.T], axis=1)
