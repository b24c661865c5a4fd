"""Scan the rows of a source: Parquet or CSV files, checked file by file."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import polars as pl

from ml.features.availability import first_row, placed, readable
from ml.features.definition import TYPES, FeatureSet, check_types, in_file
from ml.features.timeline import FeatureError

_Type = pl.DataType | type[pl.DataType]
_TIME = pl.Datetime("us", "UTC")
_FORMAT = "%+"  # ISO 8601 with an offset
_NO_UTF8 = re.compile(r"[\udc80-\udcff]")  # what `surrogateescape` makes of an invalid byte


def files(source: Path) -> dict[str, Path]:
    """Return the Parquet or CSV files of a folder (or one file) by relative name, sorted.

    Names that begin with `_` or `.` are no data, as in Spark. Raises FeatureError when the source
    does not exist or is empty, and for a file of another kind, or of another than the first.
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
        with readable(path, "a Parquet or CSV file"), path.open("rb") as stream:
            result[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return result


def scan(
    feature_set: FeatureSet, paths: Mapping[str, Path], checked: Container[str] = ()
) -> dict[str, pl.LazyFrame]:
    """Return the rows of each file, by its name; every file has the columns of the first.

    Of the Parquet files in `checked`, which were read before, only the schema is read.

    A CSV file states no types. Its keys have the declared ones, and its times are in ISO 8601 with
    an offset. Any other column is Int64, Float64 or String by its first values; a fraction in any
    file makes integers Float64.

    Memory: the largest file. Raises FeatureError for a file that is empty, truncated or of another
    schema, and for what `placed` rejects: with file and column, and with the line in a CSV file or
    the row, from 0, in a Parquet file.
    """
    frames: dict[str, pl.LazyFrame] = {}
    first: dict[str, str] = {}
    csv_types = _CsvTypes(feature_set)
    for name, path in paths.items():
        is_csv = path.suffix == ".csv"
        with readable(path, "a complete file"):
            if is_csv:
                frame, table = pl.scan_csv(path, infer_schema=False, glob=False), _texts(path)
            else:
                frame = pl.scan_parquet(path, hive_partitioning=False, glob=False)
                table = (frame.head(0) if name in checked else frame).collect()
        try:
            table = csv_types.apply(table) if is_csv else table
            placed(table, feature_set.timeline, list(feature_set.keys))
            kinds = table.schema.items()
            first = first or {column: "" if is_csv else str(kind) for column, kind in kinds}
            check_types(table, {**first, **feature_set.keys})
        except FeatureError as error:
            line = _line(path, error.row) if is_csv and error.row is not None else None
            raise in_file(error, path, line) from error
        frames[name] = frame.select(*first)
    if is_csv:
        return {name: frame.with_columns(csv_types.casts(first)) for name, frame in frames.items()}
    return frames


@contextmanager
def texts_named(feature_set: FeatureSet, source: Path) -> Iterator[None]:
    """Name the source of rows that a transformation fails for, and the first text among numbers.

    A CSV column with one is a String. Raises the FeatureError of the transformation with the
    source, or with file, line and column if its message names a column of which most cells are
    numbers.
    """
    try:
        yield
    except FeatureError as error:
        for path in files(source).values():
            if path.suffix != ".csv":
                break
            for texts in pl.read_csv(path, infer_schema=False, glob=False).drop(feature_set.keys):
                is_text = texts.is_not_null() & texts.cast(pl.Float64, strict=False).is_null()
                row, is_mostly_numbers = first_row(is_text), 2 * is_text.sum() < texts.count()
                if row is not None and is_mostly_numbers and texts.name in error.message:
                    cause = error.message.partition("\n")[0]
                    message = f"`{texts.name}` is {texts[row][:40]!r}; {cause}"
                    wrong = FeatureError("wrong-type", message, "a number, as in most rows", row)
                    raise in_file(wrong, path, _line(path, row)) from error
        raise in_file(error, source) from error


class _CsvTypes:
    """The types of the columns of CSV files, by what is declared and by the files so far."""

    def __init__(self, feature_set: FeatureSet) -> None:
        timeline = feature_set.timeline
        self._declared: dict[str, _Type] = {
            key: _TIME if kind == "datetime" else getattr(pl, TYPES[kind])
            for key, kind in feature_set.keys.items()
        }
        self._declared |= dict.fromkeys((timeline.event, timeline.arrival or timeline.event), _TIME)
        self._inferred: dict[str, _Type] = {}

    def casts(self, columns: Iterable[str], *, strict: bool = True) -> Iterator[pl.Expr]:
        """Yield the typed columns of a table of texts; without `strict`, wrong texts are null."""
        for column in columns:
            kind = self._declared.get(column) or self._inferred.get(column, pl.String)
            yield (
                pl.col(column).str.to_datetime(_FORMAT, time_zone="UTC", strict=strict)
                if kind == _TIME
                else pl.col(column).cast(kind, strict=strict)
            )

    def apply(self, texts: pl.DataFrame) -> pl.DataFrame:
        """Return the table with its types; raise FeatureError for the first wrong cell."""
        for series in texts:
            kind, known = _inferred(series), self._inferred.get(series.name)
            if known is None or (known, kind) == (pl.Int64, pl.Float64):
                self._inferred |= {} if kind is None else {series.name: kind}
        table = texts.select(self.casts(texts.columns, strict=False))
        for series in table:
            text = texts.get_column(series.name)
            row = first_row(series.is_null() & text.is_not_null())
            if row is not None:
                time = "a time with an offset, such as 2026-03-01T12:00:00Z"
                expected = time if series.dtype == _TIME else str(series.dtype)
                message = f"`{series.name}` is {text[row][:40]!r}"
                raise FeatureError("wrong-type", message, expected, row)
        return table


def _inferred(texts: pl.Series) -> _Type | None:
    if texts.null_count() == len(texts):
        return None
    for kind in (pl.Int64, pl.Float64):
        if texts.cast(kind, strict=False).null_count() == texts.null_count():
            return kind
    return pl.String


def _texts(path: Path) -> pl.DataFrame:
    """Return the cells of a CSV file.

    Raises FeatureError with the line for what polars accepts (a column that is there twice, missing
    fields, a header that is no UTF-8) or states without a line.
    """
    try:
        texts = pl.read_csv(path, infer_schema=False, glob=False)
    except pl.exceptions.ComputeError:
        _check_records(path)
        raise
    _check_records(path, None if texts[:, -1].null_count() else 1)
    return texts


def _check_records(path: Path, most: int | None = None) -> None:
    """Raise FeatureError for the first wrong record, of all or of so many, the header included."""
    header: list[str] = []
    for line, record in islice(_records(path), most):
        header = header or record
        if _NO_UTF8.search("".join(record)):
            raise FeatureError("unreadable-file", f"{path}:{line}: invalid UTF-8", "UTF-8")
        if twice := [name for name in header if header.count(name) > 1]:
            message = f"{path}:{line}: the column `{twice[0]}` is there twice"
            raise FeatureError("bad-header", message, "each column once")
        if record and len(record) != len(header):
            message = f"{path}:{line}: {len(record)} fields"
            expected = f"{len(header)} fields: {', '.join(header)}"
            raise FeatureError("wrong-field-count", message, expected)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each record that polars counts, the header first."""
    line, is_data, quotes = 1, False, 0

    def counted(lines: Iterable[str]) -> Iterator[str]:
        nonlocal quotes
        for text in lines:
            quotes += text.count('"')
            yield text

    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as stream:
        reader = csv.reader(counted(stream), strict=True)
        try:
            for record in reader:
                if quotes % 2:  # csv accepts a quote inside a field without quotes, polars does not
                    raise csv.Error("odd number of quotes")
                is_data |= bool(record)  # polars skips blank lines before the header only
                if is_data:
                    yield line, record
                line = reader.line_num + 1
        except csv.Error as error:
            expected = 'closed quotes, and "" for a quote inside a field'
            raise FeatureError("unreadable-file", f"{path}:{line}: {error}", expected) from error


def _line(path: Path, row: int) -> int:
    """Return the line of a row of a CSV file."""
    return next(islice(_records(path), row + 1, None))[0]
