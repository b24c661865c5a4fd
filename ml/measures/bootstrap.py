"""Compute confidence intervals by a seeded bootstrap over independent units.

The bootstrap draws independent units: a question, or, if rows are dependent, all rows of an
entity or of a block of time at once. Drawing dependent rows one by one would overstate the
evidence, and the interval would be too narrow (Field and Welsh 2007, "Bootstrapping clustered
data").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.schema import Estimate

Values = NDArray[np.float64]
# One label per row; rows with the same label are drawn together.
Groups = Sequence[str] | NDArray[Any]
SAMPLES = 2000
LEVEL = 0.95
# Maximum number of values of a chunk of draws, to limit memory.
_HELD = 500_000
# With fewer groups an interval over them is unreliable (Cameron, Gelbach and Miller 2008).
FEWEST_GROUPS = 10


def enough_groups(groups: Sequence[str]) -> bool:
    """Return whether an interval over rows with these group labels is reliable; "" is no group."""
    return not any(groups) or len(set(groups)) >= FEWEST_GROUPS


def resampled_means(
    values: Values, seed: int = 0, samples: int = SAMPLES, groups: Groups | None = None
) -> Values:
    """Return the bootstrap means (samples, columns) of each column of `values`.

    Every column uses the same draws (`drawn_times`), so differences between columns are paired.
    """
    return np.concatenate(
        [
            np.stack([weighted_sums(times, column) for column in values.T], axis=1)
            / times.sum(axis=1, keepdims=True)
            for times in drawn_times(len(values), seed, groups, samples)
        ]
    )


def drawn_times(
    count: int, seed: int = 0, groups: Groups | None = None, samples: int = SAMPLES
) -> Iterator[Values]:
    """Yield how often each of `count` rows is drawn, in chunks (draws, rows).

    Rows, or with `groups` (one label per row) whole groups, are drawn with replacement. Raises
    ValueError for fewer than `FEWEST_GROUPS` groups.
    """
    numbers = None if groups is None else _numbered(groups)
    among = count if numbers is None else int(numbers.max()) + 1
    rng, chunk = np.random.default_rng(seed), max(1, _HELD // count)
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        # Drawing and counting rows is many times faster than `rng.multinomial`.
        drawn = rng.integers(among, size=(size, among)) + among * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * among).reshape(size, among)
        yield (times if numbers is None else times.take(numbers, axis=1)).astype(np.float64)


def weighted_sums(times: Values, values: Values) -> Values:
    """Return the weighted sum of `values` (rows,) in each draw, given `times` (draws, rows).

    It avoids `times @ values`, since BLAS threads wait for each other on a busy machine.
    """
    return np.asarray(np.einsum("ij,j->i", times, values))


def _numbered(groups: Groups) -> NDArray[np.int64]:
    """Return the group number of every row."""
    labels, inverse = np.unique(np.asarray(groups), return_inverse=True)
    if len(labels) < FEWEST_GROUPS:
        raise ValueError(f"{len(labels)} groups, expected at least {FEWEST_GROUPS}")
    return np.asarray(inverse, dtype=np.int64)


def bounds(drawn: Values) -> tuple[float, float]:
    """Return the ends of the percentile interval, rounded outwards to actual draws.

    Without interpolation, infinite draws are supported.
    """
    ordered = np.sort(drawn)
    last = len(ordered) - 1
    low, high = math.floor((1 - LEVEL) / 2 * last), math.ceil((1 + LEVEL) / 2 * last)
    return float(ordered[low]), float(ordered[high])


def mean_estimate(values: Values, seed: int = 0, groups: Groups | None = None) -> Estimate:
    """Return the mean with its percentile-bootstrap interval (Efron 1979)."""
    if not len(values):
        raise ValueError("no question to measure on")
    low, high = bounds(resampled_means(values[:, None], seed, groups=groups)[:, 0])
    return Estimate(float(values.mean()), low, high, len(values))
