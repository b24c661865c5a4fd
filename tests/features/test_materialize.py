"""A materialisation in several runs has the bytes of one from scratch."""

from __future__ import annotations

import fcntl
import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.features import materialize as module
from ml.features.definition import FeatureSet, read
from ml.features.materialize import main, materialize, plan
from ml.features.online import write_file
from ml.features.store import State, state, stored
from ml.features.timeline import FeatureError
from tests.features.conftest import CODE, write_set

START = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ZONE = pl.Datetime("us", "UTC")
TYPES = {"account": pl.String, "event": ZONE, "written": ZONE, "amount": pl.Float64}
Row = tuple[str, datetime, datetime, float | None]
TIMES = st.integers(0, 150).map(lambda hours: START + hours * HOUR)
AMOUNTS = st.integers(-9, 9).map(lambda number: number / 7)
ROWS = st.lists(st.tuples(st.sampled_from("aab"), TIMES, TIMES, AMOUNTS), min_size=1, max_size=8)


def write(folder: Path, name: str, rows: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = pl.DataFrame(rows, schema=TYPES, orient="row")
    if name.endswith(".csv"):
        table.write_csv(folder / name, datetime_format="%+")
    else:
        table.write_parquet(folder / name)
    return folder


def payment(hours: float, late: float = 0, amount: float | None = 1, account: str = "a") -> Row:
    event = START + hours * HOUR
    return account, event, event + late * HOUR, amount


def content(feature_set: FeatureSet, store: Path) -> dict[str, str]:
    """The names of the files that count: the sha256 of their bytes by date."""
    return {
        day: name for day, name in state(feature_set, store).partitions.items() if name is not None
    }


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.tuples(ROWS, st.booleans(), st.integers(0, 99)), min_size=1, max_size=5),
    most=st.sampled_from([1, 5, 1000]),
    kind=st.sampled_from(["parquet", "csv"]),
)
def test_several_runs_write_the_bytes_of_one(
    batches: list[tuple[list[Row], bool, int]], most: int, kind: str, account_payments: FeatureSet
) -> None:
    """Files with late, duplicate and unordered rows, in any order of their names, some dates at a
    time.
    """
    with TemporaryDirectory() as folder:
        source, store = Path(folder, "source"), Path(folder, "store")
        for number, (rows, is_run, name) in enumerate(batches):
            write(source, f"{name}-{number}.{kind}", rows)
            if is_run:
                materialize(account_payments, source, store, rows=most)
        materialize(account_payments, source, store, rows=most)
        materialize(account_payments, source, Path(folder, "scratch"))
        assert content(account_payments, store) == content(
            account_payments, Path(folder, "scratch")
        )


def test_a_late_row_rewrites_the_partitions_that_it_changes(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """And no other: the windows are 30 hours long."""
    rows = [payment(24 * day) for day in range(6)]
    source = write(tmp_path / "source", "1.parquet", rows)
    first = materialize(account_payments, source, tmp_path)
    assert set(first.partitions.values()) == {"new"} and len(first.partitions) == 6
    assert materialize(account_payments, source, tmp_path).partitions == {}
    write(source, "2.parquet", [payment(25, late=24 * 9)])
    second = materialize(account_payments, source, tmp_path)
    # The row's own day, the two that its windows reach, and the day of the latest event.
    days = ["2026-03-02", "2026-03-03", "2026-03-04", "2026-03-06"]
    assert second.partitions == dict.fromkeys(days, "rows of 2.parquet")
    assert stored(account_payments, tmp_path).height == 7


def test_a_backfill_extends_the_window(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The days between two windows are materialised as well."""
    source = write(tmp_path / "source", "1.parquet", [payment(24 * day) for day in range(9)])
    materialize(account_payments, source, tmp_path, date(2026, 3, 7), date(2026, 3, 8))
    assert [*content(account_payments, tmp_path)] == ["2026-03-07", "2026-03-08"]
    written = materialize(
        account_payments, source, tmp_path, date(2026, 3, 4), date(2026, 3, 5)
    ).partitions
    assert [*written] == ["2026-03-04", "2026-03-05", "2026-03-06"]
    materialize(account_payments, source, tmp_path / "scratch", date(2026, 3, 4), date(2026, 3, 8))
    assert content(account_payments, tmp_path) == content(account_payments, tmp_path / "scratch")


def test_a_changed_source_file_rewrites_everything(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """The rows that it had before are unknown."""
    source = write(tmp_path / "source", "1.parquet", [payment(0), payment(30)])
    materialize(account_payments, source, tmp_path)
    write(source, "1.parquet", [payment(0)])
    written = materialize(account_payments, source, tmp_path).partitions
    reason = "source file 1.parquet changed"
    assert written == {"2026-03-01": reason, "2026-03-02": reason}
    assert [*content(account_payments, tmp_path)] == ["2026-03-01"]


def test_a_transformation_gets_some_dates_at_a_time(tmp_path: Path) -> None:
    """With those of the lookback, and one later row of an entity: 8 a day, at most 24 asked for."""
    code = CODE.replace(
        "        return windows", "        assert len(rows) < 50\n        return windows"
    )
    path = write_set(tmp_path / "features")
    (path.parent / "account_payments/transformation/payments.py").write_text(code)
    feature_set, store = read(path), tmp_path / "store"
    source = write(tmp_path / "source", "1.parquet", [payment(3 * n) for n in range(160)])
    with pytest.raises(FeatureError, match="AssertionError"):
        materialize(feature_set, source, store)
    assert len(materialize(feature_set, source, store, rows=24).partitions) == 20
    assert stored(feature_set, store).height == 160


def test_a_plan_writes_nothing(account_payments: FeatureSet, tmp_path: Path) -> None:
    """It only names the partitions."""
    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    planned = plan(account_payments, source, tmp_path / "store")
    assert planned.partitions == {"2026-03-01": "new"} and not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("before", "after", "code", "message"),
    [
        ('"count_3h"', '"count"', "missing-column", "there is no column `count_3h`"),
        ('"count_3h", "count"', '"count_3h", "mean"', "missing-column", "has no column"),
        ("hours=30", "hours=31", "window-length", "window `spent_30h`: 1 day, 7:00:00"),
        ('"amount")', '"account")', "wrong-type", "`account` is String"),
    ],
)
def test_a_plan_tries_the_transformation(
    before: str, after: str, code: str, message: str, tmp_path: Path
) -> None:
    """What is wrong is found before a partition is written."""
    path = write_set(tmp_path / "features")
    module = path.parent / "account_payments/transformation/payments.py"
    module.write_text(CODE.replace(before, after))
    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    with pytest.raises(FeatureError) as caught:
        plan(read(path), source, tmp_path / "store")
    assert caught.value.code == code
    assert f"{module}: " in caught.value.message and message in caught.value.message


def test_a_second_run_at_the_same_time_stops(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The lock is released when its process ends, however it ends."""
    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    place = tmp_path / "account_payments/1/offline"
    place.mkdir(parents=True)
    with (place / "lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(FeatureError, match="another materialisation is running"):
            materialize(account_payments, source, tmp_path)
    assert state(account_payments, tmp_path) == State()
    materialize(account_payments, source, tmp_path)


@pytest.mark.parametrize(
    ("lost", "code"), [("store", "cannot-write"), ("source", "unreadable-file")]
)
def test_a_folder_that_vanishes_is_an_error(
    lost: str, code: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """After the first of three partitions."""
    write(tmp_path / "source", "1.parquet", [payment(24 * day) for day in range(3)])

    def remove(day: str, rows: int) -> None:
        shutil.rmtree(tmp_path / lost)

    folders = (tmp_path / "source", tmp_path / "store")
    with pytest.raises(FeatureError, match=f"{tmp_path / lost}.*: No such file") as failed:
        materialize(account_payments, *folders, notify=remove, rows=1)
    assert failed.value.code == code


def test_a_broken_pipe_of_the_output_is_not_the_stores(
    account_payments: FeatureSet, tmp_path: Path
) -> None:
    """As when a job's output is piped into `head`."""

    def fail(day: str, rows: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        source = write(tmp_path / "source", "1.parquet", [payment(0)])
        materialize(account_payments, source, tmp_path / "store", notify=fail)


@pytest.mark.parametrize("file", ["online", "account_payments/1/offline/date=2026-03-01"])
def test_a_file_in_place_of_a_folder_is_an_error(
    file: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """Of the online store, and of a partition."""
    path = tmp_path / "store" / file
    path.parent.mkdir(parents=True)
    path.write_text("")
    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    with pytest.raises(FeatureError, match=str(path)) as failed:
        materialize(account_payments, source, tmp_path / "store")
    assert failed.value.code == "cannot-write"


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"window": null, "partitions": null}', '{"window": null, "digest": 1}', "\0"],
)
def test_a_state_that_no_run_wrote_is_an_error(
    text: str, account_payments: FeatureSet, tmp_path: Path
) -> None:
    """It says how to start again."""
    path = tmp_path / "account_payments/1/offline/state.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for use in (state, stored):
        with pytest.raises(FeatureError, match=r"state\.json: .*delete the folder") as failed:
            use(account_payments, tmp_path)
        assert failed.value.code == "unreadable-state"


def test_a_killed_run_changes_nothing(
    account_payments: FeatureSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before each of its writes: the next run has the bytes of one from scratch."""
    source = write(tmp_path / "source", "1.parquet", [payment(20 * day) for day in range(3)])
    materialize(account_payments, source, tmp_path / "store")
    before = content(account_payments, tmp_path / "store")
    write(source, "2.parquet", [payment(10), payment(21, late=9)])
    materialize(account_payments, source, tmp_path / "scratch")
    replace = write_file
    for allowed in range(3):
        left = [allowed]

        def write_some(path: Path, content: bytes, left: list[int] = left) -> None:
            if not left[0]:
                path.with_name(path.name + ".tmp").write_bytes(content[:10])
                raise KeyboardInterrupt
            left[0] -= 1
            replace(path, content)

        monkeypatch.setattr(module, "write_file", write_some)
        with pytest.raises(KeyboardInterrupt):
            materialize(account_payments, source, tmp_path / "store")
        assert content(account_payments, tmp_path / "store") == before
        assert stored(account_payments, tmp_path / "store").height == 3
    monkeypatch.setattr(module, "write_file", replace)
    materialize(account_payments, source, tmp_path / "store")
    assert content(account_payments, tmp_path / "store") == content(
        account_payments, tmp_path / "scratch"
    )
    materialize(account_payments, source, tmp_path / "store")
    names = {path.stem for path in (tmp_path / "store").rglob("date=*/*")}
    assert names == {*content(account_payments, tmp_path / "store").values()}


def test_a_job_materialises(
    account_payments: FeatureSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints each partition; what is wrong ends with status 2 and no traceback."""
    source = write(tmp_path / "source", "1.parquet", [payment(0)])
    call = ["--set", str(account_payments.file), "--store", str(tmp_path), "--source"]
    assert main([*call, str(source)]) == 0
    assert capsys.readouterr().out == (
        "2026-03-01: 1 rows\naccount_payments 1: 1 partitions and 1 entities written\n"
    )
    assert main([*call, str(tmp_path / "nothing")]) == 2
    assert "error[missing-file]" in capsys.readouterr().err
    dead = ["--online", "redis://127.0.0.1:1"]
    assert main([*call, str(source), *dead]) == 2
    assert "error[feature-store-unreachable]" in capsys.readouterr().err
