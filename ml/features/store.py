"""Read the files of materialised features in a store: the current ones, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

import polars as pl

from ml.features.availability import AVAILABLE, EVENT, readable, with_availability
from ml.features.definition import ARRIVAL, FeatureSet
from ml.features.online import Encoded, OnlineStore, key_of, not_materialized
from ml.features.timeline import FeatureError


@dataclass(frozen=True)
class State:
    """The content of state.json: which partitions are materialised, and from what."""

    digest: str = ""  # of the definition and the code
    window: tuple[str, str] | None = None  # first and last date of all runs together
    sources: Mapping[str, str] = field(default_factory=dict)  # sha256 by file
    partitions: Mapping[str, str | None] = field(default_factory=dict)  # sha256; None: no row


def folder(feature_set: FeatureSet, store: Path) -> Path:
    """Return the folder of a feature set's version in a store."""
    return store / feature_set.name / feature_set.version


def state(feature_set: FeatureSet, store: Path) -> State:
    """Return the state of the last complete run; an empty one if there was none.

    Raises FeatureError when state.json cannot be read.
    """
    path = folder(feature_set, store) / "offline" / "state.json"
    try:
        document = json.loads(path.read_text())
        first, last = document["window"]
        mappings = {name: dict(document[name]) for name in ("sources", "partitions")}
        return State(document["digest"], (first, last), **mappings)
    except FileNotFoundError:
        return State()
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise FeatureError("unreadable-state", message, "a folder: --store DIR") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        expected = "a state that a materialisation wrote; delete the folder to start again"
        raise FeatureError("unreadable-state", f"{path}: {error}", expected) from error


def files(feature_set: FeatureSet, store: Path) -> list[Path]:
    """Return the current Parquet files, sorted by date; at least one.

    Raises FeatureError if this definition is not materialised or has no rows.
    """
    current = state(feature_set, store)
    place = folder(feature_set, store) / "offline"
    if not current.digest:
        raise not_materialized(feature_set.name, f"{place} has no rows")
    if current.digest != feature_set.digest:
        message = f"{place} was written from another definition or code"
        raise not_materialized(feature_set.name, message)
    days = sorted(current.partitions.items())
    if paths := [place / partition(day, name) for day, name in days if name]:
        return paths
    raise FeatureError("not-materialized", f"{place} has no rows", "a source with rows")


def stored(feature_set: FeatureSet, store: Path, least: float = inf) -> pl.DataFrame:
    """Return the materialised rows: keys, event time, `arrival` and the features.

    Only as many of the last days are read as have `least` rows together; default: all days. Raises
    FeatureError as `files` does, and for a file that is missing or truncated.
    """
    paths, tables = files(feature_set, store), list[pl.DataFrame]()
    while paths and sum(map(len, tables)) < least:
        tables.insert(0, _table(paths.pop()))
    return pl.concat(tables)


@dataclass(frozen=True)
class Age:
    """How old the newest event or arrival of materialised rows is."""

    what: str  # "event" or "arrival"
    last: datetime  # in UTC
    age: timedelta
    limit: timedelta | None  # it is too old from this age on; None if none is declared

    @property
    def is_late(self) -> bool:
        """Whether the age has reached its limit."""
        return self.limit is not None and self.age >= self.limit


def ages(feature_set: FeatureSet, rows: pl.DataFrame, as_of: datetime) -> tuple[Age, Age]:
    """Return the ages of the newest event and the newest arrival in `rows` (at least one).

    An event is too old when the lookback excludes it from the join, an arrival when the schedule's
    interval and the source's delay have passed.
    """
    due = feature_set.schedule and feature_set.schedule + feature_set.timeline.delay
    event, arrival = rows.select(
        pl.col(feature_set.timeline.event, ARRIVAL).dt.convert_time_zone("UTC").max()
    ).row(0)
    return (
        Age("event", event, as_of - event, feature_set.lookback),
        Age("arrival", arrival, as_of - arrival, due),
    )


def _table(path: Path) -> pl.DataFrame:
    expected = "the file that a materialisation wrote; delete the folder to start again"
    with readable(path, expected):
        return pl.read_parquet(path, hive_partitioning=False, glob=False)


def partition(day: str, digest: str) -> str:
    """Return the path of a partition's file below `offline`."""
    return f"date={day}/{digest}.parquet"


def latest(feature_set: FeatureSet, rows: pl.DataFrame, as_of: datetime) -> pl.DataFrame:
    """Return, from transformed rows, each entity's row with the latest event known at `as_of`."""
    keys = list(feature_set.keys)
    return (
        with_availability(rows, feature_set.transformed, keys)
        .filter(pl.col(AVAILABLE) <= pl.lit(as_of).dt.cast_time_unit("ns"))
        .sort(EVENT, AVAILABLE, maintain_order=True)
        .unique(keys, keep="last", maintain_order=True)
    )


def encode(feature_set: FeatureSet, rows: pl.DataFrame) -> list[Encoded]:
    """Encode rows of `latest` for an online store: key, event in ns, features as JSON."""
    parts = (
        rows.select(list(feature_set.keys)).rows(),
        rows.get_column(EVENT).to_physical(),
        rows.select(_written(feature_set)).rows(),
    )
    return [(key_of(key), event, json.dumps(row)) for key, event, row in zip(*parts, strict=True)]


def _written(feature_set: FeatureSet) -> Iterator[pl.Expr]:
    """Yield the features as JSON has them: times as microseconds, bytes as hexadecimal text."""
    for name, kind in feature_set.features.items():
        column = pl.col(name)
        if kind == "binary":
            column = column.bin.encode("hex")
        yield column.to_physical() if kind == "datetime" else column


def refresh(
    feature_set: FeatureSet, store: Path, online: OnlineStore, as_of: datetime | None = None
) -> int:
    """Write each entity's latest row at `as_of` (default: now) to the online store.

    Return the number of entities. Memory: a row of each entity and the rows of a day. Raises
    FeatureError as `stored` does.
    """
    keys, available_at = list(feature_set.keys), as_of or datetime.now(UTC)
    newest: pl.DataFrame | None = None
    for path in reversed(files(feature_set, store)):  # by event: an earlier day has no newer one
        rows = latest(feature_set, _table(path), available_at)
        earlier = rows if newest is None else rows.join(newest, on=keys, how="anti")
        newest = earlier if newest is None else pl.concat([newest, earlier])
    assert newest is not None
    online.put(encode(feature_set, newest))
    return len(newest)
