"""Materialise a feature set: daily Parquet files of its transformed rows.

    python -m ml.features.materialize --set card_payments.yml --source DIR --store DIR

STORE/NAME/VERSION/offline/ has `state.json` and `date=YYYY-MM-DD/DIGEST.parquet`, by the UTC date
of the event. A file never changes; `state.json` lists those that count and is replaced last, so a
killed run changes nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from io import BytesIO
from pathlib import Path

import polars as pl

from ml.features import source
from ml.features.availability import (
    AVAILABLE,
    EVENT,
    ROW,
    availability_columns,
    readable,
    with_availability,
)
from ml.features.definition import FeatureSet, read
from ml.features.online import SqliteStore, local_path, open_store, write_file
from ml.features.store import State, folder, partition, refresh, state
from ml.features.timeline import FeatureError

_NEW, _FIRST = "__new__", "__first__"
_TRIED = 20  # rows that `plan` transforms as a test


@dataclass(frozen=True)
class Plan:
    """The partitions that a run writes, with the reason for each."""

    partitions: Mapping[str, str]  # reason by date
    state: State  # of the last run
    sources: Mapping[str, str]  # sha256 by file
    window: tuple[str, str]
    counts: Mapping[str, int]  # rows of the source by date
    rows: pl.LazyFrame = field(repr=False)  # of the source, with EVENT and AVAILABLE
    entities: int = 0  # in the online store; set by `materialize`


def plan(
    feature_set: FeatureSet,
    source_path: Path,
    store: Path,
    start: date | None = None,
    end: date | None = None,
) -> Plan:
    """Return the partitions to write so that the dates from `start` to `end` are up to date.

    Both dates count; the defaults are the first and the last date of the source. A store covers one
    window without gaps: the new dates and those of earlier runs. A partition is written when it is
    new, or when rows of a new source file change it. All partitions are written when the definition
    or a known source file has changed.

    Memory: the largest new source file, or the keys and times of all rows that arrived after the
    earliest row of the new files. Raises FeatureError if the source cannot be read, or if the
    transformation of its first rows fails.
    """
    last = state(feature_set, store)
    is_current = last.digest == feature_set.digest
    paths = source.files(source_path)
    sources = source.digests(paths)
    changed = [name for name, digest in last.sources.items() if sources.get(name) != digest]
    new = [name for name in paths if name not in last.sources]
    frames = source.scan(feature_set, paths, {*paths} - {*new, *changed} if is_current else ())
    rows = pl.concat(
        frame.with_columns(pl.lit(name in new).alias(_NEW)) for name, frame in frames.items()
    ).with_columns(availability_columns(feature_set.timeline))
    counted = rows.group_by(_date(EVENT)).len().sort(EVENT).collect(engine="streaming")
    counts = {str(day): count for day, count in counted.rows()}
    if not counts:
        raise FeatureError("no-rows", f"{source_path} has no rows", "at least one row")
    period = (str(start or min(counts)), str(end or max(counts)))
    if period[0] > period[1]:
        actual = f"from {period[0]} to {period[1]}; the source has {min(counts)} to {max(counts)}"
        raise FeatureError("wrong-window", actual, "a first day that is not after the last one")
    window = last.window or period
    window = (min(window[0], period[0]), max(window[1], period[1]))
    wanted = [day for day in (*counts, *last.partitions) if window[0] <= day <= window[1]]
    reasons: dict[str, str] = {}
    if not is_current:
        reasons = dict.fromkeys(wanted, "definition changed" if last.digest else "new")
    elif changed:
        reasons = dict.fromkeys(wanted, f"source file {changed[0]} changed")
    else:
        affected = _affected(feature_set, rows) if new else set()
        for day in wanted:
            if day not in last.partitions:
                reasons[day] = "new"
            elif day in affected:
                reasons[day] = f"rows of {new[0]}" + (f" and {len(new) - 1} more" * (len(new) > 1))
    if reasons:
        tried = rows.head(_TRIED).drop(_NEW, EVENT, AVAILABLE).collect()
        feature_set.transform(tried, source_path)
    return Plan(dict(sorted(reasons.items())), last, sources, window, counts, rows)


def _date(column: str) -> pl.Expr:
    return pl.col(column).dt.date()


def _affected(feature_set: FeatureSet, rows: pl.LazyFrame) -> set[str]:
    """Return the dates whose transformed rows the new files change.

    Each transformed row belongs to a time of availability and has the latest event known then. New
    rows add times of availability, change the latest event at later ones, and enter windows.
    """
    keys = list(feature_set.keys)
    columns = [*keys, AVAILABLE, EVENT]
    fresh = rows.filter(pl.col(_NEW)).select(columns).collect(engine="streaming")
    if fresh.is_empty():
        return set()
    prior = rows.select(*columns, _NEW).join(fresh.lazy().select(keys).unique(), keys, how="semi")
    is_before = pl.col(AVAILABLE) < fresh.get_column(AVAILABLE).min()
    # Rows before the first new one matter only by each entity's latest event: one row per entity.
    before_it = prior.filter(is_before).group_by(keys).agg(pl.col(AVAILABLE, EVENT).max())
    tail = pl.concat([before_it.with_columns(pl.lit(False).alias(_NEW)), prior.filter(~is_before)])
    recent = tail.collect(engine="streaming")
    before, after = (
        table.sort(AVAILABLE, maintain_order=True)
        .select(*keys, AVAILABLE, pl.col(EVENT).cum_max().over(keys))
        .unique([*keys, AVAILABLE], keep="last", maintain_order=True)
        for table in (recent.filter(~pl.col(_NEW)), recent)
    )
    moved = [before.join(after, columns, how="anti"), after.join(before, columns, how="anti")]
    dates = {str(day) for table in moved for day in table.select(_date(EVENT).unique()).to_series()}
    days = feature_set.source_lookback // timedelta(days=1) + 2
    for day in fresh.select(_date(EVENT).unique()).to_series():
        dates |= {str(day + timedelta(days=number)) for number in range(days)}
    return dates


def materialize(
    feature_set: FeatureSet,
    source_path: Path,
    store: Path,
    start: date | None = None,
    end: date | None = None,
    notify: Callable[[str, int], None] = lambda day, rows: None,
    rows: int = 4_000_000,
) -> Plan:
    """Write the partitions that `plan` returns, then the latest values per entity.

    `notify` receives the date and number of rows of each partition. The result is bit-identical to
    a run from scratch over the same source and window, if a transformed row depends only on rows of
    its keys within `source_lookback`.

    Memory: as `plan`; then the source and transformed rows of several dates, with those of the
    lookback: at most `rows` rows, or one date. Raises FeatureError if another run is active, if the
    store cannot be written, and for errors of the source or the transformation.
    """
    place = folder(feature_set, store) / "offline"
    with _locked(place):
        _remove_unreferenced(place, state(feature_set, store))
        planned = plan(feature_set, source_path, store, start, end)
        partitions = dict(planned.state.partitions)
        for days in _chunks(planned, rows):
            tables = _transformed(feature_set, planned, source_path, days)
            for day in days:
                table = tables.get(day)
                partitions[day] = None if table is None else _write_partition(place, day, table)
                notify(day, 0 if table is None else len(table))
        ordered = dict(sorted(partitions.items()))
        current = State(feature_set.digest, planned.window, planned.sources, ordered)
        write_file(place / "state.json", json.dumps(asdict(current), indent=1).encode())
        if not any(partitions.values()):
            return planned
        online = SqliteStore(feature_set, local_path(feature_set, store))
        return replace(planned, entities=refresh(feature_set, store, online))


def _chunks(planned: Plan, rows: int) -> Iterator[list[str]]:
    """Yield lists of planned dates that span at most `rows` source rows, or single dates."""
    chunk: list[str] = []
    for day in planned.partitions:
        span = sum(count for date, count in planned.counts.items() if chunk[:1] <= [date] <= [day])
        if chunk and span > rows:
            yield chunk
            chunk = []
        chunk.append(day)
    if chunk:
        yield chunk


def _transformed(
    feature_set: FeatureSet, planned: Plan, source_path: Path, days: Sequence[str]
) -> dict[str, pl.DataFrame]:
    """Return the transformed rows of the dates, by date; the order is the same in every run."""
    keys = list(feature_set.keys)
    start, end = (
        pl.lit(datetime.combine(date.fromisoformat(day) + timedelta(days=number), time(), UTC))
        for number, day in enumerate((days[0], days[-1]))
    )
    lookback = pl.lit(feature_set.source_lookback, dtype=pl.Duration("us"))
    # A row older than the lookback is needed if it arrives later: it adds a time of availability.
    needed = (pl.col(EVENT) >= start - lookback) | (pl.col(AVAILABLE) >= start)
    needed &= pl.col(EVENT) < end
    rows = planned.rows
    if max(planned.counts) > days[-1]:
        # Once an entity's first event after these dates is available, its transformed rows belong
        # to later dates.
        first = pl.col(AVAILABLE).min().alias(_FIRST)
        later = rows.filter(pl.col(EVENT) >= end).group_by(keys).agg(first)
        rows = rows.join(later, on=keys, how="left", maintain_order="left")
        needed |= (pl.col(EVENT) >= end) & (pl.col(AVAILABLE) == pl.col(_FIRST))
    rows = rows.filter(needed).drop(_NEW, EVENT, AVAILABLE, _FIRST, strict=False)
    with readable(source_path, "files that stay there"):
        table = rows.collect(engine="streaming")
    table = (
        with_availability(feature_set.transform(table, source_path), feature_set.transformed, keys)
        .with_columns(_date(EVENT).cast(pl.String).alias("__date__"))
        .sort(EVENT, AVAILABLE, *keys, maintain_order=True)
        .drop(EVENT, AVAILABLE, ROW)
    )
    parts = table.partition_by("__date__", as_dict=True, include_key=False)
    return {str(day): part for (day,), part in parts.items()}


def _write_partition(place: Path, day: str, table: pl.DataFrame) -> str:
    buffer = BytesIO()
    table.rechunk().write_parquet(buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    path = place / partition(day, digest)
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        write_file(path, buffer.getvalue())
    return digest


def _remove_unreferenced(place: Path, current: State) -> None:
    """Remove files that state.json does not list: a killed run left them or a run replaced them.

    They are removed at the start of the next run, so that readers of an earlier state find them.
    """
    names = {partition(day, digest) for day, digest in current.partitions.items() if digest}
    for path in place.glob("date=*/*"):
        if path.relative_to(place).as_posix() not in names:
            path.unlink()


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Lock a folder; turn a held lock and errors of the file system into FeatureError."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with (place / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        message = f"{place}: another materialisation is running"
        raise FeatureError("store-locked", message, "one at a time; try again later") from None
    except BrokenPipeError:  # raised by `notify`, which writes to stdout
        raise
    except OSError as error:
        message = f"{error.filename or place}: {error.strerror or error}"
        raise FeatureError(
            "cannot-write", message, "a folder that can be written: --store DIR"
        ) from error


def main(arguments: list[str] | None = None) -> int:
    """Materialise a feature set in a job; return the exit status."""
    parser = ArgumentParser(prog="ml.features.materialize", description=materialize.__doc__)
    parser.add_argument("--set", type=Path, required=True, help="The feature set's file.")
    parser.add_argument("--source", type=Path, help="A file or folder; default: local_source.")
    parser.add_argument("--store", type=Path, required=True, help="The store's folder.")
    parser.add_argument("--online", help="A Redis URL to put the latest values in, too.")
    options = parser.parse_args(arguments)
    try:
        feature_set = read(options.set)
        source_path = options.source or feature_set.local_source
        if source_path is None:
            parser.error("--source is required: the feature set has no tag `local_source`")
        planned = materialize(
            feature_set,
            source_path,
            options.store,
            notify=lambda day, rows: print(f"{day}: {rows:,} rows", flush=True),
        )
        if options.online:
            refresh(feature_set, options.store, open_store(feature_set, options.online))
    except FeatureError as error:
        print(f"error[{error.code}]: {error.message}", file=sys.stderr)
        print(f"  expected: {error.expected}", file=sys.stderr)
        return 2
    written = f"{len(planned.partitions)} partitions and {planned.entities:,} entities written"
    print(f"{feature_set.name} {feature_set.version}: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
