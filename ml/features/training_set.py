"""Build a training set: labels joined with feature sets, with the lineage of the joined sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ml.features import source
from ml.features.availability import check_key, instants
from ml.features.definition import FeatureSet, in_file
from ml.features.join import point_in_time, point_in_time_of_files
from ml.features.store import files
from ml.features.timeline import FeatureError

_TIME = "__label_time__"


@dataclass(frozen=True)
class JoinedSet:
    """The lineage of one feature set in a training set."""

    name: str
    version: str
    digest: str  # of its definition and code
    first_event: datetime | None  # of the joined values, in UTC; None if none was joined
    last_event: datetime | None


@dataclass(frozen=True)
class TrainingSet:
    """Labels with the features that were known at their times."""

    table: pl.DataFrame  # the labels, in their order, and one column per feature
    digest: str  # `digest` of `table`
    sets: tuple[JoinedSet, ...]
    first_label: datetime | None  # in UTC; None without labels
    last_label: datetime | None


def training_set(
    labels: pl.DataFrame,
    sets: Sequence[FeatureSet],
    *,
    time: str,
    store: Path | None = None,
    sources: Mapping[str, Path] | None = None,
    memory: int = 4 * 2**30,
) -> TrainingSet:
    """Join labels with the features of each set that were known at the column `time`.

    With a `store`, the features are the materialised ones. Without one, they are computed from
    `sources` (a file or folder by the name of the set; default: the set's local source).

    Memory: the labels with all features, and the rows of one set at a time, or `memory` bytes of
    them as in `point_in_time_of_files`. Raises FeatureError if the join rejects a table, if a set
    is not materialised from this definition, if a source is missing, or if two sets have the same
    feature.
    """
    table, joined = labels, []
    label_times = instants(labels, time)
    for feature_set in sets:
        twice = sorted({*feature_set.features} & {*table.columns})
        if twice:
            message = f"{feature_set.file}: the table already has a column `{twice[0]}`"
            raise FeatureError("column-twice", message, "another name")
        try:
            for key in feature_set.keys:
                check_key(labels, key)
        except FeatureError as error:
            raise in_file(error, f"labels of {feature_set.file}") from error
        path = (sources or {}).get(feature_set.name, feature_set.local_source)
        values = _values(labels, feature_set, time, store, path, memory)
        table = table.hstack(values.select(*feature_set.features))
        first, last = _range(values.get_column(feature_set.timeline.event))
        joined.append(
            JoinedSet(feature_set.name, feature_set.version, feature_set.digest, first, last)
        )
    return TrainingSet(table, digest(table), tuple(joined), *_range(label_times))


def _values(
    labels: pl.DataFrame,
    feature_set: FeatureSet,
    time: str,
    store: Path | None,
    path: Path | None,
    memory: int,
) -> pl.DataFrame:
    """Return, for each label, the joined features of one set and the time of their event."""
    words: dict[str, Any] = {
        "keys": [*feature_set.keys],
        "time": _TIME,
        "timeline": feature_set.transformed,
        "features": [*feature_set.features, feature_set.timeline.event],
        "lookback": feature_set.lookback,
    }
    requests = labels.select(*feature_set.keys, pl.col(time).alias(_TIME))
    if store is not None:
        return point_in_time_of_files(requests, files(feature_set, store), memory=memory, **words)
    if path is None:
        message = f"{feature_set.file}: there is no source on this machine"
        raise FeatureError("missing-source", message, "a tag `local_source`")
    rows = pl.concat(source.scan(feature_set, source.files(path)).values()).collect()
    return point_in_time(requests, feature_set.transform(rows, path), **words)


def _range(times: pl.Series) -> tuple[datetime | None, datetime | None]:
    utc = times.dt.convert_time_zone("UTC").to_frame("time")
    first, last = utc.select(first=pl.col("time").min(), last=pl.col("time").max()).row(0)
    return first, last


def digest(table: pl.DataFrame) -> str:
    """Return the sha256 of the names, types and values of a table's columns, in their order."""
    result = hashlib.sha256()
    for series in table:
        result.update(f"{series.name}\0{series.dtype}\0{len(series)}\0".encode())
        result.update(series.is_null().to_numpy().tobytes())
        kind = series.dtype
        if kind == pl.String:
            lengths = series.str.len_bytes().fill_null(0).to_numpy()
            result.update(lengths.tobytes() + "".join(series.drop_nulls()).encode())
        elif kind == pl.Boolean or (kind.is_numeric() and not kind.is_decimal()):
            result.update(series.fill_null(strategy="zero").to_numpy().tobytes())
        elif kind.is_temporal():
            result.update(series.to_physical().fill_null(0).to_numpy().tobytes())
        else:
            result.update(repr(series.to_list()).encode())
    return result.hexdigest()
