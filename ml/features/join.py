"""The point-in-time join: for each label, the values that were known at its time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import polars as pl

from ml.features.availability import (
    AVAILABLE,
    EVENT,
    ROW,
    check_key,
    check_table,
    instants,
    readable,
    span,
    with_availability,
)
from ml.features.timeline import FeatureError, Timeline

_LABEL = "__label__"
_TIME = "__time__"
_NUMBER = "__number__"
# Estimated bytes in memory, sorted copies included, per byte of a compressed file and per value.
# The larger estimate is used, since equal values take no space in a file. Both are pessimistic.
_OF_BYTE, _OF_VALUE = 8, 16
_WRITTEN = "files that a materialisation wrote"


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

    Among the rows with the label's keys that were available at `time`, the one with the latest
    event counts. On a tie the row that became available last counts, then the last of the table.
    Features are null if there is no row, or if its event is `lookback` or longer before `time`.

    A row that becomes available after a newer event of its keys is never the latest known one.
    Without these rows one as-of join on availability is exact, in O(n log n).

    Memory: sorted copies of the keys, two times and the positions of `rows`. Raises FeatureError
    for a column that is missing, occurs twice, or has another type than in the other table.
    """
    check_table(labels)
    names = [*labels.columns, *features]
    for name in features:
        if names.count(name) > 1:
            raise FeatureError("column-twice", f"two columns are called `{name}`", "other names")
    label_times = instants(labels, time).alias(_TIME)
    candidates = with_availability(rows, timeline, keys)
    for name in features:
        if name not in rows.columns:
            message = f"the feature rows have no column `{name}`"
            raise FeatureError("missing-column", message, "a column for each of `features`")
    for key in keys:
        check_key(labels, key)
        ours, theirs = labels.schema[key], rows.schema[key]
        if ours != theirs:
            raise FeatureError("wrong-type", f"`{key}` of the labels is {ours}", str(theirs))
    candidates = (
        candidates.lazy()  # polars then sorts and filters in one pass
        .select(*keys, EVENT, AVAILABLE, ROW)
        .sort(AVAILABLE, maintain_order=True)
        .filter(pl.col(EVENT) >= pl.col(EVENT).cum_max().over(keys))
        .collect()
    )
    joined = (
        labels.select(*keys)
        .with_columns(label_times)
        .with_row_index(_LABEL)
        .sort(_TIME)
        .join_asof(
            candidates,
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

    If the rows need more than `memory` bytes, the entities are split by a hash of their keys, and
    the parts are joined one after another. Every part reads all files.

    Memory: the labels with their features, and `memory` bytes, or the rows of one entity if these
    are more.
    """
    needed = {*keys, *features, timeline.event, timeline.arrival or timeline.event}
    rows = pl.scan_parquet([*files], hive_partitioning=False, glob=False).select(*sorted(needed))
    with readable(files[0].parent, _WRITTEN):
        values = rows.select(pl.len()).collect().item() * len(needed)
    compressed = sum(path.stat().st_size for path in files)
    parts = 1 + max(_OF_BYTE * compressed, _OF_VALUE * values) // memory
    part = pl.struct(keys).hash() % parts
    numbered = labels.with_row_index(_NUMBER)
    join = partial(point_in_time, keys=keys, time=time, timeline=timeline, lookback=lookback)
    joined = []
    for number in range(parts):
        with readable(files[0].parent, _WRITTEN):
            table = rows.filter(part == number).collect(engine="streaming")
        joined.append(join(numbered.filter(part == number), table, features=features))
    return pl.concat(joined).sort(_NUMBER).drop(_NUMBER)
