"""The point-in-time join beside polars' `join_asof` by event time, on the same columns."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import numpy as np
import polars as pl

from ml.features.join import point_in_time
from ml.features.timeline import Timeline

_DAY = 86_400 * 10**6  # microseconds
_START = 1_700_000_000 * 10**6
_FEATURES = [f"f{number}" for number in range(5)]
_ENTITIES = 50_000
_TIME = pl.Datetime("us", "UTC")


def _tables(rows: int, labels: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Events of 90 days; 5 % arrive late, two days on average, the others five minutes."""
    draw = np.random.default_rng(0)
    event = _START + draw.integers(0, 90 * _DAY, rows)
    late = draw.random(rows) < 0.05
    delay = np.where(late, draw.exponential(2 * _DAY, rows), draw.exponential(3e8, rows))
    columns = {
        "entity": draw.integers(0, _ENTITIES, rows),
        "event": pl.Series(event).cast(_TIME),
        "arrival": pl.Series(event + delay.astype(np.int64)).cast(_TIME),
        **{name: draw.normal(size=rows) for name in _FEATURES},
    }
    moments = _START + draw.integers(0, 95 * _DAY, labels)
    entities = draw.integers(0, _ENTITIES + 2000, labels)
    return pl.DataFrame(columns), pl.DataFrame(
        {"entity": entities, "time": pl.Series(moments).cast(_TIME)}
    )


def _point_in_time(labels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    return point_in_time(
        labels,
        rows,
        keys=["entity"],
        time="time",
        timeline=Timeline("event", "arrival"),
        features=_FEATURES,
        lookback=timedelta(days=7),
    )


def _by_event(labels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    joined = (
        labels.with_row_index()
        .sort("time")
        .join_asof(
            rows.select("entity", "event", *_FEATURES).sort("event"),
            left_on="time",
            right_on="event",
            by="entity",
            tolerance="7d",
            check_sortedness=False,
        )
    )
    return joined.sort("index")


def main(quick: bool) -> float:
    """Print the medians in seconds and the labels that differ; the ratio is ours over polars'."""
    rows, labels = (500_000, 20_000) if quick else (5_000_000, 200_000)
    row_table, label_table = _tables(rows, labels)
    seconds: dict[str, list[float]] = {"point in time": [], "by event time": []}
    results = {}
    for _ in range(5):
        for name, join in (("point in time", _point_in_time), ("by event time", _by_event)):
            start = time.perf_counter()
            results[name] = join(label_table, row_table).select(_FEATURES)
            seconds[name].append(time.perf_counter() - start)
    ours, theirs = results.values()
    other = ours.get_column("f0").ne_missing(theirs.get_column("f0")).sum()
    print(f"{rows:,} rows × {len(_FEATURES)} features, {labels:,} labels")
    for name, values in seconds.items():
        print(f"{name:14} {statistics.median(values):.3f} s")
    print(f"labels with another value by event time: {other / labels:.2%}")
    return statistics.median(seconds["point in time"]) / statistics.median(seconds["by event time"])
