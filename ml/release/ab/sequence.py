"""Confidence sequences: intervals of the difference of two versions, valid at every analysis.

An asymptotic confidence sequence: Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas, "Time-uniform
central limit theory and asymptotic confidence sequences", Annals of Statistics 52 (2024), theorem
2.2 (the boundary, which is Robbins' normal mixture) over the doubly robust scores of a randomised
experiment (section 3.2). However often the data is analysed, and whatever is decided then, the
probability that the interval ever misses the true difference is at most `alpha`, up to the error of
a central limit theorem at the first analysis; tests/release/ab measures it. An exact sequence for
rates (`ml.release.canary.verdict`) needs about twice the outcomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, lambertw, xlog1py, xlogy
from scipy.stats import norm

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
# Outcomes of each version before the first interval; for binary ones, outcomes of either value.
FEWEST = 30
FEWEST_OF_EITHER = 5
# The first outcomes of each version, which only estimate its mean.
_FIRST = 5


@dataclass(frozen=True)
class Sequence:
    """The estimates after each outcome (last axis)."""

    difference: Floats  # B's mean minus A's; NaN while there are too few outcomes
    low: Floats  # ends of the difference's interval, NaN like the difference
    high: Floats
    deviation: Floats  # standard deviation of one score
    counted: Floats  # number of scores


def sequence(
    is_b: Flags, values: Floats, share: float, alpha: float, planned: float, binary: bool
) -> Sequence:
    """Return the sequence over outcomes in the order of arrival; leading axes are simulations.

    `share` is B's probability of assignment, strictly between 0 and 1; the interval is tightest at
    `planned` outcomes.
    """
    centred = values - values[..., :1]  # squares of large numbers lose small differences
    scores, counts = _scores(is_b, centred, share)
    n = np.cumsum(counts, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.cumsum(scores, axis=-1) / n
        variance = np.cumsum(scores**2, axis=-1) / n - mean**2
        # A version with few outcomes may have missed rare values: pool the two spreads.
        pooled = _within(is_b, centred) / (share * (1 - share))
        deviation = np.sqrt(np.maximum(variance, pooled))
        half = deviation * width(n, alpha, planned)
    ready = _ready(is_b, values, binary) & (deviation > 0)
    mean, half = np.where(ready, mean, np.nan), np.where(ready, half, np.nan)
    low, high = mean - half, mean + half
    if binary:
        low, high = np.maximum(low, -1.0), np.minimum(high, 1.0)
    return Sequence(mean, low, high, deviation, n)


def width(n: ArrayLike, alpha: float, planned: float) -> Floats:
    """Return half the interval's width at `n` outcomes, in standard deviations of one score."""
    n = np.asarray(n, dtype=np.float64)
    x = n * best_ratio(alpha) / planned
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.sqrt(2 * (x + 1) / x * np.log(np.sqrt(x + 1) / alpha) / n)
    return np.asarray(half, dtype=np.float64)


def best_ratio(alpha: float) -> float:
    """Return n·rho² for the mixture parameter rho with the narrowest interval at n outcomes.

    Waudby-Smith et al. 2024, appendix B; Howard, Ramdas, McAuliffe, Sekhon 2021, proposition 3.
    """
    return float(-lambertw(-(alpha**2) / math.e, -1).real - 1)


def sample_size(deviation: float, effect: float, alpha: float, power: float) -> int:
    """Return how many outcomes, of both versions, detect a difference of `effect` with that power.

    At `planned` = n outcomes the interval excludes zero when the estimate, normal around the
    effect, is further from zero than half the interval's width. Earlier tests can only add power.
    `deviation` is the standard deviation of one score.
    """
    factor = float(width(1.0, alpha, 1.0)) + float(norm.ppf(power))
    return math.ceil((factor * deviation / effect) ** 2)


def fixed_size(deviation: float, effect: float, alpha: float, power: float) -> int:
    """Return the sample size of a fixed-horizon test, which analyses the data once, at the end.

    (z of 1 − alpha/2 + z of power)² times deviation² / effect² (Fleiss, Levin, Paik 2003,
    "Statistical methods for rates and proportions", chapter 4).
    """
    factor = float(norm.ppf(1 - alpha / 2)) + float(norm.ppf(power))
    return math.ceil((factor * deviation / effect) ** 2)


def score_deviation(a: float, b: float, share: float) -> float:
    """Return the standard deviation of one score, from those of an outcome of A and of B."""
    return math.sqrt(b**2 / share + a**2 / (1 - share))


def _scores(is_b: Flags, values: Floats, share: float) -> tuple[Floats, Floats]:
    """Return the doubly robust scores, whose mean estimates B's mean minus A's, and their weights.

    A weight is 1, or 0 while there are too few earlier outcomes, from which alone the expected
    outcome of either version is estimated.
    """
    before_b, mean_b = _before(is_b, values)
    before_a, mean_a = _before(~is_b, values)
    expected = np.where(is_b, mean_b, mean_a)
    weight = np.where(is_b, 1 / share, -1 / (1 - share))
    counts = ((before_a >= _FIRST) & (before_b >= _FIRST)).astype(np.float64)
    return (mean_b - mean_a + weight * (values - expected)) * counts, counts


def _before(arm: Flags, values: Floats) -> tuple[Floats, Floats]:
    """Return number and mean of the arm's outcomes before each outcome; the mean of none is 0."""
    count: Floats = np.cumsum(arm, axis=-1, dtype=np.float64) - arm
    total = np.cumsum(np.where(arm, values, 0.0), axis=-1) - np.where(arm, values, 0.0)
    return count, total / np.maximum(count, 1)


def _within(is_b: Flags, values: Floats) -> Floats:
    """Return the pooled variance within versions of the outcomes so far, after each outcome."""
    total = np.cumsum(values**2, axis=-1)
    for arm in (is_b, ~is_b):
        count = np.maximum(np.cumsum(arm, axis=-1), 1)
        total = total - np.cumsum(np.where(arm, values, 0.0), axis=-1) ** 2 / count
    return np.asarray(np.maximum(total, 0.0) / np.arange(1, values.shape[-1] + 1))


def _ready(is_b: Flags, values: Floats, binary: bool) -> Flags:
    count_b = np.cumsum(is_b, axis=-1)
    count_a = np.cumsum(~is_b, axis=-1)
    ready = (count_a >= FEWEST + _FIRST) & (count_b >= FEWEST + _FIRST)
    if binary:
        yes = np.cumsum(values, axis=-1)
        ready &= (yes >= FEWEST_OF_EITHER) & (count_a + count_b - yes >= FEWEST_OF_EITHER)
    return np.asarray(ready, dtype=np.bool_)


def imbalance(first: float, second: float, share: float, weight: float = 100.0) -> float:
    """Return the log e-value against "each assignment is to the first with probability `share`".

    It is valid at any time: a Beta mixture around the share over its likelihood (Lindon, Malek
    2022, "Anytime-valid inference for multinomial count data", section 2). `weight` is the
    mixture's number of observations: a wrong one costs power, never the level.
    """
    a, b = weight * share, weight * (1 - share)
    mixture = betaln(first + a, second + b) - betaln(a, b)
    return float(mixture - xlogy(first, share) - xlog1py(second, -share))
