"""The latest values per entity, for an endpoint: in SQLite or Redis. Lookups need no polars.

An entity's value is the one that the join would use: of the latest event among the rows available
so far, and of its corrections the one that became available last.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from ml.features.definition import FeatureSet
from ml.features.timeline import FeatureError

# Event and availability in nanoseconds, and the values as JSON, by key.
Encoded = tuple[str, int, int, str]
# Of a connection and of an answer of Redis; each is tried twice.
REDIS_TIMEOUT_S = 0.25
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
        """Return the event and the values of an entity; None where it is unknown.

        Raises FeatureError when the store cannot be reached.
        """


def open_store(feature_set: FeatureSet, address: str) -> OnlineStore:
    """Return the store at a URL of Redis (redis://, rediss://), or in the folder of a local store.

    It connects with the first lookup. Raises ValueError for a URL that is malformed.
    """
    if not address.startswith(("redis://", "rediss://")):
        return SqliteStore(feature_set, local_path(feature_set, Path(address)))
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    times = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    client = redis.Redis.from_url(address, retry=Retry(NoBackoff(), 1), **times)
    return RedisStore(feature_set, client)


def key_of(values: Sequence[object]) -> str:
    """Return the key of an entity from the values of its key columns."""
    return json.dumps(values, default=str, ensure_ascii=False)


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
    row = online.get(key_of([keys[name] for name in feature_set.keys]))
    if row is None:
        return Answer("unknown", nothing, None, None)
    event = _EPOCH + timedelta(microseconds=row[0] // 1000)
    age = (at or datetime.now(UTC)) - event
    if feature_set.lookback is not None and age >= feature_set.lookback:
        return Answer("stale", nothing, event, age)
    values = zip(feature_set.features.items(), json.loads(row[1]), strict=True)
    return Answer("found", {name: _read(kind, v) for (name, kind), v in values}, event, age)


def _read(kind: str, value: Any) -> object:
    if value is None:
        return None
    if kind == "binary":
        return bytes.fromhex(value)
    return _EPOCH + timedelta(microseconds=value) if kind == "datetime" else value


class SqliteStore:
    """Latest values in a file, one row per entity.

    `put` replaces the file, so a reader waits for nobody and needs no right to write. One writer at
    a time.
    """

    def __init__(self, feature_set: FeatureSet, path: Path) -> None:
        """Keep the values in the file; the first `put` creates it."""
        self._path, self._name = path, feature_set.name
        self._definition = int(feature_set.digest[:7], 16)
        self._opened: tuple[int, int] | None = None

    def put(self, rows: Sequence[Encoded]) -> None:
        """Store the rows; those of another definition are dropped."""
        with closing(sqlite3.connect(":memory:")) as connection:
            if self._path.exists():
                connection.deserialize(self._path.read_bytes())
            if connection.execute("PRAGMA user_version").fetchone() != (self._definition,):
                connection.executescript(
                    "DROP TABLE IF EXISTS latest; CREATE TABLE latest (key TEXT PRIMARY KEY,"
                    " event INTEGER, available INTEGER, features TEXT) WITHOUT ROWID;"
                    f" PRAGMA user_version = {self._definition}"
                )
            connection.executemany(
                "INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
                " event = excluded.event, available = excluded.available,"
                " features = excluded.features"
                " WHERE (excluded.event, excluded.available) >= (event, available)",
                rows,
            )
            connection.commit()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path, connection.serialize())

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event and the values of an entity.

        Raises FeatureError when the file does not exist or is of another definition.
        """
        try:
            file = self._path.stat()
        except FileNotFoundError:
            raise self._unusable("does not exist") from None
        if (file.st_ino, file.st_mtime_ns) != self._opened:
            uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            try:
                version = self._connection.execute("PRAGMA user_version").fetchone()
            except sqlite3.DatabaseError as error:
                raise self._unusable(f"cannot be read: {error}") from error
            if version != (self._definition,):
                raise self._unusable("was written from another definition or code")
            self._opened = (file.st_ino, file.st_mtime_ns)
        query = "SELECT event, features FROM latest WHERE key = ?"
        row: tuple[int, str] | None = self._connection.execute(query, (key,)).fetchone()
        return row

    def _unusable(self, why: str) -> FeatureError:
        command = f"ml features materialize {self._name}"
        return FeatureError("not-materialized", f"{self._path} {why}", command)


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
            with _reached():
                pipeline.execute()

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event and the values of an entity."""
        with _reached():
            event, values = self._client.hmget(self._prefix + key, "event", "features")
        return None if event is None else (int(event) - 2**63, values.decode())


@contextmanager
def _reached() -> Iterator[None]:
    """Turn an error of the client into a FeatureError."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        message = f"Redis: {type(error).__name__}: {error}"
        expected = "a server that answers; check its URL, network and credentials"
        raise FeatureError("feature-store-unreachable", message, expected) from error


def local_path(feature_set: FeatureSet, store: Path) -> Path:
    """Return the SQLite file of a feature set's version in a store.

    All of them are below `online`, the only folder of a store that a model server reads.
    """
    return store / "online" / feature_set.name / f"{feature_set.version}.sqlite"


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that it has either its old or its new content, also after a power cut."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
