"""One contract for the online stores, and a replay against the join."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from ml.features.definition import FeatureSet
from ml.features.join import point_in_time
from ml.features.materialize import materialize
from ml.features.online import (
    OnlineStore,
    RedisStore,
    SqliteStore,
    latest,
    look_up,
    refresh,
)
from ml.features.timeline import FeatureError
from tests.features.test_materialize import HOUR, START, ZONE, payment, write

Open = Callable[[FeatureSet], OnlineStore]


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    """A real server; it keeps nothing on disk."""
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        call = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        server = subprocess.Popen(call, cwd=folder, stdout=subprocess.DEVNULL)
        yield port
        server.terminate()
        server.wait()


@pytest.fixture(params=["sqlite", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open a store for a feature set."""
    if request.param == "sqlite":
        return lambda one: SqliteStore(one, tmp_path / "online.sqlite", writable=True)
    port = request.getfixturevalue("redis_port")
    retry = Retry(ConstantBackoff(0.05), retries=200)
    client = redis.Redis(port=port, retry=retry, retry_on_error=[redis.ConnectionError])
    client.flushall()
    return lambda one: RedisStore(one, client)


def encoded(
    event: int, available: int, count: int, key: str = '["a"]'
) -> tuple[str, int, int, str]:
    hour = 3600 * 10**9
    begin = int(START.timestamp()) * 10**9
    return key, begin + event * hour, begin + available * hour, json.dumps([count, 0.1])


def count(feature_set: FeatureSet, store: OnlineStore, hours: int, key: str = "a") -> object:
    answer = look_up(feature_set, store, {"account": key}, START + hours * HOUR)
    return answer.values["count_3h"]


def test_the_latest_event_counts_in_any_order(account_payments: FeatureSet, opened: Open) -> None:
    """An older event never overwrites a newer one; a correction overwrites its event."""
    store = opened(account_payments)
    store.put([encoded(5, 5, 1)])
    store.put([encoded(4, 9, 2)])
    assert count(account_payments, store, 10) == 1
    store.put([encoded(5, 9, 3)])
    assert count(account_payments, store, 10) == 3
    store.put([encoded(5, 8, 4)])
    assert count(account_payments, store, 10) == 3
    store.put([encoded(5, 9, 5)])
    assert count(account_payments, store, 10) == 5
    store.put([encoded(6, 6, 6), encoded(1, 1, 7, '["ü"]')])
    assert count(account_payments, store, 10) == 6
    assert count(account_payments, store, 10, "ü") == 7


def test_unknown_and_stale_entities_have_nulls(account_payments: FeatureSet, opened: Open) -> None:
    """The status says which; a stale one has its event and its age."""
    store = opened(account_payments)
    store.put([encoded(0, 0, 1)])
    nothing = {"count_3h": None, "spent_30h": None}
    unknown = look_up(account_payments, store, {"account": "b"}, START)
    assert (unknown.status, unknown.values, unknown.event) == ("unknown", nothing, None)
    fresh = look_up(account_payments, store, {"account": "a"}, START + 47 * HOUR)
    assert (fresh.status, fresh.values) == ("found", {"count_3h": 1, "spent_30h": 0.1})
    stale = look_up(account_payments, store, {"account": "a"}, START + 48 * HOUR)
    assert (stale.status, stale.values, stale.event) == ("stale", nothing, START)
    assert stale.age == timedelta(days=2)
    with pytest.raises(FeatureError, match="no key `account`"):
        look_up(account_payments, store, {}, START)


def test_another_definition_starts_empty(account_payments: FeatureSet, opened: Open) -> None:
    """Its values may mean something else."""
    opened(account_payments).put([encoded(0, 0, 1)])
    other = replace(account_payments, digest="0" * 64)
    assert look_up(other, opened(other), {"account": "a"}, START).status == "unknown"


def test_every_type_comes_back(account_payments: FeatureSet, opened: Open) -> None:
    """Also the numbers that JSON does not have."""
    values = {
        "text": "é", "number": 2**62 + 1, "ratio": float("inf"), "bytes": b"\x00\xff",
        "time": datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "flag": True, "none": None,
    }  # fmt: skip
    rows = pl.DataFrame(
        {
            "account": ["a"],
            "event": [START],
            "arrival": [START],
            **{n: [v] for n, v in values.items()},
        }
    ).with_columns(pl.col("none").cast(pl.Int64))
    features = {name: rows.schema[name] for name in values}
    wide = replace(account_payments, features=features)
    store = opened(wide)
    store.put(latest(wide, rows, START + HOUR))
    assert look_up(wide, store, {"account": "a"}, START + HOUR).values == values


def test_a_reader_needs_a_materialised_set(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Of its own definition."""
    path = tmp_path / "online.sqlite"
    with pytest.raises(FeatureError, match="does not exist"):
        SqliteStore(account_payments, path)
    SqliteStore(account_payments, path, writable=True)
    with pytest.raises(FeatureError, match="another definition"):
        SqliteStore(replace(account_payments, digest="0" * 64), path)


def test_a_materialisation_is_put(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Rows that are not available yet are put later; a reader sees a commit at once."""
    source = write(tmp_path / "source", "1.parquet", [payment(1), payment(2, late=5)])
    materialize(account_payments, source, tmp_path)
    writer = SqliteStore(account_payments, tmp_path / "online.sqlite", writable=True)
    reader = SqliteStore(account_payments, tmp_path / "online.sqlite")
    assert refresh(account_payments, tmp_path, writer, START + 3 * HOUR) == 1
    assert count(account_payments, reader, 3) == 1
    refresh(account_payments, tmp_path, writer, START + 7 * HOUR)
    assert count(account_payments, reader, 7) == 2


HOURS = st.integers(0, 60)
ROWS = st.lists(st.tuples(st.sampled_from("aab"), HOURS, HOURS), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, times=st.lists(st.integers(0, 130), min_size=1, max_size=6))
def test_a_replay_equals_the_join(
    rows: list[tuple[str, int, int]], times: list[int], account_payments: FeatureSet
) -> None:
    """At each time, the values put so far are those that a label of that time gets."""
    payments = pl.DataFrame(
        [payment(hours, late=late - hours, account=key) for key, hours, late in rows],
        schema={"account": pl.String, "event": ZONE, "written": ZONE, "amount": pl.Float64},
        orient="row",
    )
    table = account_payments.transform(payments)
    with TemporaryDirectory() as folder:
        store = SqliteStore(account_payments, Path(folder, "online.sqlite"), writable=True)
        for hours in sorted(times):
            at = START + hours * HOUR
            store.put(latest(account_payments, table, at))
            labels = pl.DataFrame({"account": ["a", "b"], "time": pl.Series([at, at], dtype=ZONE)})
            joined = point_in_time(
                labels,
                table,
                keys=["account"],
                time="time",
                timeline=account_payments.transformed,
                features=list(account_payments.features),
                lookback=account_payments.lookback,
            )
            for row in joined.iter_rows(named=True):
                answer = look_up(account_payments, store, {"account": row["account"]}, at)
                assert answer.values == {name: row[name] for name in account_payments.features}
