"""The rows of a search, read as its MLTable says.

Numbers are kept in single precision, in which models are fitted, and texts as codes of categories:
a file is read a part at a time, so that it never lies in memory otherwise. Large numbers are so
once they are no categories, groups or times (`ml.automl.tables`).
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

# Rows of a file that are read at once.
PART = 100_000
# Up to here single precision has every whole number.
WHOLE = 2**24
# Options of an MLTable, their values that are read here, the usual one first, and what to write. A
# quoted field may have several lines, whatever `support_multi_line` says.
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
class _Request:
    """How columns are read."""

    target: str
    label: str  # the target if it has classes, of which any text is one (even NA); "" otherwise
    texts: frozenset[str]  # columns that are read as texts, whatever they hold
    # Columns that have texts in another file: their numbers are read as a delimited file writes
    # them.
    digits: frozenset[str] = frozenset()


def read(folder: Path, target: str, *, is_class: bool = True) -> pd.DataFrame:
    """Return the rows of one MLTable, as `read_all` gives them."""
    return read_all([folder], target, is_class=is_class)[0]


def read_all(
    folders: Sequence[Path],
    target: str,
    texts: frozenset[str] = frozenset(),
    *,
    is_class: bool = True,
) -> list[pd.DataFrame]:
    """Return the rows of MLTables as their transformations say. Ends the program for what cannot be
    read.

    A target that `is_class` is of texts. The `texts`, columns that are texts somewhere, and those
    of true and false are categories, in a delimited file as it writes them.
    """
    label = target if is_class else ""
    request = _Request(target, label, texts | {label})
    tables = [_read(folder, request) for folder in folders]
    if mixed := _mixed(columns for table in tables for _, columns in table):
        tables.clear()
        request = replace(request, digits=mixed)
        tables += [_read(folder, request) for folder in folders]
        _demand_kinds([file for table in tables for file in table], target)
    return [together([columns for _, columns in table]) for table in tables]


def required(folder: Path) -> frozenset[str]:
    """Return the columns of Parquet files of an MLTable that are not nullable: those that a
    project's schema does not mark `optional`.
    """
    from pyarrow.parquet import read_schema

    table = mltables.describe(folder)
    files = table["files"] if table["read"][0] == "read_parquet" else ()
    fields = [field for file in files for field in read_schema(file)]
    return frozenset(field.name for field in fields) - {
        field.name for field in fields if field.nullable
    }


def _read(folder: Path, request: _Request) -> list[_File]:
    """Each file and its columns; JSON lines are those of all files by the first one's name."""
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
            frames = [_delimited(*part, table, request) for part in pairs]
        elif how == "read_parquet":
            frames = [_parquet(file, table, request) for file in files]
        else:
            frames = [_json_lines(files, table, request)]
        _demand_same(files, frames)
    except mltables.Unreadable as error:
        stop("bad-mltable", str(error), "read_delimited, read_parquet or read_json_lines")
    return [*zip(files, frames, strict=False)]


def _kept(table: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Of these columns those that the table does not leave out, in its order."""
    import pandas as pd

    return [*mltables.select(table, pd.DataFrame(columns=pd.Index(names))).columns]


def _mixed(tables: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Columns that are texts in one of these and numbers in another; no values are neither."""
    kinds: dict[str, set[bool]] = {}
    for table in tables:
        for name, values in table.items():
            if values.notna().any():
                kinds.setdefault(name, set()).add(is_number(values))
    return frozenset(name for name, value in kinds.items() if len(value) > 1)


def _demand_kinds(tables: Sequence[_File], target: str) -> None:
    """End the program if a column has texts in one file and numbers in another.

    Numbers whose digits are written in the file would have been read as texts.
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
    """End the program for an option by which files would be read otherwise than they are here."""
    for name, usual, expected in _OPTIONS:
        if (value := options.get(name, usual[0])) not in usual:
            written = str(value).lower() if isinstance(value, bool) else value
            stop("bad-mltable", f"{file}: `{name}: {written}`", expected)


def _demand_same(files: Sequence[Path], tables: Sequence[Mapping[str, Any]]) -> None:
    """End the program where files of one table have different columns."""
    for file, table in zip(files, tables, strict=False):
        lacks = [f"lacks `{name}`" for name in tables[0] if name not in table]
        more = [f"also has `{name}`" for name in table if name not in tables[0]]
        if lacks or more:
            actual = f"{file} {', '.join((lacks + more)[:5])}"
            stop("column-mismatch", actual, f"the columns of {files[0]}", "add or drop it")


def _delimited(
    file: Path, of_names: Path, table: Mapping[str, Any], request: _Request
) -> dict[str, Any]:
    """Return the columns of a file, by the header of another one or its own."""
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
        # Else a delimiter at the end of each line makes row names of the first column.
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
        # Any text is the name of a class, but none at all.
        shared["na_values"] = {name: sorted(MISSING) for name in names} | {request.label: [""]}
        texts = {name for name in chosen if name in request.texts | request.digits}
        columns: list[dict[str, Any]] = []
        with warnings.catch_warnings():
            # What pandas says of fields that no column has.
            warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
            arguments: dict[str, Any] = {"dtype": dict.fromkeys(texts, str), "low_memory": False}
            with pd.read_csv(file, **arguments, **shared) as parts:
                for part in parts:
                    # Of true and false pandas keeps no spelling.
                    flags = {name for name in chosen if types.infer_dtype(part[name]) == "boolean"}
                    texts |= flags
                    columns.append(_compact(part[chosen], request))
        # Of a column that is not numbers in every part the digits are texts too.
        as_texts = _mixed(columns) | texts - arguments["dtype"].keys()
        if again := [name for name in chosen if name in as_texts]:
            arguments = {"usecols": again, "dtype": str}
            with pd.read_csv(file, **arguments, **shared) as parts:
                for index, part in enumerate(parts):
                    columns[index] |= _compact(part, request)
        return {str(name): value for name, value in together(columns).items()}
    except pd.errors.ParserWarning:
        actual = f"{file} has rows with more fields than the header"
        stop("unreadable", actual, "one field per column; quote a field that has the delimiter")
    except (OSError, UnicodeDecodeError, LookupError, pd.errors.ParserError) as error:
        stop("unreadable", f"{file}: {error}", "UTF-8 text with the delimiter of the MLTable")
    except pd.errors.EmptyDataError:
        stop("unreadable", f"{file} is empty", "a header and rows")


def _json_lines(
    files: Sequence[Path], table: Mapping[str, Any], request: _Request
) -> dict[str, Any]:
    """Read the JSON lines of all files; a line has only the columns that it names."""
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
        # As numbers large ones would be rounded where one is missing.
        kind = object if name in request.texts else None
        columns |= _compact(pd.DataFrame({name: pd.Series(cells, dtype=kind)}), request)
    return columns


def _refuse_nested(file: Path, name: str) -> NoReturn:
    actual = f"{file} has a list or an object in `{name}`"
    stop("unreadable", actual, "a number, string or boolean in each cell")


def _refuse_kind(file: Path, name: str, kind: str) -> NoReturn:
    actual = f"{file} has `{name}` of type {kind}, which JSON requests cannot have"
    expected = "a number, string, date or boolean"
    stop("unreadable", actual, expected, f"drop it in the MLTable: `drop_columns: {name}`")


def _parquet(file: Path, table: Mapping[str, Any], request: _Request) -> dict[str, Any]:
    """A column at a time."""
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
            # As floats large numbers would be rounded where one is missing.
            is_text = name in request.texts
            column = read_table(file, columns=[name])
            rows = column.to_pandas(integer_object_nulls=is_text)
            if name not in rows:  # an index, of which pandas makes row names
                rows = rows.reset_index()
            if types.is_decimal(dtype) and not is_text:
                rows = rows.astype(np.float64)
            columns |= _compact(rows, request)
    except (ArrowException, OSError) as error:
        stop("unreadable", f"{file}: {error}", "a valid Parquet file")
    return columns


def _compact(rows: pd.DataFrame, request: _Request) -> dict[str, Any]:
    """Reduce memory: store numbers in single precision and texts as categories.

    Numbers of the target keep double precision.
    """
    import pandas as pd
    from pandas.api import types

    columns = {}
    for name, values in rows.items():
        cells: Any = values.reset_index(drop=True)
        if name == request.label:
            cells = as_texts(cells, missing=frozenset({""}))
        elif str(cells.dtype) == "category":
            cells = cells.cat.as_unordered()
        elif name in request.texts or types.is_object_dtype(cells) or types.is_string_dtype(cells):
            cells = cells.astype("category")
        elif name == request.target or not is_number(cells):
            pass
        elif isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iu":
            cells = pd.to_numeric(cells, downcast="integer")
        else:
            numbers = cells.to_numpy(np.float64, na_value=np.nan)
            # Larger ones may be names of something: as categories they are told apart.
            cells = pd.Series(numbers if (np.abs(numbers) > WHOLE).any() else single(numbers))
        columns[str(name)] = cells
    return columns


def together(tables: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows of tables with the same columns, one below the other, a column at a time."""
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
