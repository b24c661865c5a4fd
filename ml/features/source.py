"""Scan the rows of a source: Parquet or CSV files, checked file by file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from polars import selectors

from ml.features.availability import first_row, readable, with_availability
from ml.features.definition import TYPES, FeatureSet, check_types, in_file
from ml.features.timeline import FeatureError

_TIME = pl.Datetime("us", "UTC")
_COMPLETE = "a complete Parquet or CSV file"
_BLOCK = 2**31 - 1  # bytes of a CSV file that pyarrow infers types from: its maximum
_TEXTS = 0.1  # if at most this share of a CSV column is text, each text is an invalid number
# Column, record and problem in an error of pyarrow.
_WRONG = re.compile(
    r"(?:In CSV column #(\d+): )?Row #(\d+): "
    r"(?:CSV conversion error to [^:]*: )?(?:invalid value |expected a zone offset in )?"
    r"(.*?)(?:\. If these timestamps.*)?",
    re.DOTALL,
)


def files(source: Path) -> dict[str, Path]:
    """Return the Parquet or CSV files of a folder (or one file) by relative name, sorted.

    Names that begin with `_` or `.` are skipped, as in Spark. Raises FeatureError if the source
    does not exist or is empty, and if a file is neither Parquet nor CSV or differs in kind from the
    first.
    """
    if not source.exists():
        message = f"the source {source} does not exist"
        raise FeatureError("missing-file", message, "a file or folder: --source PATH")
    folder = source.parent if source.is_file() else source
    below = [source] if source.is_file() else sorted(source.rglob("*"))
    paths = [path for path in below if not (path.is_dir() or path.name.startswith(("_", ".")))]
    if not paths:
        raise FeatureError("missing-file", f"{source} has no rows", "Parquet or CSV files")
    kind = paths[0].suffix if paths[0].suffix in (".parquet", ".csv") else ".parquet"
    for path in paths:
        if path.suffix != kind:
            expected = f"a file that ends with {kind}, as all others; decompress a .gz"
            raise FeatureError("mixed-files", f"{path} is of another kind", expected)
    return {path.relative_to(folder).as_posix(): path for path in paths}


def digests(paths: dict[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    result = {}
    for name, path in paths.items():
        with readable(path, _COMPLETE), path.open("rb") as stream:
            result[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return result


def scan(
    feature_set: FeatureSet, paths: Mapping[str, Path], checked: Container[str] = ()
) -> dict[str, pl.LazyFrame]:
    """Return the rows of each file, by its name; every file has the columns of the first.

    `checked` are names of files that an earlier run has read: of their Parquet files only the
    schema is read.

    A CSV file states no types. Its keys have the declared types, and its times are in ISO 8601 with
    an offset. The types of other columns follow from their values. A text in a column of nearly
    all numbers is an error. A fraction in any file turns integers into Float64.

    Memory: the largest Parquet file, or all CSV files. Raises FeatureError for a file that is
    empty, truncated or of another schema, or that `with_availability` rejects. The error has the
    file, the column, and the record of a CSV file (the header is 1) or the row of a Parquet file
    (from 0).
    """
    frames: dict[str, pl.LazyFrame] = {}
    types = pl.Schema()
    for name, path in paths.items():
        is_csv = path.suffix == ".csv"
        try:
            with readable(path, _COMPLETE):
                if is_csv:
                    numbers = [column for column, kind in types.items() if kind.is_numeric()]
                    table = _read_csv(feature_set, path, numbers)
                    frame = table.lazy()
                else:
                    frame = pl.scan_parquet(path, hive_partitioning=False, glob=False)
                    table = (frame.head(0) if name in checked else frame).collect()
            with_availability(table, feature_set.timeline, list(feature_set.keys))
            types = types or table.schema
            if is_csv:
                actual = {column: table.schema.get(column, types[column]) for column in types}
                types |= {c: kind for c, kind in actual.items() if _is_wider(kind, types[c])}
                table = table.cast({c: types[c] for c in actual if _is_wider(types[c], actual[c])})
            check_types(table, {name: str(kind) for name, kind in types.items()})
            check_types(table, feature_set.keys)
        except FeatureError as error:
            record = error.row + 2 if is_csv and error.row is not None else None
            raise in_file(error, path, record) from error
        frames[name] = frame
    if is_csv:
        return {name: frame.select(*types).cast(types) for name, frame in frames.items()}
    return {name: frame.select(*types) for name, frame in frames.items()}


def _is_wider(kind: pl.DataType, than: pl.DataType) -> bool:
    """Return whether `kind` holds all values of `than`, so that a column may be widened to it."""
    return kind != than and (than == pl.Null or (than == pl.Int64 and kind == pl.Float64))


def _read_csv(feature_set: FeatureSet, path: Path, numbers: Container[str]) -> pl.DataFrame:
    """Return the typed rows of a CSV file; `numbers` are columns with numbers in other files.

    Raises FeatureError with the row that is wrong, from 0.
    """
    import pyarrow  # an environment with Parquet sources alone does not need it
    from pyarrow import csv as arrow

    timeline = feature_set.timeline
    declared: dict[str, Any] = {
        key: _TIME if kind == "datetime" else getattr(pl, TYPES[kind])
        for key, kind in feature_set.keys.items()
    }
    declared |= dict.fromkeys((timeline.event, timeline.arrival or timeline.event), _TIME)
    typed = pl.DataFrame(schema=declared).to_arrow(compat_level=pl.CompatLevel.oldest())
    try:
        table = arrow.read_csv(
            path,
            # One thread reports row numbers in errors; one block infers types from all values.
            arrow.ReadOptions(use_threads=False, block_size=min(path.stat().st_size + 1, _BLOCK)),
            arrow.ParseOptions(newlines_in_values=True),
            arrow.ConvertOptions(
                column_types=typed.schema, null_values=[""], strings_can_be_null=True
            ),
        )
        names = table.column_names
    except UnicodeDecodeError as error:
        raise FeatureError(
            "unreadable-file", f"header: {error}", "UTF-8, not compressed"
        ) from error
    except pyarrow.ArrowInvalid as error:
        if not (wrong := _WRONG.fullmatch(str(error).removeprefix("CSV parse error: "))):
            raise FeatureError("unreadable-file", str(error), "UTF-8 with a header") from error
        names = pl.scan_csv(path, infer_schema=False, glob=False).collect_schema().names()
        column, record, problem = wrong.groups()
        position, name = int(record) - 2, names[int(column or 0)]
        if column is None:
            expected = f"{len(names)} fields: {', '.join(names)}"
            message = f"a row with other fields than the header: {problem}"
            raise FeatureError("wrong-field-count", message, expected, position) from error
        time = "a time with an offset, such as 2026-03-01T12:00:00Z"
        expected = time if declared[name] == _TIME else str(declared[name])
        raise FeatureError("wrong-type", f"`{name}` is {problem}", expected, position) from error
    if repeated := [name for name in names if names.count(name) > 1]:
        message = f"the column `{repeated[0]}` is there twice"
        raise FeatureError("column-twice", message, "each column once")
    rows = pl.DataFrame(table)
    for texts in rows.select(selectors.string()).drop(feature_set.keys, strict=False):
        is_text = texts.is_not_null() & texts.cast(pl.Float64, strict=False).is_null()
        share = 1 if texts.name in numbers else _TEXTS
        row = first_row(is_text)
        if row is not None and is_text.sum() <= share * texts.count():
            message = f"`{texts.name}` is {texts[row][:40]!r}"
            raise FeatureError("wrong-type", message, "a number, as in most rows", row)
    return rows
