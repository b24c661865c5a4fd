"""Read the rows of a source: Parquet or CSV files, checked file by file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from ml.features.availability import placed
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


def read(feature_set: FeatureSet, paths: Iterable[Path]) -> list[pl.DataFrame]:
    """Return the rows of each file; every file has the columns of the first.

    Memory: the whole files. Raises FeatureError with file, row and column for a file that is
    empty, truncated or of another schema, and for what `placed` rejects.
    """
    tables: list[pl.DataFrame] = []
    for path in paths:
        try:
            table = (
                pl.read_csv(path, try_parse_dates=True, infer_schema_length=None)
                if path.suffix == ".csv"
                else pl.read_parquet(path, hive_partitioning=False)
            )
        except (pl.exceptions.PolarsError, OSError) as error:
            problem = " ".join(str(error).split())
            message = f"{path}: {problem}"
            raise FeatureError("unreadable-file", message, "a complete file") from error
        try:
            placed(table, feature_set.timeline, list(feature_set.keys))
            first = (tables[0] if tables else table).schema
            check_types(table, {**{k: str(v) for k, v in first.items()}, **feature_set.keys})
        except FeatureError as error:
            raise in_file(error, path) from error
        tables.append(table.select(tables[0].columns) if tables else table)
    return tables
