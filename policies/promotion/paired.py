"""The paired comparison of two models on the same units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
SEED = 20_240_229  # fixed, so that the same evidence always gets the same decision


@dataclass(frozen=True)
class Difference:
    """Candidate less champion: the mean over `count` units and its bootstrap interval."""

    mean: float
    low: float
    high: float
    count: int


def difference(
    candidate: Mapping[str, float], champion: Mapping[str, float], confidence: float
) -> Difference:
    """The paired percentile bootstrap of the mean difference (Efron and Tibshirani 1993, ch. 13).

    `confidence` is two-sided: 0.95 gives the 2.5th and 97.5th percentiles. Raises ValueError when
    the units are not the same ones, there are none, or a value is not finite.
    """
    if not candidate or candidate.keys() != champion.keys():
        raise ValueError("the two were not measured on the same units")
    units = sorted(candidate)
    differences = np.array([candidate[unit] - champion[unit] for unit in units], dtype=float)
    if not np.isfinite(differences).all():
        raise ValueError("a unit's value is not finite")
    # Resampling units one by one equals drawing how often each distinct difference occurs, and a
    # metric such as gain@1 has three of them: thousands of questions cost no more than ten.
    values, counts = np.unique(differences, return_counts=True)
    draws = np.random.default_rng(SEED).multinomial(len(units), counts / len(units), size=RESAMPLES)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(draws @ values / len(units), [tail, 100 - tail])
    return Difference(float(differences.mean()), float(low), float(high), len(units))
