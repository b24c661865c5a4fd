"""One contract for the online stores, and a replay against the join."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
import redis
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from ml.features.definition import FeatureSet
from ml.features.join import point_in_time
from ml.features.materialize import main, materialize
from ml.features.online import (
    REDIS_TIMEOUT_S,
    OnlineStore,
    RedisStore,
    SqliteStore,
    key_of,
    look_up,
    open_store,
)
from ml.features.store import encode, latest, refresh
from ml.features.timeline import FeatureError
from ml.features.training_set import training_set
from tests.features.test_materialize import HOUR, START, ZONE, payment, write
from tests.stand_ins import token_server

RETRY = Retry(ConstantBackoff(0.05), retries=200)  # until the server listens
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
        return lambda one: SqliteStore(one, tmp_path / "online.sqlite")
    port = request.getfixturevalue("redis_port")
    client = redis.Redis(port=port, retry=RETRY, retry_on_error=[redis.ConnectionError])
    client.flushall()
    return lambda one: RedisStore(one, client)


def encoded(event: int, count: int, key: str = "a") -> tuple[str, int, str]:
    nanoseconds = int(START.timestamp() + 3600 * event) * 10**9
    return key_of([key]), nanoseconds, json.dumps([count, 0.1])


def count(feature_set: FeatureSet, store: OnlineStore, hours: int, key: str = "a") -> object:
    answer = look_up(feature_set, store, {"account": key}, START + hours * HOUR)
    return answer.values["count_3h"]


def test_a_put_replaces_the_rows(account_payments: FeatureSet, opened: Open) -> None:
    """An entity that a corrected source lacks is unknown, an older event replaces a newer one."""
    store, reader = opened(account_payments), opened(account_payments)
    with pytest.raises(FeatureError, match="ml features materialize account_payments") as failed:
        reader.get(key_of(["a"]))
    assert failed.value.code == "not-materialized"
    store.put([encoded(5, 1), encoded(1, 7, "ü")])
    assert [count(account_payments, reader, 10, key) for key in "aü"] == [1, 7]
    store.put([encoded(4, 2)])
    assert [count(account_payments, reader, 10, key) for key in "aü"] == [2, None]
    store.put([])
    assert reader.get(key_of(["a"])) is None


def test_unknown_and_stale_entities_have_nulls(account_payments: FeatureSet, opened: Open) -> None:
    """The status says which; a stale one has its event and its age."""
    store = opened(account_payments)
    store.put([encoded(0, 1)])
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
    for key in (7, None, b"a"):  # a string in the store: no entity would ever be found
        with pytest.raises(FeatureError, match=r"key `account` is .*expected: str") as failed:
            look_up(account_payments, store, {"account": key}, START)
        assert failed.value.code == "wrong-type"
    assert look_up(account_payments, store, {"account": "\ud800"}).status == "unknown"
    with pytest.raises(FeatureError, match="`as_of` has no time zone"):
        look_up(account_payments, store, {"account": "a"}, START.replace(tzinfo=None))


def test_another_definition_starts_empty(account_payments: FeatureSet, opened: Open) -> None:
    """Its values may mean something else."""
    opened(account_payments).put([encoded(0, 1)])
    other = replace(account_payments, digest="0" * 64)
    store = opened(other)
    store.put([encoded(0, 1, "b")])
    statuses = [look_up(other, store, {"account": key}, START).status for key in "ab"]
    assert statuses == ["unknown", "found"]


def test_every_type_comes_back(account_payments: FeatureSet, opened: Open) -> None:
    values = {
        "text": "é", "number": 2**62 + 1, "ratio": 0.1 + 0.2, "bytes": b"\x00\xff",
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
    kinds = ("string", "long", "double", "binary", "datetime", "boolean", "long")
    features = dict(zip(values, kinds, strict=True))
    wide = replace(account_payments, features=features)
    store = opened(wide)
    store.put(encode(wide, latest(wide, rows, START + HOUR)))
    assert look_up(wide, store, {"account": "a"}, START + HOUR).values == values


def test_a_reader_needs_a_materialised_set(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Of its own definition."""
    path = tmp_path / "online.sqlite"
    store, other = (
        SqliteStore(each, path)
        for each in (account_payments, replace(account_payments, digest="0" * 64))
    )
    with pytest.raises(FeatureError, match="does not exist"):
        store.get('["a"]')
    store.put([])
    assert store.get('["a"]') is None
    with pytest.raises(FeatureError, match="another definition"):
        other.get('["a"]')
    whole = path.read_bytes()
    for content in (b"SQLite" * 99, whole[:4096] + b"x" * (len(whole) - 4096)):
        path.write_bytes(content)
        with pytest.raises(FeatureError, match="cannot be read"):
            store.get('["a"]')
    path.unlink()
    path.mkdir()
    with pytest.raises(FeatureError, match=r"online\.sqlite cannot be read: "):
        store.get('["a"]')


def test_an_address_names_the_store(account_payments: FeatureSet, tmp_path: Path) -> None:
    """The folder of a store, or a URL of Redis."""
    folder = open_store(account_payments, str(tmp_path))
    folder.put([encoded(0, 1)])
    assert [path.name for path in (tmp_path / "online/account_payments").iterdir()] == ["1.sqlite"]
    assert count(account_payments, open_store(account_payments, str(tmp_path)), 1) == 1


def test_a_job_fills_redis(account_payments: FeatureSet, redis_port: int, tmp_path: Path) -> None:
    """By a URL, which an endpoint opens too."""
    url = f"redis://127.0.0.1:{redis_port}"
    client = redis.Redis(port=redis_port, retry=RETRY, retry_on_error=[redis.ConnectionError])
    client.flushall()
    source = write(tmp_path / "source", "1.parquet", [payment(1), payment(2)])
    words = ["--set", account_payments.file, "--source", source, "--store", tmp_path]
    assert main([*map(str, words), "--online", url]) == 0
    assert count(account_payments, open_store(account_payments, url), 3) == 2


@pytest.mark.parametrize("is_silent", [True, False])
def test_an_unreachable_redis_is_an_error_in_time(
    is_silent: bool, account_payments: FeatureSet
) -> None:
    """A server that accepts and never answers, and a port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_silent:
            server.listen()
        store = open_store(account_payments, f"redis://127.0.0.1:{server.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(FeatureError) as failed:
            store.get('["a"]')
    assert failed.value.code == "feature-store-unreachable"
    assert time.monotonic() - start < 4 * REDIS_TIMEOUT_S + 1


USER = "8d1c7a40-2f3e-4b6a-9c5d-0e1f2a3b4c5d"  # object id


def jwt(number: int) -> str:
    """A token without a signature: Redis compares it as it does a password."""
    content = json.dumps({"oid": USER, "jti": "?" * number}).encode()
    payload = base64.urlsafe_b64encode(content).decode().rstrip("=")
    return f"e30.{payload}.signature"


class Identity:
    """A credential of azure-identity; its tokens have numbers."""

    lifetime: float | None = None  # of a token, in seconds; None: there is none
    issued = 0

    def get_token(self, scope: str) -> AccessToken:
        assert scope == "https://redis.azure.com/.default"
        if Identity.lifetime is None:
            raise ClientAuthenticationError("the machine has no identity")
        Identity.issued += 1
        return AccessToken(jwt(Identity.issued), int(time.time() + Identity.lifetime))


@pytest.fixture
def server(redis_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The administrator of a server on which the user has the first token as its password."""
    client = redis.Redis(port=redis_port, retry=RETRY, retry_on_error=[redis.ConnectionError])
    client.flushall()
    client.execute_command("ACL", "SETUSER", USER, "on", "~features:*", "+@all", f">{jwt(1)}")
    monkeypatch.setattr(Identity, "issued", 0)
    yield client
    client.acl_deluser(USER)


def connections(server: redis.Redis) -> list[str]:
    return [one["id"] for one in server.client_list() if one["user"] == USER]


def change_password(server: redis.Redis, number: int) -> None:
    server.execute_command("ACL", "SETUSER", USER, "resetpass", f">{jwt(number)}")


def test_a_store_is_signed_in_by_entra_id(
    account_payments: FeatureSet,
    server: redis.Redis,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token serves until it is about to expire; then the next command has a new one."""
    monkeypatch.setattr(Identity, "lifetime", 3600)
    url = f"redis://127.0.0.1:{redis_port}?credential={__name__}:Identity&protocol=3"
    store = open_store(account_payments, url)
    store.put([encoded(0, 1)])
    assert count(account_payments, store, 1) == 1
    (first,) = connections(server)
    assert Identity.issued == 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3310)
    change_password(server, 2)
    assert count(account_payments, store, 1) == 1
    assert Identity.issued == 2
    (second,) = connections(server)
    assert second != first
    count(account_payments, store, 1)
    assert Identity.issued == 2


def test_a_connection_that_the_server_closes_is_signed_in_again(
    account_payments: FeatureSet,
    server: redis.Redis,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Azure closes those whose token has expired."""
    monkeypatch.setattr(Identity, "lifetime", 3600)
    url = f"redis://127.0.0.1:{redis_port}?credential={__name__}:Identity"
    store = open_store(account_payments, url)
    store.put([])
    (only,) = connections(server)
    change_password(server, 2)
    server.client_kill_filter(_id=only)
    assert store.get('["a"]') is None and Identity.issued == 2


def test_azure_identity_signs_in(
    account_payments: FeatureSet,
    server: redis.Redis,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unmodified client, with a managed identity."""
    url = f"redis://127.0.0.1:{redis_port}?credential=azure.identity:DefaultAzureCredential"
    with token_server.running({"https://redis.azure.com": jwt(1)}) as (variables, asked):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        store = open_store(account_payments, url)
        store.put([])
        assert store.get('["a"]') is None
    assert asked == ["https://redis.azure.com"] and len(connections(server)) == 1


def test_a_sign_in_that_fails_is_an_error(
    account_payments: FeatureSet,
    server: redis.Redis,
    redis_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No token, one that Redis rejects, and one without an object id."""
    url = f"redis://127.0.0.1:{redis_port}?credential={__name__}:Identity"
    with pytest.raises(FeatureError, match="the machine has no identity") as failed:
        open_store(account_payments, url).get('["a"]')
    assert failed.value.code == "feature-store-unreachable"
    monkeypatch.setattr(Identity, "lifetime", 3600)
    change_password(server, 99)
    with pytest.raises(FeatureError, match=r"AuthenticationError: .*invalid username-password"):
        open_store(account_payments, url).get('["a"]')
    monkeypatch.setattr(Identity, "get_token", lambda self, scope: AccessToken("opaque", 0))
    with pytest.raises(FeatureError, match=r"no token for https://redis\.azure\.com"):
        open_store(account_payments, url).get('["a"]')


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (":port", "port"),
        (":1?credential=no.such:Thing", "No module named 'no'"),
        (":1?credential=json:Thing", "no attribute 'Thing'"),
        (":1?credential=json", "not callable"),
        (":1?socket_timeout=soon", "socket_timeout"),
    ],
)
def test_a_malformed_url_is_an_error(rest: str, message: str, account_payments: FeatureSet) -> None:
    """Before the first lookup; its password is not repeated."""
    with pytest.raises(FeatureError, match=message) as failed:
        open_store(account_payments, f"redis://user:secret@localhost{rest}")
    assert failed.value.code == "wrong-address" and "secret" not in str(failed.value)
    with pytest.raises(FeatureError, match="schemes"):
        open_store(account_payments, "https://localhost")


def test_a_materialisation_is_put(account_payments: FeatureSet, tmp_path: Path) -> None:
    """Rows that are not available yet are put later; a reader sees a commit at once."""
    source = write(tmp_path / "source", "1.parquet", [payment(1), payment(2, late=5)])
    materialize(account_payments, source, tmp_path)
    writer = SqliteStore(account_payments, tmp_path / "online.sqlite")
    reader = SqliteStore(account_payments, tmp_path / "online.sqlite")
    assert refresh(account_payments, tmp_path, writer, START + 3 * HOUR) == 1
    assert count(account_payments, reader, 3) == 1
    refresh(account_payments, tmp_path, writer, START + 7 * HOUR)
    assert count(account_payments, reader, 7) == 2


def test_a_corrected_source_corrects_the_online_values(
    account_payments: FeatureSet, redis_port: int, tmp_path: Path
) -> None:
    """An entity, and the newest event of another, were wrong: as the join, in both stores."""
    url, source = f"redis://127.0.0.1:{redis_port}", tmp_path / "source"
    words = ["--set", account_payments.file, "--source", source, "--store", tmp_path]
    labels = pl.DataFrame({"account": ["a", "x"], "time": [START + 31 * HOUR] * 2})
    for rows in ([payment(20), payment(30), payment(30, account="x")], [payment(20)]):
        write(source, "1.parquet", rows)
        assert main([*map(str, words), "--online", url]) == 0
        joined = training_set(labels, [account_payments], time="time", store=tmp_path).table
        for store in (
            open_store(account_payments, str(tmp_path)),
            open_store(account_payments, url),
        ):
            for row in joined.iter_rows(named=True):
                answer = look_up(account_payments, store, {"account": row["account"]}, row["time"])
                assert answer.values == {name: row[name] for name in account_payments.features}


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
        store = SqliteStore(account_payments, Path(folder, "online.sqlite"))
        for hours in sorted(times):
            at = START + hours * HOUR
            store.put(encode(account_payments, latest(account_payments, table, at)))
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


def test_a_lookup_in_sqlite_imports_neither_polars_nor_redis() -> None:
    """A server whose environment has neither can look values up in its files."""
    code = "import sys, ml.features.online; print({'polars', 'redis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
