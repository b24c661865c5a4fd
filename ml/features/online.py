"""Store and look up the latest values per entity, in SQLite or Redis, without polars.

A lookup returns what the point-in-time join would return.
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
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

from ml.features.definition import FeatureSet
from ml.features.timeline import FeatureError

if TYPE_CHECKING:
    from ml.features.entra import EntraSignIn

# Key, event in nanoseconds, and values as JSON.
Encoded = tuple[str, int, str]
# Timeout of a Redis connection and of a response; each is tried twice.
REDIS_TIMEOUT_S = 0.25
_COMPLETE = ""  # this field marks a Redis hash as written by `put`; no key is empty
_ABANDONED_S = 3600  # seconds after which Redis deletes the hash of a killed `put`
KEYS: Mapping[str, type] = {  # Azure ML's name of a type → that of a key in a lookup
    **dict.fromkeys(("integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **{"string": str, "boolean": bool, "binary": bytes, "datetime": datetime},
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Answer:
    """The result of a lookup: the values of an entity."""

    status: Literal["found", "unknown", "stale"]
    values: Mapping[str, object]  # by feature; all None unless `found`
    event: datetime | None  # of the values, in UTC; None where unknown
    age: timedelta | None  # since `event`


def open_store(feature_set: FeatureSet, address: str) -> OnlineStore:
    """Return the store at a Redis URL (redis://, rediss://), or in the folder of a local store.

    `?credential=azure.identity:DefaultAzureCredential` signs in with Entra ID, with tokens from an
    instance of that class. The first lookup opens the connection. Raises FeatureError if the URL is
    malformed.
    """
    if "://" not in address:
        return SqliteStore(feature_set, local_path(feature_set, Path(address)))
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from ml.features.entra import EntraSignIn

    times = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
    try:
        url = urlsplit(address)
        options = dict(parse_qsl(url.query))
        name = options.pop("credential", None)
        sign_in = EntraSignIn(resolve_name(name)()) if name else None
        client = redis.Redis.from_url(
            url._replace(query=urlencode(options)).geturl(),
            retry=Retry(NoBackoff(), 1),
            credential_provider=sign_in,
            **times,
        )
    except (ValueError, ImportError, AttributeError, TypeError) as error:
        expected = "rediss://HOST:PORT, and to sign in by Entra ID ?credential=MODULE:CLASS"
        raise FeatureError("wrong-address", f"URL of Redis: {error}", expected) from error
    return RedisStore(feature_set, client, sign_in)


def key_of(values: Sequence[object]) -> str:
    """Return the key of an entity from the values of its key columns."""
    return json.dumps(values, default=str)


def look_up(
    feature_set: FeatureSet,
    online: OnlineStore,
    keys: Mapping[str, object],
    as_of: datetime | None = None,
) -> Answer:
    """Return the values of an entity at a time (default: now).

    As in the join, all features are None if the entity is unknown or its event is
    `temporal_join_lookback` or longer ago.
    Raises FeatureError for a key that is missing or of another type, and a time without a zone.
    """
    if as_of is not None and as_of.tzinfo is None:
        expected = "a time with a zone, such as 2026-01-31T09:00:00Z"
        raise FeatureError("no-time-zone", "`as_of` has no time zone", expected)
    for name, kind in feature_set.keys.items():
        if name not in keys:
            expected = ", ".join(feature_set.keys)
            raise FeatureError("missing-column", f"there is no key `{name}`", expected)
        if type(keys[name]) is not KEYS[kind]:
            message = f"key `{name}` is {type(keys[name]).__name__}"
            raise FeatureError("wrong-type", message, KEYS[kind].__name__)
    nothing = dict.fromkeys(feature_set.features)
    row = online.get(key_of([keys[name] for name in feature_set.keys]))
    if row is None:
        return Answer("unknown", nothing, None, None)
    event = _EPOCH + timedelta(microseconds=row[0] // 1000)
    age = (as_of or datetime.now(UTC)) - event
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
    """Latest values in a SQLite file that `put` replaces atomically, so that readers never wait.

    Only one writer is allowed.
    """

    def __init__(self, feature_set: FeatureSet, path: Path) -> None:
        """Keep the values in the file; the first `put` creates it."""
        self._path, self._name = path, feature_set.name
        self._definition = int(feature_set.digest[:7], 16)
        self._opened: tuple[int, int] | None = None

    def put(self, rows: Sequence[Encoded]) -> None:
        """Replace all rows, so that entities missing from a corrected source become unknown."""
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(
                "CREATE TABLE latest (key TEXT PRIMARY KEY, event INTEGER, features TEXT)"
                f" WITHOUT ROWID; PRAGMA user_version = {self._definition}"
            )
            connection.executemany("INSERT INTO latest VALUES (?, ?, ?)", rows)
            connection.commit()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._path, connection.serialize())

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event (ns) and the values (JSON) of an entity; None if it is unknown.

        Raises FeatureError if the file does not exist or was written for another definition.
        """
        try:
            file = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise not_materialized(self._name, f"{self._path} does not exist") from None
        try:
            if (file.st_ino, file.st_mtime_ns) != self._opened:
                uri = f"{self._path.absolute().as_uri()}?mode=ro&immutable=1"
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
                self._opened = (file.st_ino, file.st_mtime_ns)
            version = self._connection.execute("PRAGMA user_version").fetchone()
            query = "SELECT event, features FROM latest WHERE key = ?"
            row: tuple[int, str] | None = self._connection.execute(query, (key,)).fetchone()
        except sqlite3.DatabaseError as error:
            message = f"{self._path} cannot be read: {error}"
            raise not_materialized(self._name, message) from error
        if version != (self._definition,):
            message = f"{self._path} was written from another definition or code"
            raise not_materialized(self._name, message)
        return row


class RedisStore:
    """Latest values in Redis: a hash with a field for each entity, which `put` replaces."""

    def __init__(
        self, feature_set: FeatureSet, client: Any, sign_in: EntraSignIn | None = None
    ) -> None:
        """Use `client`, a `redis.Redis`; `sign_in` is its credential provider, if it has one."""
        self._name = feature_set.name
        self._hash = f"features:{self._name}:{feature_set.version}:{feature_set.digest[:7]}"
        self._client, self._sign_in = client, sign_in

    def put(self, rows: Sequence[Encoded]) -> None:
        """Write the rows to a new hash, which then replaces the old one in one transaction."""
        fresh = f"{self._hash}:{uuid4().hex}"
        with self._reached(), self._client.pipeline(transaction=False) as pipeline:
            pipeline.hset(fresh, _COMPLETE, "")
            pipeline.expire(fresh, _ABANDONED_S)
            for key, event, values in rows:
                pipeline.hset(fresh, key, f"{event} {values}")
            pipeline.execute()
            with self._client.pipeline() as replacement:
                replacement.unlink(self._hash)  # frees the memory in the background
                replacement.rename(fresh, self._hash)
                replacement.persist(self._hash)
                replacement.execute()

    def get(self, key: str) -> tuple[int, str] | None:
        """Return the event (ns) and the values (JSON) of an entity; None if it is unknown.

        Raises FeatureError if `put` was never called for this definition, or if the server does
        not respond.
        """
        with self._reached():
            row, is_complete = self._client.hmget(self._hash, key, _COMPLETE)
        if is_complete is None:
            raise not_materialized(self._name, f"Redis has no `{self._hash}`")
        if row is None:
            return None
        event, _, values = row.decode().partition(" ")
        return int(event), values

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Renew the sign-in if it is due, and turn an error of the client into a FeatureError."""
        import redis

        if self._sign_in is not None and self._sign_in.is_due:
            self._client.connection_pool.disconnect(inuse_connections=False)
        try:
            yield
        except redis.RedisError as error:
            message = f"Redis: {type(error).__name__}: {error}"
            expected = "a server that answers; check its URL, network and credentials"
            raise FeatureError("feature-store-unreachable", message, expected) from error


OnlineStore = SqliteStore | RedisStore


def not_materialized(name: str, message: str) -> FeatureError:
    """Return the FeatureError of a store without the rows of a feature set."""
    return FeatureError("not-materialized", message, f"ml features materialize {name}")


def local_path(feature_set: FeatureSet, store: Path) -> Path:
    """Return the SQLite file of a version below STORE/online, the only part that servers read."""
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
