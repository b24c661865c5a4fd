"""The point-in-time join of files that are larger than memory, by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from ml.features.availability import AVAILABLE, EVENT, ROW, instants, span
from ml.features.timeline import FeatureError, Timeline

_LABEL = "__label__"
_TIME = "__time__"


def point_in_time_of_files(
    labels: pl.DataFrame,
    files: Sequence[Path],
    *,
    keys: Sequence[str],
    time: str,
    timeline: Timeline,
    features: Sequence[str],
    lookback: timedelta | None = None,
    memory: int = 2**30,
    temporary: Path | None = None,
) -> pl.DataFrame:
    """Return what `join.point_in_time` returns for the rows of Parquet files, in their order.

    The files are materialised ones: `join.placed` would reject none of their rows.

    Memory: the labels and their features, twice, and `memory` bytes for DuckDB, which spills to
    the folder `temporary` (default: the system's). That folder needs space for the keys, the times
    and the features of all rows, and as much for sorting them.
    DuckDB needs the times of all rows of one entity in memory. Raises FeatureError when it has too
    little memory or space.
    """
    import duckdb  # a job that joins in memory does not need it

    event, arrival = (
        pl.col(name).dt.convert_time_zone("UTC").dt.cast_time_unit("ns")
        for name in (timeline.event, timeline.arrival or timeline.event)
    )
    rows = (
        pl.scan_parquet([*files], hive_partitioning=False)
        .select(
            *keys,
            *features,
            event.to_physical().alias(EVENT),
            pl.max_horizontal(event + span(timeline.delay), arrival).to_physical().alias(AVAILABLE),
        )
        .with_row_index(ROW)
    )
    asked = labels.select(*keys, instants(labels, time).to_physical().alias(_TIME))
    names = ['"' + key.replace('"', '""') + '"' for key in keys]
    by = ", ".join(names)
    same = " AND ".join(f"l.{name} = r.{name}" for name in names)
    recent = ""
    if lookback is not None:
        recent = f"WHERE r.{EVENT} > l.{_TIME} - {lookback // timedelta(microseconds=1) * 1000}"
    with TemporaryDirectory(dir=temporary) as folder:
        rows.sink_parquet(f"{folder}/rows.parquet")
        asked.with_row_index(_LABEL).write_parquet(f"{folder}/labels.parquet")
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory}B",
            "temp_directory": f"{folder}/spilled",
        }
        quoted = folder.replace("'", "''")
        try:
            with duckdb.connect(f"{folder}/join.duckdb", config=settings) as connection:
                connection.execute("SET enable_progress_bar = false")
                # Rows and labels in the order and with the ties of the join in memory.
                connection.execute(f"""
                    CREATE TABLE known AS SELECT {by}, {EVENT}, {AVAILABLE}, {ROW} FROM (
                        SELECT {by}, {EVENT}, {AVAILABLE}, {ROW}, max({EVENT}) OVER (
                            PARTITION BY {by} ORDER BY {AVAILABLE}, {ROW} ROWS UNBOUNDED PRECEDING
                        ) AS latest FROM '{quoted}/rows.parquet'
                    ) WHERE {EVENT} >= latest QUALIFY {AVAILABLE} IS DISTINCT FROM
                        lead({AVAILABLE}) OVER (PARTITION BY {by} ORDER BY {AVAILABLE}, {ROW});
                    COPY (
                        SELECT {_LABEL}, r.{ROW} FROM '{quoted}/labels.parquet' l
                        ASOF JOIN known r ON {same} AND l.{_TIME} >= r.{AVAILABLE} {recent}
                    ) TO '{quoted}/chosen.parquet' (FORMAT parquet)""")
        except duckdb.Error as error:
            expected = f"more than {memory} bytes of memory, and space in the temporary folder"
            raise FeatureError("join-failed", f"DuckDB: {error}", expected) from error
        chosen = pl.scan_parquet(f"{folder}/chosen.parquet")
        values = (
            pl.scan_parquet(f"{folder}/rows.parquet")
            .select(ROW, *features)
            .join(chosen, on=ROW)
            .collect(engine="streaming")
        )
    joined = asked.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias(_LABEL)).join(
        values, on=_LABEL, how="left", maintain_order="left"
    )
    return labels.hstack(joined.select(*features))
