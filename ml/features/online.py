"""The latest values per entity, for an endpoint: in SQLite or Redis.

An entity's value is the one that the join would use: of the latest event among the rows available
so far, and of its corrections the one that became available last.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

import polars as pl

from ml.features.definition import FeatureSet
from ml.features.store import files, folder
from ml.features.timeline import AVAILABLE, EVENT, FeatureError, placed

# Event and availability in nanoseconds, and the values as JSON, by key.
Encoded = tuple[str, int, int, str]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Answer:
    """The values of an entity."""

    status: Literal["found", "unknown", "stale"]
    values: Mapping[str, object]  # by feature; all None unless `found`
    event: datetime | None  # of the values, in UTC; None where unknown
    age: timedelta | None  # since `event`


class OnlineStore(Protocol):
    """Where the latest values of one feature set are."""

    def put(self, rows: Sequence[Encoded]) -> None:
        """Store rows that are not older than those stored, all or none for each entity."""

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event and the values of an entity; None where it is unknown."""


def latest(feature_set: FeatureSet, rows: pl.DataFrame, at: datetime) -> list[Encoded]:
    """Return the row of each entity that counts at a time, from transformed rows."""
    keys = list(feature_set.keys)
    known = placed(rows, feature_set.transformed, keys)
    known = (
        known.filter(pl.col(AVAILABLE) <= pl.lit(at).dt.cast_time_unit("ns"))
        .sort(EVENT, AVAILABLE, maintain_order=True)
        .unique(keys, keep="last", maintain_order=True)
    )
    times = known.select(pl.col(EVENT, AVAILABLE).to_physical()).rows()
    values = known.select(_written(feature_set)).rows()
    return [
        (_key(key), event, available, json.dumps(row))
        for key, (event, available), row in zip(
            known.select(keys).rows(), times, values, strict=True
        )
    ]


def _written(feature_set: FeatureSet) -> Iterator[pl.Expr]:
    """Yield the features as JSON has them: times as microseconds, bytes as hexadecimal text."""
    for name, kind in feature_set.features.items():
        column = pl.col(name)
        if kind == pl.Binary:
            column = column.bin.encode("hex")
        yield column.to_physical() if kind.is_temporal() else column


def _key(values: Sequence[object]) -> str:
    return json.dumps(values, default=str, ensure_ascii=False)


def refresh(
    feature_set: FeatureSet, store: Path, online: OnlineStore, at: datetime | None = None
) -> int:
    """Put the materialised rows that are available at a time (default: now); return how many.

    Memory: the materialised rows. Raises FeatureError as `store.files` does.
    """
    paths = files(feature_set, store)
    if not paths:
        return 0
    rows = pl.concat(pl.read_parquet(path, hive_partitioning=False) for path in paths)
    encoded = latest(feature_set, rows, at or datetime.now(UTC))
    online.put(encoded)
    return len(encoded)


def look_up(
    feature_set: FeatureSet,
    online: OnlineStore,
    keys: Mapping[str, object],
    at: datetime | None = None,
) -> Answer:
    """Return the values of an entity at a time (default: now).

    An unknown entity, and one whose event is `temporal_join_lookback` or longer ago, has None for
    each feature, as in the join.

    Raises FeatureError for a key that is missing.
    """
    missing = [name for name in feature_set.keys if name not in keys]
    if missing:
        expected = ", ".join(feature_set.keys)
        raise FeatureError("missing-column", f"there is no key `{missing[0]}`", expected)
    nothing = dict.fromkeys(feature_set.features)
    row = online.get(_key([keys[name] for name in feature_set.keys]))
    if row is None:
        return Answer("unknown", nothing, None, None)
    event = _EPOCH + timedelta(microseconds=row[0] // 1000)
    age = (at or datetime.now(UTC)) - event
    if feature_set.lookback is not None and age >= feature_set.lookback:
        return Answer("stale", nothing, event, age)
    values = zip(feature_set.features.items(), json.loads(row[1]), strict=True)
    return Answer("found", {name: _read(kind, v) for (name, kind), v in values}, event, age)


def _read(kind: pl.DataType, value: Any) -> object:
    if value is None:
        return None
    if kind == pl.Binary:
        return bytes.fromhex(value)
    return _EPOCH + timedelta(microseconds=value) if kind.is_temporal() else value


class SqliteStore:
    """Latest values in a file, one row per entity; readers do not wait for a writer (WAL)."""

    def __init__(self, feature_set: FeatureSet, path: Path, *, writable: bool = False) -> None:
        """Open the file; `writable` creates it, and empties one of another definition.

        Raises FeatureError when the file does not exist or is of another definition.
        """
        if writable:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            message, command = (
                f"{path} does not exist",
                f"ml features materialize {feature_set.name}",
            )
            raise FeatureError("not-materialized", message, command)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        (digest,) = self._connection.execute("PRAGMA user_version").fetchone()
        wanted = int(feature_set.digest[:7], 16)
        if digest == wanted:
            return
        if not writable:
            message = f"{path} was written from another definition or code"
            expected = f"ml features materialize {feature_set.name}"
            raise FeatureError("not-materialized", message, expected)
        self._connection.executescript(
            "PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; DROP TABLE IF EXISTS latest;"
            "CREATE TABLE latest (key TEXT PRIMARY KEY, event INTEGER, available INTEGER,"
            f" features TEXT) WITHOUT ROWID; PRAGMA user_version = {wanted}; COMMIT"
        )

    def put(self, rows: Sequence[Encoded]) -> None:
        """Store the rows in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            self._connection.executemany(
                "INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                " event = excluded.event, available = excluded.available,"
                " features = excluded.features"
                " WHERE (excluded.event, excluded.available) >= (event, available)",
                rows,
            )

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event and the values of an entity."""
        query = "SELECT event, features FROM latest WHERE key = ?"
        row: tuple[int, str] | None = self._connection.execute(query, (key,)).fetchone()
        return row


class RedisStore:
    """Latest values in Redis, a hash per entity.

    `client` is a `redis.Redis`; for Azure Managed Redis, with TLS and a credential provider for
    Entra ID.
    """

    # Times are compared as texts of equal length: Lua's numbers have 53 bits.
    _PUT = """
    local old = redis.call('HMGET', KEYS[1], 'event', 'available')
    if old[1] and old[1] .. old[2] > ARGV[1] .. ARGV[2] then return 0 end
    return redis.call('HSET', KEYS[1], 'event', ARGV[1], 'available', ARGV[2], 'features', ARGV[3])
    """

    def __init__(self, feature_set: FeatureSet, client: Any) -> None:
        """Keep the values under the name, the version and the digest of the definition."""
        name, version, digest = feature_set.name, feature_set.version, feature_set.digest[:7]
        self._prefix = f"features:{name}:{version}:{digest}:"
        self._client = client

    def put(self, rows: Sequence[Encoded]) -> None:
        """Store each row in one step of the server; a repeat after a failure is harmless."""
        put = self._client.register_script(self._PUT)
        with self._client.pipeline(transaction=False) as pipeline:
            for key, event, available, values in rows:
                times = [f"{time + 2**63:020}" for time in (event, available)]
                put(keys=[self._prefix + key], args=[*times, values], client=pipeline)
            pipeline.execute()

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event and the values of an entity."""
        event, values = self._client.hmget(self._prefix + key, "event", "features")
        return None if event is None else (int(event) - 2**63, values.decode())


def local_path(feature_set: FeatureSet, store: Path) -> Path:
    """Return the SQLite file of a feature set's version in a store."""
    return folder(feature_set, store) / "online.sqlite"


def refresh_local(feature_set: FeatureSet, store: Path) -> int:
    """Put the materialised rows that are available now in SQLite; return how many."""
    online = SqliteStore(feature_set, local_path(feature_set, store), writable=True)
    return refresh(feature_set, store, online)
