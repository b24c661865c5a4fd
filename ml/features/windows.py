"""Windows over the events of an entity: count, sum, mean, distinct, last, time since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml.features.availability import AVAILABLE, EVENT, ROW, placed
from ml.features.timeline import FeatureError, Timeline

SHORTEST, LONGEST = timedelta(hours=1), timedelta(days=90)
# Rows of windows that are in memory at a time: some 40 bytes each.
_CHUNK = 4_000_000

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """A feature over the events of the last `length`, ending with the latest known one."""

    name: str  # of the new column
    function: str  # a key of FUNCTIONS
    length: timedelta  # 1 hour to 90 days
    column: str | None = None  # what it is computed from; `count` and `time_since` need none


def windows(
    rows: pl.DataFrame, features: Sequence[Window], *, keys: Sequence[str], timeline: Timeline
) -> pl.DataFrame:
    """Return the keys, event time, arrival and one column for each window, a row for each arrival.

    When rows of an entity become available, its features are computed from what is known by then:
    the rows available at that moment with an event in (latest - length, latest], where `latest` is
    the latest event known. `timeline.event` is that latest event, and `arrival` the moment. A late
    row thus adds a correction that counts from its arrival; no value uses a row before it arrived.
    Join the result with `Timeline(timeline.event, "arrival")`.

    A value depends on the known rows in the window alone (in the order of event, availability and
    position), so that it is bit-identical however the history is cut into runs.

    `sum` and `mean` ignore nulls (0 and null when nothing is left), `distinct` counts the values
    without nulls, `last` is the value of the latest event, null included, and `time_since` is the
    seconds since the event before the latest one, null without one.

    Time and memory: proportional to the rows in all windows, in chunks of 4 million rows.

    Raises FeatureError for what `placed` rejects and for a window that cannot be computed.
    """
    for feature in features:
        _check(feature, rows)
    known = placed(rows, timeline, keys)
    codes = known.select(pl.struct(keys).rank("dense").cast(pl.Int64)).to_series()
    known = known.with_columns(codes.alias("code")).sort("code", EVENT, AVAILABLE, ROW)
    code, event, available = (
        known.get_column(name).to_physical().to_numpy() for name in ("code", EVENT, AVAILABLE)
    )
    moments = (
        known.select("code", EVENT, AVAILABLE, *keys)
        .sort("code", AVAILABLE)
        .with_columns(pl.col(EVENT).cum_max().over("code"))
        .unique(["code", AVAILABLE], keep="last", maintain_order=True)
    )
    latest = moments.get_column(EVENT).to_physical().to_numpy()
    moment = moments.get_column(AVAILABLE).to_physical().to_numpy()
    entity = moments.get_column("code").to_numpy()
    place = _Places(code, event)
    ends = place.after(entity, latest)
    columns = {}
    for feature in features:
        length = feature.length // timedelta(microseconds=1) * 1000
        starts = place.after(entity, latest - length)
        values = known.get_column(feature.column) if feature.column else known.get_column(EVENT)
        parts = [
            FUNCTIONS[feature.function](values, event, segments)
            for segments in _segments(starts, ends, available, moment)
        ]
        columns[feature.name] = (
            pl.concat(parts)
            if parts
            else FUNCTIONS[feature.function](
                values, event, Segments(np.empty(0, np.int64), np.zeros(1, np.int64))
            )
        )
    times = [pl.col(EVENT).alias(timeline.event), pl.col(AVAILABLE).alias("arrival")]
    return moments.select(*keys, *times).with_columns(
        column.alias(name) for name, column in columns.items()
    )


def _check(feature: Window, rows: pl.DataFrame) -> None:
    name = f"window `{feature.name}`"
    if feature.function not in FUNCTIONS:
        expected = f"one of {', '.join(FUNCTIONS)}"
        raise FeatureError("unknown-function", f"{name}: `{feature.function}`", expected)
    if not SHORTEST <= feature.length <= LONGEST:
        raise FeatureError("window-length", f"{name}: {feature.length}", "1 hour to 90 days")
    if feature.column is None:
        if feature.function not in ("count", "time_since"):
            raise FeatureError("missing-column", f"{name} has no column", "a column")
    elif feature.column not in rows.columns:
        raise FeatureError("missing-column", f"{name}: no column `{feature.column}`", "a column")
    elif (
        feature.function in ("sum", "mean")
        and not rows.get_column(feature.column).dtype.is_numeric()
    ):
        kind = rows.get_column(feature.column).dtype
        raise FeatureError("wrong-type", f"{name}: `{feature.column}` is {kind}", "numbers")


class _Places:
    """Where an entity's events after a time begin, among rows sorted by entity and event."""

    def __init__(self, code: _Numbers, event: _Numbers) -> None:
        # Ranks instead of times: entity and time together may not fit in 64 bits.
        self.times, ranks = np.unique(event, return_inverse=True)
        self.entities = code * (len(self.times) + 1)
        self.sorted = self.entities + ranks

    def after(self, code: _Numbers, time: _Numbers) -> _Numbers:
        """Return the position after the entity's last event at or before each time."""
        ranks = np.searchsorted(self.times, time, side="right") - 1
        return np.searchsorted(self.sorted, code * (len(self.times) + 1) + ranks, side="right")


@dataclass(frozen=True)
class Segments:
    """Rows of several windows, one window after the other."""

    rows: _Numbers  # positions in the sorted table
    bounds: _Numbers  # windows + 1: window i has rows[bounds[i] : bounds[i + 1]]; never empty

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add the values of each window, in their order."""
        return (
            np.add.reduceat(values[self.rows], self.bounds[:-1]) if len(self.rows) else values[:0]
        )

    def counts(self) -> _Numbers:
        """Return the number of rows of each window."""
        return np.diff(self.bounds)


def _segments(
    starts: _Numbers, ends: _Numbers, available: _Numbers, moment: _Numbers
) -> Iterator[Segments]:
    """Yield the rows known at each moment, some windows at a time."""
    sizes = ends - starts
    total = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = total[first - 1] if first else 0
        last = max(int(np.searchsorted(total, before + _CHUNK, side="right")), first + 1)
        chunk = slice(first, last)
        owner = np.repeat(np.arange(last - first), sizes[chunk])
        offset = np.arange(len(owner)) - np.repeat(
            total[chunk] - sizes[chunk] - before, sizes[chunk]
        )
        rows = starts[chunk][owner] + offset
        is_known = available[rows] <= moment[chunk][owner]
        counts = np.bincount(owner[is_known], minlength=last - first)
        yield Segments(rows[is_known], np.concatenate([[0], np.cumsum(counts)]))
        first = last


def _count(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    return pl.Series(segments.counts(), dtype=pl.Int64)


def _numbers(values: pl.Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    numbers = values.cast(pl.Float64)
    return numbers.fill_null(0.0).to_numpy(), numbers.is_not_null().cast(pl.Float64).to_numpy()


def _sum(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    return pl.Series(segments.sums(_numbers(values)[0]), dtype=pl.Float64)


def _mean(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    numbers, present = _numbers(values)
    total, count = pl.Series(segments.sums(numbers)), pl.Series(segments.sums(present))
    return pl.select(pl.when(count > 0).then(total / count)).to_series().cast(pl.Float64)


def _distinct(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    owner = np.repeat(np.arange(len(segments.bounds) - 1), segments.counts())
    codes = values.rank("dense").cast(pl.Int64)[segments.rows]
    pairs = pl.DataFrame({"owner": owner, "code": codes}).drop_nulls().unique()
    counts = np.bincount(pairs.get_column("owner").to_numpy(), minlength=len(segments.bounds) - 1)
    return pl.Series(counts, dtype=pl.Int64)


def _last(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    return values[segments.rows[segments.bounds[1:] - 1]]


def _time_since(values: pl.Series, event: _Numbers, segments: Segments) -> pl.Series:
    """Repeated events are one: `before` is the last row with another event than the latest."""
    times = event[segments.rows]
    owner = np.repeat(np.arange(len(segments.bounds) - 1), segments.counts())
    latest = times[segments.bounds[1:] - 1]
    earlier = np.where(times < latest[owner], times, np.iinfo(np.int64).min)
    if not len(times):
        return pl.Series([], dtype=pl.Float64)
    before = np.maximum.reduceat(earlier, segments.bounds[:-1])
    gap = np.where(before > np.iinfo(np.int64).min, (latest - before) / 1e9, np.nan)
    return pl.Series(gap).fill_nan(None)


FUNCTIONS: dict[str, Callable[[pl.Series, _Numbers, Segments], pl.Series]] = {
    "count": _count,
    "sum": _sum,
    "mean": _mean,
    "distinct": _distinct,
    "last": _last,
    "time_since": _time_since,
}
