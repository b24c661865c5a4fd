"""The point-in-time join against a reference that looks at every row for every label."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.features.join import point_in_time, point_in_time_of_files
from ml.features.timeline import FeatureError, Timeline
from tests.conftest import ROOT

START = datetime(2026, 3, 28, 23, tzinfo=UTC)  # a night before daylight saving in Europe
HOUR = timedelta(hours=1)
TIMES = st.integers(0, 12).map(lambda hours: START + hours * HOUR)
ARRIVING = Timeline("event", "arrival", HOUR)


def table(rows: list[tuple[str, datetime, datetime, int]]) -> pl.DataFrame:
    zone = pl.Datetime("us", "UTC")
    types = {"account": pl.String, "event": zone, "arrival": zone, "value": pl.Int64}
    return pl.DataFrame(rows, schema=types, orient="row")


def labelled(rows: list[tuple[str, datetime]], unit: str = "us") -> pl.DataFrame:
    types = {"account": pl.String, "time": pl.Datetime(unit, "UTC")}  # type: ignore[arg-type]
    return pl.DataFrame(rows, schema=types, orient="row")


def joined(labels: pl.DataFrame, rows: pl.DataFrame, **other: object) -> list[int | None]:
    words: dict[str, object] = {"timeline": ARRIVING, "features": ["value"], **other}
    result = point_in_time(labels, rows, keys=["account"], time="time", **words)  # type: ignore[arg-type]
    assert result.drop("value").equals(labels)  # every label, in its order
    return result.get_column("value").to_list()


def reference(
    labels: pl.DataFrame, rows: pl.DataFrame, lookback: timedelta | None
) -> list[int | None]:
    answers: list[int | None] = []
    for account, time in labels.iter_rows():
        best = None
        for position, (key, event, arrival, value) in enumerate(rows.iter_rows()):
            available = max(event + HOUR, arrival)
            if key == account and available <= time:
                best = max(
                    best or (event, available, position, value), (event, available, position, value)
                )
        fresh = best is not None and (lookback is None or best[0] > time - lookback)
        answers.append(best[3] if best is not None and fresh else None)
    return answers


@given(
    labels=st.lists(st.tuples(st.sampled_from("ab"), TIMES), max_size=8).map(labelled),
    rows=st.lists(
        st.tuples(st.sampled_from("aaac"), TIMES, TIMES, st.integers(0, 99)), max_size=14
    ),
    lookback=st.sampled_from([None, HOUR, 4 * HOUR]),
)
def test_no_value_is_newer_than_its_label_or_had_not_arrived(
    labels: pl.DataFrame,
    rows: list[tuple[str, datetime, datetime, int]],
    lookback: timedelta | None,
) -> None:
    """Late, unordered and repeated events, corrections, an entity with most rows, unknown ones."""
    features = table(rows)
    assert joined(labels, features, lookback=lookback) == reference(labels, features, lookback)


def test_a_late_older_event_does_not_replace_a_newer_one() -> None:
    rows = table([("a", START + HOUR, START + HOUR, 1), ("a", START, START + 3 * HOUR, 2)])
    assert joined(labelled([("a", START + 5 * HOUR)]), rows) == [1]


def test_a_correction_counts_from_its_arrival() -> None:
    rows = table([("a", START, START + 4 * HOUR, 2), ("a", START, START, 1)])
    assert joined(labelled([("a", START + n * HOUR) for n in (0, 1, 3, 4)]), rows) == [
        None,
        1,
        1,
        2,
    ]


def test_nanoseconds_are_not_rounded() -> None:
    """An event half a microsecond after the label, in the label's microsecond."""
    event = pl.Series("event", [1_000_500], pl.Int64).cast(pl.Datetime("ns", "UTC"))
    rows = pl.DataFrame({"account": ["a"], "event": event, "value": [1]})
    label = labelled([("a", datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC))])
    assert joined(label, rows, timeline=Timeline("event")) == [None]
    assert joined(labelled([("a", START)], "ms"), rows, timeline=Timeline("event")) == [1]


def test_zones_are_compared_as_instants() -> None:
    """02:30 of the night that has it twice: the offset decides."""
    fold = pl.Series("event", [datetime(2026, 10, 25, 0, 30), datetime(2026, 10, 25, 1, 30)])
    berlin = fold.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    rows = pl.DataFrame({"account": ["a", "a"], "event": berlin, "value": [1, 2]})
    times = labelled([("a", datetime(2026, 10, 25, 1, tzinfo=UTC))])
    assert joined(times, rows, timeline=Timeline("event")) == [1]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (pl.col("event").dt.replace_time_zone(None), "no-time-zone", "`event`"),
        (pl.col("event").cast(pl.String), "wrong-type", "`event` is String"),
        (
            pl.lit(None).cast(pl.Datetime("us", "UTC")).alias("arrival"),
            "empty-time",
            "row 0: `arrival`",
        ),
        (pl.lit(None).cast(pl.String).alias("account"), "empty-key", "row 0: `account`"),
        (pl.col("event").dt.offset_by("7973y"), "time-out-of-range", "row 0: `event` is 9999"),
        (pl.lit(float("nan")).alias("value"), "not-finite", "row 0: `value` is nan"),
        (pl.lit(1).alias("account"), "wrong-type", "`account` of the labels is String"),
    ],
)
def test_a_table_that_has_no_answer(change: pl.Expr, code: str, says: str) -> None:
    rows = table([("a", START, START, 1)]).with_columns(change)
    with pytest.raises(FeatureError, match=says) as raised:
        joined(labelled([("a", START)]), rows)
    assert raised.value.code == code


def test_a_label_without_a_key_is_an_error() -> None:
    """As one without a time."""
    labels = labelled([("a", START)]).with_columns(account=pl.lit(None, pl.String))
    with pytest.raises(FeatureError, match="row 0: `account` is empty") as raised:
        joined(labels, table([]))
    assert raised.value.code == "empty-key"


@pytest.mark.parametrize("of", [pl.DataFrame.to_pandas, pl.DataFrame.lazy])
def test_a_table_of_another_library_is_an_error(of: Callable[[pl.DataFrame], Any]) -> None:
    """As labels and as rows."""
    labels, rows = labelled([("a", START)]), table([("a", START, START, 1)])
    words: Any = {"keys": ["account"], "time": "time", "timeline": ARRIVING, "features": ["value"]}
    for tables in ((of(labels), rows), (labels, of(rows))):
        with pytest.raises(FeatureError, match="expected: a DataFrame of polars") as raised:
            point_in_time(*tables, **words)
        assert raised.value.code == "wrong-type"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"timeline": Timeline("event", None, -HOUR)}, "negative-delay"),
        ({"timeline": Timeline("when")}, "missing-column"),
        ({"features": ["time"]}, "column-twice"),
        ({"features": ["other"]}, "missing-column"),
        ({"features": ["value", "value"]}, "column-twice"),
    ],
)
def test_settings_that_have_no_answer(words: dict[str, object], code: str) -> None:
    with pytest.raises(FeatureError) as raised:
        joined(labelled([("a", START)]), table([("a", START, START, 1)]), **words)
    assert raised.value.code == code


def test_the_page_says_what_its_example_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/features.md").read_text()
    exec(page.partition("```python\n")[2].partition("```")[0], {})
    assert f"It prints `{capsys.readouterr().out.strip()}`" in page


def test_empty_tables() -> None:
    assert joined(labelled([]), table([("a", START, START, 1)])) == []
    assert joined(labelled([("a", START)]), table([])) == [None]


EVENTS = st.lists(st.tuples(st.sampled_from("aabc"), TIMES, TIMES, st.integers(0, 9)), max_size=12)
ASKED = st.lists(st.tuples(st.sampled_from("abcd"), TIMES), min_size=1, max_size=8)


@settings(deadline=None)
@given(rows=EVENTS, labels=ASKED, cut=st.integers(0, 12), memory=st.sampled_from([1500, 2**30]))
def test_files_in_parts_have_the_result_of_one_table(
    rows: list[tuple[str, datetime, datetime, int]],
    labels: list[tuple[str, datetime]],
    cut: int,
    memory: int,
) -> None:
    """Ties, corrections and late rows, cut into two files anywhere."""
    words = {"timeline": ARRIVING, "features": ["value", "event"], "lookback": 3 * HOUR}
    words |= {"keys": ["account"], "time": "time"}
    with TemporaryDirectory() as folder:
        paths = [Path(folder, "1.parquet"), Path(folder, "2.parquet")]
        table(rows)[:cut].write_parquet(paths[0])
        table(rows)[cut:].write_parquet(paths[1])
        of_files = point_in_time_of_files(labelled(labels), paths, memory=memory, **words)  # type: ignore[arg-type]
    assert of_files.equals(point_in_time(labelled(labels), table(rows), **words))  # type: ignore[arg-type]


def test_a_part_of_rows_that_compress_well_is_within_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of equal values has a hundredth of the bytes that it takes in memory."""
    numbers, start = pl.int_range(300_000, eager=True), pl.lit(START).dt.cast_time_unit("us")
    rows = pl.DataFrame({"account": (numbers % 500).cast(pl.String)}).with_columns(
        start.alias("event"), start.alias("arrival"), pl.lit(1).alias("value")
    )
    rows.write_parquet(tmp_path / "1.parquet")
    memory, sizes = 2_000_000, list[int]()  # of 7 MB

    def recorded(labels: pl.DataFrame, rows: pl.DataFrame, **words: Any) -> pl.DataFrame:
        sizes.append(int(rows.estimated_size()))
        return point_in_time(labels, rows, **words)

    monkeypatch.setattr("ml.features.join.point_in_time", recorded)
    words: Any = {"timeline": ARRIVING, "features": ["value"], "keys": ["account"], "time": "time"}
    labels = labelled([("7", START + HOUR), ("x", START)])
    joined = point_in_time_of_files(labels, [tmp_path / "1.parquet"], memory=memory, **words)
    assert joined["value"].to_list() == [1, None] and max(sizes) <= memory


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    """With the folder of the files."""
    (tmp_path / "1.parquet").write_bytes(b"PAR1")
    words = {"keys": ["account"], "time": "time", "timeline": ARRIVING, "features": ["value"]}
    with pytest.raises(FeatureError, match=r"PAR1|bytes|parquet") as failed:
        point_in_time_of_files(labelled([]), [tmp_path / "1.parquet"], **words)  # type: ignore[arg-type]
    assert failed.value.code == "unreadable-file"
