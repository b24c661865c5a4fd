"""Point-in-time join of feature sets to the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ml.measures.reference import Columns
from ml.measures.schema import TrainingSet, UsedFeatureSet
from ml.serving.scoring.columns import Row, Value
from ml.toolkit.data.tables import Table

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FeatureJoin:
    """The feature sets of a project, and the columns computed from them."""

    sets: tuple[Path, ...]  # the definition files, NAME.yml
    # Called with a row's time (seconds since 1970) and the feature values at that time (None if
    # unknown). Returns the schema's columns with `feature_set`.
    columns: Callable[[float, Mapping[str, Value]], Row]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the feature sets."""
        return tuple(path.stem for path in self.sets)


def seconds(time: str) -> float:
    """Convert an ISO 8601 time to epoch seconds; a time without a zone is in UTC."""
    moment = datetime.fromisoformat(time)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def join(
    table: Table, time: str, features: FeatureJoin, sources: Mapping[str, Path]
) -> tuple[list[Row], TrainingSet, dict[str, Columns]]:
    """Join the feature values at each row's time; `time` is the name of the time column.

    Return the joined columns of each row, a description of the join, and each set's numeric and
    categorical values for drift monitoring. `sources` maps a set's name to the folder of its
    source; the default is the local source. Exits if a definition or a source is invalid.
    """
    import polars as pl  # not in every environment of a node

    from ml.features.definition import read
    from ml.features.timeline import FeatureError
    from ml.features.training_set import training_set

    times = [seconds(text) for text in table.column(time)]
    names = [column.name for column in table.schema.columns]
    labels = pl.DataFrame(
        dict(zip(names, zip(*table.rows, strict=True), strict=True)),
        schema=dict.fromkeys(names, pl.String),
    ).with_columns(pl.from_epoch(pl.Series(time, times) * 1e6, "us").dt.replace_time_zone("UTC"))
    try:
        sets = [read(path) for path in features.sets]
        joined = training_set(labels, sets, time=time, sources=sources)
    except FeatureError as error:
        raise SystemExit(
            f"error[{error.code}]: {error.message}\n  expected: {error.expected}"
        ) from None
    for used in joined.sets:
        if used.last_event is None:
            raise SystemExit(
                f"error[no-known-values]: no row of {table.path} has a value of `{used.name}`\n"
                f"  expected: rows of the feature set that were available at `{time}`\n"
                "  hint: compare the keys and the times of both"
            )
    values = joined.table.select(name for feature_set in sets for name in feature_set.features)
    rows = [
        features.columns(time, row)
        for time, row in zip(times, values.iter_rows(named=True), strict=True)
    ]
    used_sets = TrainingSet(
        digest=joined.digest,
        evaluated=joined.digest,
        first_label=joined.first_label,
        last_label=joined.last_label,
        sets={
            item.name: UsedFeatureSet(item.version, item.digest, item.first_event, item.last_event)
            for item in joined.sets
        },
    )
    return (
        rows,
        used_sets,
        {item.name: _compared(joined.table.select(*item.features)) for item in sets},
    )


def _compared(values: pl.DataFrame) -> Columns:
    """Return the numeric and categorical columns with any value, as (kind, values)."""
    return {
        column.name: ("numeric" if column.dtype.is_numeric() else "categorical", column.to_list())
        for column in values
        if str(column.dtype) in ("String", "Boolean") or column.dtype.is_numeric()
        if column.null_count() < len(column)
    }
