"""Compare the point-in-time join with joins by event time in polars, DuckDB and Feast.

These are polars' `join_asof`, DuckDB's ASOF and, in its own environment, Feast's
`get_historical_features`. The benchmark also joins tables four times as large as the memory limit,
and measures lookups in SQLite while another process writes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import polars as pl

from ml.features.definition import FeatureSet
from ml.features.join import point_in_time, point_in_time_of_files
from ml.features.online import SqliteStore, look_up
from ml.features.timeline import Timeline

_DAY = 86_400 * 10**6  # microseconds
_START = 1_700_000_000 * 10**6
_FEATURES = [f"f{number}" for number in range(5)]
_ENTITIES = 50_000
_ROOT = Path(__file__).parents[1]
_FEAST = _ROOT / ".venv/feast/bin/python"
_TIME = pl.Datetime("us", "UTC")


def _tables(rows: int, labels: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return labels and feature rows of 90 days.

    5 % of the rows arrive two days late on average, the others five minutes.
    """
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


def _by_duckdb(labels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    columns = ", ".join(_FEATURES)
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.register("labels", labels.with_row_index())
        connection.register("rows", rows)
        query = f"""SELECT index, {columns} FROM labels l ASOF LEFT JOIN rows r
            ON l.entity = r.entity AND l.time >= r.event
            ORDER BY index"""
        joined: pl.DataFrame = connection.sql(query).pl()
        return joined


def _by_feast(labels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame | None:
    """Join by Feast and print the seconds, without its start and the reading of the labels.

    Returns None if Feast's environment is missing.
    """
    with TemporaryDirectory() as folder:
        labels.with_row_index("number").write_parquet(f"{folder}/labels.parquet")
        rows.write_parquet(f"{folder}/rows.parquet")
        call = [str(_FEAST), "benchmarks/features_feast.py", folder]
        done = subprocess.run(call, capture_output=True, text=True, cwd=_ROOT, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["killed"]
            print(f"{'Feast':14} ended with {done.returncode}: {lines[-1]}")
            return None
        print(f"{'Feast':14} {float(done.stdout.splitlines()[-1]):.3f} s")
        return pl.read_parquet(f"{folder}/joined.parquet")


def _join_in_parts(labels: pl.DataFrame, rows: pl.DataFrame) -> None:
    """Join with a memory limit of a quarter of the table's size, and print the seconds."""
    memory = int(rows.estimated_size()) // 4
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        rows.write_parquet(path)
        start = time.perf_counter()
        joined = point_in_time_of_files(
            labels,
            [path],
            keys=["entity"],
            time="time",
            timeline=Timeline("event", "arrival"),
            features=_FEATURES,
            lookback=timedelta(days=7),
            memory=memory,
        )
        seconds = time.perf_counter() - start
    assert joined.equals(_point_in_time(labels, rows))
    print(f"in parts: {rows.estimated_size() / memory:.1f} × the memory limit in {seconds:.1f} s")


def _write(feature_set: FeatureSet, path: Path, event: int, values: str) -> None:
    """Write all entities repeatedly, each time with a timestamp a millisecond later."""
    writer = SqliteStore(feature_set, path)
    while True:
        event += 10**6
        writer.put([(f"[{number}]", event, values) for number in range(_ENTITIES)])


def _look_up(lookups: int) -> None:
    """Print the p99 of the time to look up 20 features while another process writes.

    Also prints the p99 of lookups without an involuntary context switch, which excludes the time
    that a lookup waits for a core.
    """
    features = {f"f{number}": "double" for number in range(20)}
    feature_set = FeatureSet(
        file=Path("bench.yml"),
        name="bench",
        version="1",
        keys={"entity": "long"},
        timeline=Timeline("event"),
        features=features,
        lookback=None,
        source_lookback=timedelta(0),
        local_source=None,
        schedule=None,
        code=Path("bench.py"),
        transformer="",
        digest="1" * 64,
    )
    draw = np.random.default_rng(0)
    now = int(datetime.now(UTC).timestamp()) * 10**9
    values = json.dumps(draw.normal(size=20).tolist())
    first = datetime.fromtimestamp(now // 10**9, UTC)
    with TemporaryDirectory() as folder:
        path = Path(folder, "online.sqlite")
        SqliteStore(feature_set, path).put(
            [(f"[{number}]", now, values) for number in range(_ENTITIES)]
        )

        process = multiprocessing.get_context("spawn").Process(
            target=_write, args=(feature_set, path, now, values), daemon=True
        )
        process.start()
        reader = SqliteStore(feature_set, path)
        while look_up(feature_set, reader, {"entity": 0}).event == first:
            pass  # wait for the first write
        wall, cpu, switches = [], [], [_switches()]
        for number in draw.integers(0, _ENTITIES, lookups).tolist():
            start, worked = time.perf_counter(), time.thread_time()
            look_up(feature_set, reader, {"entity": number})
            wall.append(time.perf_counter() - start)
            cpu.append(time.thread_time() - worked)
            switches.append(_switches())
        process.kill()
        process.join()
    alone = np.array(wall)[np.diff(switches) == 0]
    p99, of_cpu, of_alone = (np.quantile(times, 0.99) * 1000 for times in (wall, cpu, alone))
    print(f"look-up of 20 features beside a writer: p99 {p99:.3f} ms, CPU {of_cpu:.3f} ms")
    share, load = 1 - len(alone) / len(wall), os.getloadavg()[0]
    print(f"preempted: {share:.1%}; p99 of the others {of_alone:.3f} ms; load average {load:.1f}")


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def main(quick: bool) -> float:
    """Print the median seconds and the number of differing labels; return ours over polars'."""
    rows, labels = (500_000, 20_000) if quick else (5_000_000, 200_000)
    row_table, label_table = _tables(rows, labels)
    joins = {
        "point in time": _point_in_time,
        "by event time": _by_event,
        "DuckDB ASOF": _by_duckdb,
    }
    seconds: dict[str, list[float]] = {name: [] for name in joins}
    results = {}
    for _ in range(5):
        for name, join in joins.items():
            start = time.perf_counter()
            results[name] = join(label_table, row_table).select(_FEATURES)
            seconds[name].append(time.perf_counter() - start)
    ours, theirs = results["point in time"], results["by event time"]
    changed = ours.get_column("f0").ne_missing(theirs.get_column("f0")).sum()
    print(f"{rows:,} rows × {len(_FEATURES)} features, {labels:,} labels")
    for name, values in seconds.items():
        print(f"{name:14} {statistics.median(values):.3f} s")
    print(f"labels with another value by event time: {changed / labels:.2%}")
    feast = _by_feast(label_table, row_table)
    if feast is not None:
        numbers = feast.get_column("number").cast(pl.Int64)
        print(f"{'':14} returned {len(feast) / labels:.2%} of the labels")
        for name, result in (("point in time", ours), ("by event time", theirs)):
            same = result.get_column("f0").gather(numbers)
            share = feast.get_column("f0").ne_missing(same).sum() / len(feast)
            print(f"{'':14} {share:.2%} of these have another value than {name}")
    _join_in_parts(label_table, row_table)
    _look_up(20_000)
    return statistics.median(seconds["point in time"]) / statistics.median(seconds["by event time"])
