"""Read the rows of an AutoML job from its MLTables.

Files are read in chunks to limit memory. Numbers are stored in float32, the precision of the
models, and texts as categories. Columns with numbers above WHOLE stay in float64 until
`ml.automl.tables` decides that they are not categories, groups or times.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ml.serving.scoring.columns import MISSING
from ml.toolkit.automl.cells import as_texts, is_number, single, stop
from ml.toolkit.data import mltables

if TYPE_CHECKING:
    import pandas as pd

# Rows per chunk of a file.
PART = 100_000
# Up to this number, float32 represents every whole number.
WHOLE = 2**24
# Options of an MLTable, their supported values (default first), and the expected value in an error.
# Quoted fields may have line breaks, independent of `support_multi_line`.
_OPTIONS: Sequence[tuple[str, Sequence[Any], str]] = (
    ("include_path_column", (False, None), "include_path_column: false"),
    (
        "header",
        ("all_files_same_headers", "all_files_different_headers", "from_first_file", None),
        "a header in each file or in the first: requests need the column names",
    ),
    (
        "infer_column_types",
        (True, None),
        "infer_column_types: true; `column_name_and_types: {NAME: Categorical}` in the "
        "featurization of a job makes numbers categories",
    ),
    ("empty_as_string", (False, None), "empty_as_string: false; an empty cell is a missing value"),
)


_File = tuple[Path, dict[str, Any]]


@dataclass(frozen=True)
class _ReadOptions:
    """Options for reading the columns."""

    target: str
    label: str  # the target of a classification, where any text is a class, even NA; else ""
    texts: frozenset[str]  # columns that are always read as texts
    # Columns with texts in another file; their numbers keep the spelling of the delimited file.
    digits: frozenset[str] = frozenset()


def read(folder: Path, target: str, *, is_class: bool = True) -> pd.DataFrame:
    """Return the rows of one MLTable; see `read_all`."""
    return read_all([folder], target, is_class=is_class)[0]


def read_all(
    folders: Sequence[Path],
    target: str,
    texts: frozenset[str] = frozenset(),
    *,
    is_class: bool = True,
) -> list[pd.DataFrame]:
    """Return the rows of each MLTable, with its transformations applied.

    Three kinds of columns become categories: those in `texts`, those with texts in any file, and
    booleans; a delimited file's spelling is kept. With `is_class`, the target is read as texts.
    Exits if something is unreadable or unsupported.
    """
    label = target if is_class else ""
    read_options = _ReadOptions(target, label, texts | {label})
    tables = [_read(folder, read_options) for folder in folders]
    if mixed := _mixed(columns for table in tables for _, columns in table):
        tables.clear()
        read_options = replace(read_options, digits=mixed)
        tables += [_read(folder, read_options) for folder in folders]
        _demand_kinds([file for table in tables for file in table], target)
    return [concatenate([columns for _, columns in table]) for table in tables]


def required(folder: Path) -> frozenset[str]:
    """Return the non-nullable columns of an MLTable's Parquet files; empty for other formats.

    A project's `split` step makes columns non-nullable unless its schema marks them `optional`.
    """
    from pyarrow.parquet import read_schema

    table = mltables.describe(folder)
    files = table["files"] if table["read"][0] == "read_parquet" else ()
    fields = [field for file in files for field in read_schema(file)]
    return frozenset(field.name for field in fields) - {
        field.name for field in fields if field.nullable
    }


def _read(folder: Path, read_options: _ReadOptions) -> list[_File]:
    """Return (file, columns) pairs; JSON Lines files are one pair with the first file's name."""
    try:
        table = mltables.describe(folder)
        how, options = table["read"] or ["", {}]
        files = [Path(file) for file in table["files"]]
        if not (folder / mltables.FILE).is_file() or not files or not how:
            raise mltables.Unreadable(
                f"{folder} has no MLTable with `paths` and a `read_…` transformation"
            )
        _refuse_options(folder / mltables.FILE, options)
        if how == "read_delimited":
            is_first = options.get("header") == "from_first_file"
            heads = [files[0] if is_first else file for file in files]
            pairs = zip(files, heads, strict=True)
            frames = [_delimited(*part, table, read_options) for part in pairs]
        elif how == "read_parquet":
            frames = [_parquet(file, table, read_options) for file in files]
        else:
            frames = [_json_lines(files, table, read_options)]
        _demand_same(files, frames)
    except mltables.Unreadable as error:
        stop("bad-mltable", str(error), "read_delimited, read_parquet or read_json_lines")
    return [*zip(files, frames, strict=False)]


def _kept(table: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the column names that remain after the table's column selections, in its order."""
    import pandas as pd

    return [*mltables.select(table, pd.DataFrame(columns=pd.Index(names))).columns]


def _mixed(tables: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the columns with texts in one table and numbers in another; empty ones are ignored."""
    kinds: dict[str, set[bool]] = {}
    for table in tables:
        for name, values in table.items():
            if values.notna().any():
                kinds.setdefault(name, set()).add(is_number(values))
    return frozenset(name for name, value in kinds.items() if len(value) > 1)


def _demand_kinds(tables: Sequence[_File], target: str) -> None:
    """Exit if a column still has texts in one file and numbers in another.

    In delimited files such numbers were already read as texts, so a typed file has the numbers.
    """
    for name in sorted(_mixed(columns for _, columns in tables)):
        first: dict[str, Path] = {}
        for file, table in tables:
            if name in table and table[name].notna().any():
                kind = "numbers" if is_number(table[name]) else "texts"
                first.setdefault(kind, file)
        actual = f"`{name}` has texts in {first['texts']} and numbers in {first['numbers']}"
        hint = f"column_name_and_types: {{{name}: Categorical}} reads both as texts"
        stop("type-mismatch", actual, "one type in all files", hint if name != target else "")


def _refuse_options(file: Path, options: Mapping[str, Any]) -> None:
    """Exit if an MLTable option has an unsupported value."""
    for name, usual, expected in _OPTIONS:
        if (value := options.get(name, usual[0])) not in usual:
            written = str(value).lower() if isinstance(value, bool) else value
            stop("bad-mltable", f"{file}: `{name}: {written}`", expected)


def _demand_same(files: Sequence[Path], tables: Sequence[Mapping[str, Any]]) -> None:
    """Exit if the files of a table have different columns."""
    for file, table in zip(files, tables, strict=False):
        lacks = [f"lacks `{name}`" for name in tables[0] if name not in table]
        more = [f"also has `{name}`" for name in table if name not in tables[0]]
        if lacks or more:
            actual = f"{file} {', '.join((lacks + more)[:5])}"
            stop("column-mismatch", actual, f"the columns of {files[0]}", "add or drop it")


def _delimited(
    file: Path, of_names: Path, table: Mapping[str, Any], read_options: _ReadOptions
) -> dict[str, Any]:
    """Return the columns of a delimited file; `of_names` is the file with the header."""
    import pandas as pd
    from pandas.api import types

    options = table["read"][1]
    encoding, delimiter = str(options.get("encoding") or "utf8"), options.get("delimiter") or ","
    if len(str(delimiter)) > 1:
        stop("bad-mltable", f"{file}: `delimiter: {delimiter}`", 'one character, such as "\\t"')
    shared: dict[str, Any] = {
        "sep": str(delimiter),
        "encoding": mltables.ENCODINGS.get(encoding, encoding),
        "keep_default_na": False,
        "skipinitialspace": True,
        # Otherwise a trailing delimiter makes the first column the index.
        "index_col": False,
    }
    try:
        first: dict[str, Any] = {"header": None, "nrows": 1, "dtype": str, "na_values": [""]}
        header = pd.read_csv(of_names, **first, **shared).iloc[0]
        wrong = header[header.isna() | header.duplicated()]
        if len(wrong):
            what = "an empty name" if wrong.isna().any() else f"`{wrong.iloc[0]}` twice"
            stop("column-names", f"{file} has {what} in its header", "unique names", "rename it")
        names = [str(item) for item in header]
        chosen = _kept(table, names)
        shared |= {"header": 0 if of_names == file else None, "names": names, "chunksize": PART}
        # In the label column, only an empty text is missing; `NA` is a class name.
        shared["na_values"] = {name: sorted(MISSING) for name in names} | {read_options.label: [""]}
        texts = {name for name in chosen if name in read_options.texts | read_options.digits}
        columns: list[dict[str, Any]] = []
        with warnings.catch_warnings():
            # Turn the pandas warning about fields without a column into an error.
            warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
            arguments: dict[str, Any] = {"dtype": dict.fromkeys(texts, str), "low_memory": False}
            with pd.read_csv(file, **arguments, **shared) as parts:
                for part in parts:
                    # pandas loses the spelling of booleans, so they are read again as texts.
                    flags = {name for name in chosen if types.infer_dtype(part[name]) == "boolean"}
                    texts |= flags
                    columns.append(_compact(part[chosen], read_options))
        # Read columns again as texts if some chunks have numbers and others texts.
        as_texts = _mixed(columns) | texts - arguments["dtype"].keys()
        if again := [name for name in chosen if name in as_texts]:
            arguments = {"usecols": again, "dtype": str}
            with pd.read_csv(file, **arguments, **shared) as parts:
                for index, part in enumerate(parts):
                    columns[index] |= _compact(part, read_options)
        return {str(name): value for name, value in concatenate(columns).items()}
    except pd.errors.ParserWarning:
        actual = f"{file} has rows with more fields than the header"
        stop("unreadable", actual, "one field per column; quote a field that has the delimiter")
    except (OSError, UnicodeDecodeError, LookupError, pd.errors.ParserError) as error:
        stop("unreadable", f"{file}: {error}", "UTF-8 text with the delimiter of the MLTable")
    except pd.errors.EmptyDataError:
        stop("unreadable", f"{file} is empty", "a header and rows")


def _json_lines(
    files: Sequence[Path], table: Mapping[str, Any], read_options: _ReadOptions
) -> dict[str, Any]:
    """Return the columns of all JSON Lines files; keys that a line lacks are missing values."""
    import pandas as pd

    rows = []
    for file in files:
        try:
            rows.append(mltables.json_lines(file, table["read"][1]))
        except (mltables.Unreadable, OSError, LookupError) as error:
            stop("unreadable", str(error), "one JSON object per line, in the MLTable's encoding")
    columns: dict[str, Any] = {}
    for name in _kept(table, dict.fromkeys(name for part in rows for row in part for name in row)):
        for file, part in zip(files, rows, strict=True):
            if any(isinstance(row.get(name), list | dict) for row in part):
                _refuse_nested(file, name)
        cells = [row.get(name) for part in rows for row in part]
        # object, because a missing value would turn large integers into rounded floats.
        kind = object if name in read_options.texts else None
        columns |= _compact(pd.DataFrame({name: pd.Series(cells, dtype=kind)}), read_options)
    return columns


def _refuse_nested(file: Path, name: str) -> NoReturn:
    actual = f"{file} has a list or an object in `{name}`"
    stop("unreadable", actual, "a number, string or boolean in each cell")


def _refuse_kind(file: Path, name: str, kind: str) -> NoReturn:
    actual = f"{file} has `{name}` of type {kind}, which JSON requests cannot have"
    expected = "a number, string, date or boolean"
    stop("unreadable", actual, expected, f"drop it in the MLTable: `drop_columns: {name}`")


def _parquet(file: Path, table: Mapping[str, Any], read_options: _ReadOptions) -> dict[str, Any]:
    """Return the columns of a Parquet file, which are read one at a time to save memory."""
    from pyarrow import ArrowException, types
    from pyarrow.parquet import read_schema, read_table

    columns: dict[str, Any] = {}
    try:
        schema = read_schema(file)
        names = [name for name in schema.names if not name.startswith("__index_level_")]
        for name in _kept(table, names):
            dtype = schema.field(name).type
            if types.is_nested(dtype):
                _refuse_nested(file, name)
            if types.is_duration(dtype) or types.is_time(dtype) or "binary" in str(dtype):
                _refuse_kind(file, name, str(dtype))
            # A missing value would otherwise turn large integers into rounded floats.
            is_text = name in read_options.texts
            column = read_table(file, columns=[name])
            rows = column.to_pandas(integer_object_nulls=is_text)
            if name not in rows:  # pandas has made this column the index
                rows = rows.reset_index()
            if types.is_decimal(dtype) and not is_text:
                rows = rows.astype(np.float64)
            columns |= _compact(rows, read_options)
    except (ArrowException, OSError) as error:
        stop("unreadable", f"{file}: {error}", "a valid Parquet file")
    return columns


def _compact(rows: pd.DataFrame, read_options: _ReadOptions) -> dict[str, Any]:
    """Return the columns in compact types: float32 or small integers, and categories for texts.

    A numeric target is not changed.
    """
    import pandas as pd
    from pandas.api import types

    columns = {}
    for name, values in rows.items():
        cells: Any = values.reset_index(drop=True)
        if name == read_options.label:
            cells = as_texts(cells, missing=frozenset({""}))
        elif str(cells.dtype) == "category":
            cells = cells.cat.as_unordered()
        elif (
            name in read_options.texts
            or types.is_object_dtype(cells)
            or types.is_string_dtype(cells)
        ):
            cells = cells.astype("category")
        elif name == read_options.target or not is_number(cells):
            pass
        elif isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iu":
            cells = pd.to_numeric(cells, downcast="integer")
        else:
            numbers = cells.to_numpy(np.float64, na_value=np.nan)
            # Larger numbers may be ids, which float32 would merge.
            cells = pd.Series(numbers if (np.abs(numbers) > WHOLE).any() else single(numbers))
        columns[str(name)] = cells
    return columns


def concatenate(tables: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Concatenate tables with the same columns, one column at a time; empties the inputs."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    columns: dict[str, Any] = {}
    for name in [*tables[0]] if len(tables) > 1 else ():
        parts = [table[name] for table in tables]
        coded = [part for part in parts if str(part.dtype) == "category"]
        kinds = {part.cat.categories.dtype for part in coded}
        if len(coded) == len(parts) and len(kinds) == 1:
            columns[name] = pd.Series(union_categoricals(parts))
        else:
            columns[name] = pd.concat(parts, ignore_index=True)
            if coded:
                columns[name] = columns[name].astype("category")
        for table in tables:
            del table[name]
    return pd.DataFrame(columns or tables[0], copy=False)
