"""Confidence intervals by a seeded bootstrap over the right unit.

What is drawn is what is independent: a question, or, where several rows hang together, all rows of
an entity or of a block of time at once. Drawn row by row, such rows look like more evidence than
they are, and the interval is too narrow (Field and Welsh 2007, "Bootstrapping clustered data").
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.schema import Estimate

Values = NDArray[np.float64]
# One label a row: rows with the same label hang together.
Groups = Sequence[str] | NDArray[Any]
SAMPLES = 2000
LEVEL = 0.95
# So many numbers of one chunk of draws are held at once.
_HELD = 500_000
# With fewer groups an interval over them is unreliable (Cameron, Gelbach and Miller 2008).
FEWEST_GROUPS = 10


def enough_groups(groups: Sequence[str]) -> bool:
    """Whether an interval over rows with these labels can be relied on; "" is not a group."""
    return not any(groups) or len(set(groups)) >= FEWEST_GROUPS


def resampled_means(
    values: Values, seed: int = 0, samples: int = SAMPLES, groups: Groups | None = None
) -> Values:
    """(samples, columns): the bootstrap means of each column of `values`.

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
    """Draws with replacement of `count` rows, or of whole groups of them (a label a row): how often
    each row was drawn, in chunks (draws, rows). Raises ValueError for fewer than `FEWEST_GROUPS`
    groups.
    """
    at = None if groups is None else _numbered(groups)
    among = count if at is None else int(at.max()) + 1
    rng, chunk = np.random.default_rng(seed), max(1, _HELD // count)
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        # To draw rows and count them is many times faster than `rng.multinomial`.
        drawn = rng.integers(among, size=(size, among)) + among * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * among).reshape(size, among)
        yield (times if at is None else times.take(at, axis=1)).astype(np.float64)


def weighted_sums(times: Values, values: Values) -> Values:
    """The sum of the values in each draw. Not `times @ values`: the threads of a BLAS wait for each
    other on a machine that is busy.
    """
    return np.asarray(np.einsum("ij,j->i", times, values))


def _numbered(groups: Groups) -> NDArray[np.int64]:
    """The number of the group of every row."""
    labels, at = np.unique(np.asarray(groups), return_inverse=True)
    if len(labels) < FEWEST_GROUPS:
        raise ValueError(f"{len(labels)} groups, where {FEWEST_GROUPS} are the fewest")
    return np.asarray(at, dtype=np.int64)


def bounds(drawn: Values) -> tuple[float, float]:
    """The percentiles, outwards to the next draw: not interpolated, so infinity may occur."""
    ordered = np.sort(drawn)
    last = len(ordered) - 1
    low, high = math.floor((1 - LEVEL) / 2 * last), math.ceil((1 + LEVEL) / 2 * last)
    return float(ordered[low]), float(ordered[high])


def mean_estimate(values: Values, seed: int = 0, groups: Groups | None = None) -> Estimate:
    """The mean with its percentile-bootstrap interval (Efron 1979)."""
    if not len(values):
        raise ValueError("no question to measure on")
    low, high = bounds(resampled_means(values[:, None], seed, groups=groups)[:, 0])
    return Estimate(float(values.mean()), low, high, len(values))
