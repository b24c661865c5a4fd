"""Scan the rows of a source: Parquet or CSV files, checked file by file."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from pathlib import Path

import polars as pl

from ml.features.availability import placed, readable
from ml.features.definition import FeatureSet, check_types, in_file
from ml.features.timeline import FeatureError


def files(source: Path) -> dict[str, Path]:
    """Return the Parquet and CSV files of a folder (or one file) by relative name, sorted.

    Raises FeatureError when there is none.
    """
    if source.is_file():
        return {source.name: source}
    found = [path for path in source.rglob("*") if path.suffix in (".parquet", ".csv")]
    if not found:
        raise FeatureError("missing-file", f"{source} has no rows", "Parquet or CSV files")
    return {path.relative_to(source).as_posix(): path for path in sorted(found)}


def digests(paths: dict[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    result = {}
    for name, path in paths.items():
        with path.open("rb") as stream:
            result[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return result


def scan(
    feature_set: FeatureSet, paths: Mapping[str, Path], checked: Container[str] = ()
) -> dict[str, pl.LazyFrame]:
    """Return the rows of each file, by its name; every file has the columns of the first.

    Of the files in `checked`, which were read before, only the schema is read.

    Memory: the largest file. Raises FeatureError with file, row and column for a file that is
    empty, truncated or of another schema, and for what `placed` rejects.
    """
    frames: dict[str, pl.LazyFrame] = {}
    first: dict[str, str] = {}
    for name, path in paths.items():
        with readable(path, "a complete file"):
            frame = (
                pl.scan_csv(path, try_parse_dates=True, infer_schema_length=None)
                if path.suffix == ".csv"
                else pl.scan_parquet(path, hive_partitioning=False)
            )
            table = (frame.head(0) if name in checked else frame).collect()
        try:
            placed(table, feature_set.timeline, list(feature_set.keys))
            first = first or {column: str(kind) for column, kind in table.schema.items()}
            check_types(table, {**first, **feature_set.keys})
        except FeatureError as error:
            raise in_file(error, path) from error
        frames[name] = frame.select(*first)
    return frames
