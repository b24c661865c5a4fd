"""The point-in-time join: for each label, the values that were known at its time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import polars as pl

from ml.features.availability import AVAILABLE, EVENT, ROW, instants, placed, readable, span
from ml.features.timeline import FeatureError, Timeline

_LABEL = "__label__"
_TIME = "__time__"
_NUMBER = "__number__"
# Bytes in memory per byte of a compressed file, sorted copies included: a high estimate.
_EXPANSION = 8


def point_in_time(
    labels: pl.DataFrame,
    rows: pl.DataFrame,
    *,
    keys: Sequence[str],
    time: str,
    timeline: Timeline,
    features: Sequence[str],
    lookback: timedelta | None = None,
) -> pl.DataFrame:
    """Return the labels, in their order, with the features of the latest event known at `time`.

    Among the rows with the label's keys that were available at `time` (at or before it), the one
    with the latest event counts. Rows of the same event are corrections of each other: the one
    that became available last counts, then the last of the table. Features are null without such
    a row, and where its event is `lookback` or longer before `time`.

    A row that becomes available after a newer event of its keys is never the latest known one.
    Without these rows, events are in the order of availability, so one as-of join on availability
    is exact, in O(n log n), however many rows an entity has and however late they are.

    Memory: sorted copies of the keys, two times and the positions of `rows`.

    Raises FeatureError for a column that is missing, of another type than its partner, or twice.
    """
    twice = sorted({*features} & {*labels.columns})
    if twice:
        raise FeatureError("column-twice", f"the labels have a column `{twice[0]}`", "other names")
    moments = instants(labels, time).alias(_TIME)
    known = placed(rows, timeline, keys)
    missing = [name for name in (*features, *keys) if name not in known.columns]
    if missing:
        raise FeatureError("missing-column", f"there is no column `{missing[0]}`", "each feature")
    for key in keys:
        _same_type(labels, rows, key)
    known = (
        known.lazy()  # polars then sorts and filters in one pass
        .select(*keys, EVENT, AVAILABLE, ROW)
        .sort(AVAILABLE, maintain_order=True)
        .filter(pl.col(EVENT) >= pl.col(EVENT).cum_max().over(keys))
        .collect()
    )
    joined = (
        labels.select(*keys)
        .with_columns(moments)
        .with_row_index(_LABEL)
        .sort(_TIME)
        .join_asof(
            known,
            left_on=_TIME,
            right_on=AVAILABLE,
            by=[*keys],
            strategy="backward",
            check_sortedness=False,  # sorted above; polars cannot see it within groups
        )
        .sort(_LABEL)
    )
    position = pl.col(ROW)
    if lookback is not None:
        position = pl.when(pl.col(EVENT) > pl.col(_TIME) - span(lookback)).then(ROW)
    positions = joined.select(position).to_series()
    values = rows.select(*features).select(pl.all().gather(positions))
    return labels.hstack(values)


def point_in_time_of_files(
    labels: pl.DataFrame,
    files: Sequence[Path],
    *,
    keys: Sequence[str],
    time: str,
    timeline: Timeline,
    features: Sequence[str],
    lookback: timedelta | None = None,
    memory: int = 4 * 2**30,
) -> pl.DataFrame:
    """Return what `point_in_time` returns for the rows of materialised files, in their order.

    Where the rows need more than `memory` bytes, the entities are split by a hash of their keys,
    and the parts are joined one after another. Every part reads all files.

    Memory: the labels with their features, and `memory` bytes, or the rows of one entity if these
    are more.
    """
    parts = 1 + _EXPANSION * sum(path.stat().st_size for path in files) // memory
    part = pl.struct(keys).hash() % parts
    needed = [*keys, *features, timeline.event, timeline.arrival or timeline.event]
    rows = pl.scan_parquet([*files], hive_partitioning=False).select(*dict.fromkeys(needed))
    numbered = labels.with_row_index(_NUMBER)
    joined = []
    for number in range(parts):
        with readable(files[0].parent, "files that a materialisation wrote"):
            table = rows.filter(part == number).collect(engine="streaming")
        mine = numbered.filter(part == number)
        joined.append(
            point_in_time(
                mine,
                table,
                keys=keys,
                time=time,
                timeline=timeline,
                features=features,
                lookback=lookback,
            )
        )
    return pl.concat(joined).sort(_NUMBER).drop(_NUMBER)


def _same_type(labels: pl.DataFrame, rows: pl.DataFrame, key: str) -> None:
    if key not in labels.columns:
        raise FeatureError("missing-column", f"the labels have no column `{key}`", "each key")
    ours, theirs = labels.get_column(key).dtype, rows.get_column(key).dtype
    if ours != theirs:
        raise FeatureError("wrong-type", f"`{key}` of the labels is {ours}", f"{theirs}")
