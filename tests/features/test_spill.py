"""The join by DuckDB has the result of the join in memory."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ml.features.join import point_in_time
from ml.features.spill import point_in_time_of_files
from ml.features.timeline import FeatureError, Timeline
from tests.features.test_materialize import HOUR, START, ZONE

TIMES = st.integers(0, 12).map(lambda hours: START + hours * HOUR)
ROWS = st.lists(st.tuples(st.sampled_from("aab"), TIMES, TIMES), max_size=12)
LABELS = st.lists(st.tuples(st.sampled_from("abc"), TIMES), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(ROWS, LABELS, st.sampled_from([None, 3 * HOUR]), st.integers(0, 12))
def test_the_results_are_equal(
    rows: list[tuple[object, ...]],
    labels: list[tuple[object, ...]],
    lookback: timedelta | None,
    cut: int,
) -> None:
    """Ties, corrections and late rows, cut into two files anywhere."""
    schema = {"account": pl.String, "event": ZONE, "arrival": ZONE}
    table = pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        pl.int_range(pl.len()).alias("number"),
        pl.col("event").alias("moment"),
    )
    asked = pl.DataFrame(labels, schema={"account": pl.String, "time": ZONE}, orient="row")
    words = {
        "keys": ["account"],
        "time": "time",
        "timeline": Timeline("event", "arrival", timedelta(minutes=5)),
        "features": ["number", "moment"],
        "lookback": lookback,
    }
    with TemporaryDirectory(prefix="it's ") as folder:
        paths = [Path(folder, "1.parquet"), Path(folder, "2.parquet")]
        table[:cut].write_parquet(paths[0])
        table[cut:].write_parquet(paths[1])
        place = Path(folder)
        spilled = point_in_time_of_files(asked, paths, temporary=place, **words)  # type: ignore[arg-type]
    assert_frame_equal(spilled, point_in_time(asked, table, **words))  # type: ignore[arg-type]


def test_too_little_memory_is_an_error(tmp_path: Path) -> None:
    """Of this package, with the limit."""
    events = [START + number * timedelta(seconds=1) for number in range(300_000)]
    table = pl.DataFrame(
        {"account": "a", "event": events}, schema={"account": pl.String, "event": ZONE}
    )
    table.write_parquet(tmp_path / "1.parquet")
    with pytest.raises(FeatureError, match="more than 1000000 bytes"):
        point_in_time_of_files(
            table.rename({"event": "time"}).head(10),
            [tmp_path / "1.parquet"],
            keys=["account"],
            time="time",
            timeline=Timeline("event"),
            features=["event"],
            memory=1_000_000,
        )
