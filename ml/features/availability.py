"""Compute when each row of a source happened and since when it could be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import polars as pl
from polars import selectors

from ml.features.timeline import FeatureError, Timeline

# Names of this package's own columns.
EVENT = "__event__"
AVAILABLE = "__available__"
ROW = "__row__"
# 64 bits of nanoseconds reach from 1677 to 2262; the rest is for delays and windows.
_YEARS = (1700, 2200)


def instants(table: pl.DataFrame, column: str) -> pl.Series:
    """Return a column of times as nanoseconds in UTC.

    Raises FeatureError if the column is missing or has no time zone, an empty cell, or a time
    outside the years of `_YEARS`. A zone is required because a local time is ambiguous at the end
    of daylight saving time.
    """
    check_table(table)
    if column not in table.columns:
        names = ", ".join(table.columns)
        raise FeatureError("missing-column", f"there is no column `{column}`", f"one of {names}")
    series = table.get_column(column)
    kind = series.dtype
    if not isinstance(kind, pl.Datetime):
        raise FeatureError("wrong-type", f"`{column}` is {kind}", "a datetime with a time zone")
    if kind.time_zone is None:
        expected = "times with a zone, such as 2026-01-31T09:00:00Z"
        raise FeatureError("no-time-zone", f"`{column}` has no time zone", expected)
    row = first_row(series.is_null())
    if row is not None:
        raise FeatureError("empty-time", f"`{column}` is empty", "a time in each row", row)
    row = first_row(~series.dt.year().is_between(*_YEARS))
    if row is not None:
        expected = f"a year from {_YEARS[0]} to {_YEARS[1]}"
        raise FeatureError("time-out-of-range", f"`{column}` is {series[row]}", expected, row)
    return series.dt.convert_time_zone("UTC").dt.cast_time_unit("ns")


def check_table(table: object) -> None:
    """Raise FeatureError unless the table is a polars DataFrame."""
    if not isinstance(table, pl.DataFrame):
        kind = f"{type(table).__module__.partition('.')[0]} {type(table).__name__}"
        expected = "a DataFrame of polars: pl.from_pandas(table), or lazy_frame.collect()"
        raise FeatureError("wrong-type", f"a table is a {kind}", expected)


def check_key(table: pl.DataFrame, key: str) -> None:
    """Raise FeatureError if the table lacks the key's column or a row lacks its value."""
    if key not in table.columns:
        message = f"the table has no column for the key `{key}`"
        raise FeatureError("missing-column", message, "a column for each key")
    row = first_row(table.get_column(key).is_null())
    if row is not None:
        raise FeatureError("empty-key", f"`{key}` is empty", "a key in each row", row)


def first_row(matches: pl.Series) -> int | None:
    """Return the position of the first true value; None if there is none."""
    return matches.arg_max() if matches.any() else None


def span(length: timedelta) -> pl.Expr:
    """Return a duration in nanoseconds; polars rounds times if it is in microseconds."""
    return pl.lit(length, dtype=pl.Duration("us")).dt.cast_time_unit("ns")


def availability_columns(timeline: Timeline) -> tuple[pl.Expr, pl.Expr]:
    """Return the expressions of `EVENT` and `AVAILABLE`, for rows that were checked already."""
    event, arrival = (
        pl.col(name).dt.convert_time_zone("UTC").dt.cast_time_unit("ns")
        for name in (timeline.event, timeline.arrival or timeline.event)
    )
    available = pl.max_horizontal(event + span(timeline.delay), arrival)
    return event.alias(EVENT), available.alias(AVAILABLE)


def with_availability(rows: pl.DataFrame, timeline: Timeline, keys: Sequence[str]) -> pl.DataFrame:
    """Add the columns `EVENT` and `AVAILABLE` (in the unit of `instants`) and `ROW`, the position.

    Raises FeatureError for what `instants` rejects, an empty key, a NaN or infinite number in any
    column (nulls are allowed), and a negative delay.
    """
    check_table(rows)
    if timeline.delay < timedelta(0):
        raise FeatureError("negative-delay", f"the delay is {timeline.delay}", "zero or more")
    if not keys:
        raise FeatureError("no-keys", "there are no keys", "at least one column")
    if ROW in rows.columns:
        raise FeatureError("reserved-column", f"there is a column `{ROW}`", "another name")
    for key in keys:
        check_key(rows, key)
    for name in (timeline.event, timeline.arrival or timeline.event):
        instants(rows, name)
    for numbers in rows.select(selectors.float()):
        row = first_row(~numbers.is_finite())
        if row is not None:
            message = f"`{numbers.name}` is {numbers[row]}"
            raise FeatureError("not-finite", message, "a finite number, or null", row)
    return rows.with_columns(availability_columns(timeline)).with_row_index(ROW)


@contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """Turn errors raised while reading the file into FeatureError."""
    try:
        yield
    # polars panics over some corrupt Parquet files.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        problem = " ".join(str(error).split())
        raise FeatureError("unreadable-file", f"{path}: {problem}", expected) from error
