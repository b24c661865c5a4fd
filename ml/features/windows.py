"""Compute windows over an entity's events: count, sum, mean, distinct, last, time since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml.features.availability import AVAILABLE, EVENT, ROW, with_availability
from ml.features.timeline import LONGEST, SHORTEST, FeatureError, Timeline, source_lookback_limit

# Maximum of window rows in memory.
_CHUNK = 4_000_000
_CODE, _WINDOW = "__code__", "__window__"

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
    """Return a row per entity and time of availability: keys, event time, arrival and windows.

    Each time that rows of an entity become available, its features are computed from all rows
    available by then with an event in (latest - length, latest]. `latest` is the latest event
    known then. Column `timeline.event` has `latest`, and `arrival` the time of availability, so a
    late row adds a correction that counts from its arrival. Join the result with
    `Timeline(timeline.event, "arrival")`.

    Rows are aggregated in the order of event, availability and position. A value is therefore
    bit-identical however the history is split into runs.

    `sum` and `mean` ignore nulls (0 and null when nothing is left), `distinct` counts the values
    without nulls, `last` is the value of the latest event, null included, and `time_since` is the
    seconds since the event before the latest one, null without one.

    Time: proportional to the rows in all windows. Memory: 4 million of them.

    Raises FeatureError if `with_availability` rejects the rows or a window is invalid.
    """
    columns_of_result = [*keys, timeline.event, "arrival", *(feature.name for feature in features)]
    for name in columns_of_result:
        if columns_of_result.count(name) > 1:
            raise FeatureError("column-twice", f"two columns are called `{name}`", "other names")
    for feature in features:
        _check(feature, rows)
    sorted_rows = with_availability(rows, timeline, keys)
    codes = sorted_rows.select(pl.struct(keys).rank("dense").cast(pl.Int64).alias(_CODE))
    sorted_rows = sorted_rows.hstack(codes).sort(_CODE, EVENT, AVAILABLE, ROW)
    code, event, available = (
        sorted_rows.get_column(name).to_physical().to_numpy() for name in (_CODE, EVENT, AVAILABLE)
    )
    availability = (
        sorted_rows.select(_CODE, EVENT, AVAILABLE, *keys)
        .sort(_CODE, AVAILABLE)
        .with_columns(pl.col(EVENT).cum_max().over(_CODE))
        .unique([_CODE, AVAILABLE], keep="last", maintain_order=True)
    )
    entity, latest, available_at = (
        availability.get_column(name).to_physical().to_numpy() for name in (_CODE, EVENT, AVAILABLE)
    )
    # Ranks instead of times: entity and time together may not fit in 64 bits.
    times, ranks = np.unique(event, return_inverse=True)
    places = code * (len(times) + 1) + ranks

    def after(time: _Numbers) -> _Numbers:
        """Return the position after the entity's last event at or before each time."""
        ranks = np.searchsorted(times, time, side="right") - 1
        return np.searchsorted(places, entity * (len(times) + 1) + ranks, side="right")

    ends, columns = after(latest), dict[str, pl.Series]()
    for length in dict.fromkeys(feature.length for feature in features):
        starts = after(latest - length // timedelta(microseconds=1) * 1000)
        values = [feature for feature in features if feature.length == length]
        total = np.concatenate([[0], np.cumsum(ends - starts)])
        parts, first = list[pl.DataFrame](), 0
        while first < len(ends) or not parts:
            last = int(np.searchsorted(total, total[first] + _CHUNK, side="right")) - 1
            last = min(max(last, first + 1), len(ends))
            sizes = (ends - starts)[first:last]
            window = np.repeat(np.arange(first, last), sizes)
            row = np.arange(len(window)) + (starts[first:last] - total[first:last])[window - first]
            row += total[first] if len(window) else 0
            is_known = available[row] <= available_at[window]
            of_windows = sorted_rows[row[is_known]].with_columns(
                pl.Series(_WINDOW, window[is_known]).set_sorted()
            )
            parts.append(
                of_windows.group_by(_WINDOW, maintain_order=True).agg(
                    FUNCTIONS[value.function](pl.col(value.column or EVENT)).alias(value.name)
                    for value in values
                )
            )
            first = last
        columns |= {series.name: series for series in pl.concat(parts).drop(_WINDOW)}
    stamps = [pl.col(EVENT).alias(timeline.event), pl.col(AVAILABLE).alias("arrival")]
    return availability.select(*keys, *stamps).hstack(
        [columns[feature.name] for feature in features]
    )


def _check(feature: Window, rows: pl.DataFrame) -> None:
    name = f"window `{feature.name}`"
    if feature.function not in FUNCTIONS:
        expected = f"one of {', '.join(FUNCTIONS)}"
        raise FeatureError("unknown-function", f"{name}: `{feature.function}`", expected)
    is_length = isinstance(feature.length, timedelta)
    if not is_length or not SHORTEST <= feature.length <= LONGEST:
        expected = "a timedelta of 1 hour to 90 days"
        raise FeatureError("window-length", f"{name}: {feature.length}", expected)
    limit = source_lookback_limit.get()
    if limit is not None and feature.length > limit:
        expected = f"at most `source_lookback`, {limit}"
        raise FeatureError("window-length", f"{name}: {feature.length}", expected)
    if feature.column is None:
        if feature.function not in ("count", "time_since"):
            raise FeatureError("missing-column", f"{name} has no column", "a column")
    elif feature.column not in rows.columns:
        raise FeatureError("missing-column", f"{name}: no column `{feature.column}`", "a column")
    elif feature.function in ("sum", "mean"):
        kind = rows.schema[feature.column]
        if not kind.is_numeric() and kind != pl.Null:  # the type of a column without a value
            raise FeatureError("wrong-type", f"{name}: `{feature.column}` is {kind}", "numbers")


def _sum(values: pl.Expr) -> pl.Expr:
    return values.cast(pl.Float64).fill_null(0.0).sum()


def _time_since(values: pl.Expr) -> pl.Expr:
    """Return the seconds since the previous event; rows with an equal event time count as one."""
    latest = pl.col(EVENT).max()
    before = pl.col(EVENT).filter(pl.col(EVENT) < latest).max()
    return (latest - before).dt.total_nanoseconds() / 1e9


# Their types are also in `WINDOW_TYPES` of ml/specs/check/transformations.py.
FUNCTIONS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "count": lambda values: pl.len().cast(pl.Int64),
    "sum": _sum,
    "mean": lambda values: pl.when(values.count() > 0).then(_sum(values) / values.count()),
    "distinct": lambda values: values.drop_nulls().n_unique().cast(pl.Int64),
    "last": lambda values: values.last(),
    "time_since": _time_since,
}
