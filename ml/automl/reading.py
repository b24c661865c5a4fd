"""The rows of a search, read as its MLTable says.

Numbers are kept in single precision, in which models are fitted, and texts as codes of categories:
a file is read a part at a time, so that it never lies in memory otherwise. Large numbers are so
once they are no categories, groups or times (`ml.automl.tables`).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ml.automl.tables import single, stop
from ml.serving.scoring.columns import MISSING
from ml.toolkit.data import mltables

if TYPE_CHECKING:
    import pandas as pd

# Bytes of an array that is returned once it is freed (M_MMAP_THRESHOLD of glibc's malloc.h).
LARGE, _MMAP_THRESHOLD = 1 << 20, -3
# Rows of a file that are read at once.
PART = 50_000
# Up to here single precision has every whole number.
WHOLE = 2**24
# Options of an MLTable, their values that are read here, the usual one first, and what to write. A
# quoted field may have several lines, whatever `support_multi_line` says.
_OPTIONS: Sequence[tuple[str, Sequence[Any], str]] = (
    ("include_path_column", (False, None), "the columns of the files alone"),
    (
        "header",
        ("all_files_same_headers", "all_files_different_headers", "from_first_file", None),
        "a header in each file or in the first: requests name the columns",
    ),
    (
        "infer_column_types",
        (True, None),
        "types as the values have them; `column_name_and_types: {NAME: Categorical}` in the "
        "featurization of a job takes numbers as categories",
    ),
    ("empty_as_string", (False, None), "an empty cell as a missing value"),
)


def read(folder: Path, target: str, *, is_class: bool = True) -> pd.DataFrame:
    """The rows of an MLTable as its transformations say. Ends the program for what cannot be read.

    Values that tables write for a missing one are missing; a target that `is_class`, and columns of
    true and false, are texts.
    """
    try:
        table = mltables.describe(folder)
        how, options = table["read"] or ["", {}]
        files = [Path(file) for file in table["files"]]
        if not (folder / mltables.FILE).is_file() or not files or not how:
            raise mltables.Unreadable(f"{folder} has no MLTable that names and reads a file")
        _refuse_options(folder / mltables.FILE, options)
        if how == "read_delimited":
            is_first = options.get("header") == "from_first_file"
            heads = [files[0] if is_first else file for file in files]
            of = zip(files, heads, strict=True)
            frames = [_delimited(*each, options, target, is_class) for each in of]
        elif how == "read_parquet":
            frames = [_parquet(file, target) for file in files]
        else:
            frames = [_json_lines(table, files, target)]
        _demand_same(files, frames)
        rows = mltables.select(table, together(frames))
    except mltables.Unreadable as error:
        stop("bad-mltable", str(error), "one that reads files here, and keeps or drops columns")
    give_back()
    return rows


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
        more = [f"has `{name}` besides" for name in table if name not in tables[0]]
        if lacks or more:
            found = f"{file} {', '.join((lacks + more)[:5])}"
            stop("other-columns", found, f"the columns of {files[0]}, in any order")


def give_back() -> None:
    """Return to the system what was freed, and large arrays at once from now on: glibc would keep
    tens of megabytes of a million rows beside all that is fitted.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.mallopt(_MMAP_THRESHOLD, LARGE)
        library.malloc_trim(0)


def _delimited(
    file: Path, of_names: Path, options: Mapping[str, Any], target: str, is_class: bool
) -> dict[str, Any]:
    """The columns of a file, by the header of another one or its own."""
    import pandas as pd

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
    types: Any = {target: str} if is_class else None
    try:
        first: dict[str, Any] = {"header": None, "nrows": 1, "dtype": str, "na_values": [""]}
        header = pd.read_csv(of_names, **first, **shared).iloc[0]
        wrong = header[header.isna() | header.duplicated()]
        if len(wrong):
            what = "an empty name" if wrong.isna().any() else f"`{wrong.iloc[0]}` twice"
            stop("column-names", f"{file} has {what} in its header", "each column by its own name")
        names = [str(of) for of in header]
        shared["header"], shared["names"] = (0 if of_names == file else None), names
        # Any text is the name of a class, but none at all.
        empty = {target: [""]} if is_class else {}
        shared["na_values"] = {name: sorted(MISSING) for name in names} | empty
        with warnings.catch_warnings():
            # What pandas says of fields that no column has.
            warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
            asked: dict[str, Any] = {"dtype": types, "chunksize": PART, "low_memory": False}
            with pd.read_csv(file, **asked, **shared) as parts:
                tables = [_compact(part, target) for part in parts]
        # Of a column that is not numbers in every part the digits are texts too.
        texts = [name for name in tables[0] if name != target and _is_mixed(tables, name)]
        if texts:
            asked = {"usecols": texts, "dtype": str, "chunksize": PART}
            with pd.read_csv(file, **asked, **shared) as parts:
                for at, part in enumerate(parts):
                    tables[at] |= _compact(part, target)
        return {str(name): of for name, of in together(tables).items()}
    except pd.errors.ParserWarning:
        found = f"{file} has rows of more fields than the header names"
        stop("unreadable", found, "a field for each column, and a quoted one where it has commas")
    except (OSError, UnicodeDecodeError, LookupError, pd.errors.ParserError) as error:
        stop("unreadable", f"{file}: {error}", "UTF-8 text with the delimiter of the MLTable")
    except pd.errors.EmptyDataError:
        stop("unreadable", f"{file} is empty", "a header and rows")


def _is_mixed(tables: Sequence[Mapping[str, Any]], name: str) -> bool:
    kinds = {str(table[name].dtype) for table in tables}
    return "bool" in kinds or ("category" in kinds and len(kinds) > 1)


def _json_lines(table: Mapping[str, Any], files: Sequence[Path], target: str) -> dict[str, Any]:
    """Of all files: a line has the columns that it names."""
    import pandas as pd

    frames = []
    for number, file in enumerate(files):
        try:
            rows = mltables.frame({**table, "columns": []}, number)
        except (mltables.Unreadable, OSError, LookupError) as error:
            stop("unreadable", str(error), "an object in each line, in the MLTable's encoding")
        for name, cells in rows.select_dtypes(object).items():
            if cells.map(type).isin((list, dict)).any():
                _refuse_nested(file, str(name))
        frames.append(rows)
    return _compact(pd.concat(frames, ignore_index=True), target)


def _refuse_nested(file: Path, name: str) -> NoReturn:
    found = f"{file} has a list or an object as `{name}`"
    stop("unreadable", found, "a number, a text, true or false in each cell")


def _parquet(file: Path, target: str) -> dict[str, Any]:
    """A column at a time."""
    import pandas as pd
    from pyarrow import ArrowException, types
    from pyarrow.parquet import read_schema

    columns: dict[str, Any] = {}
    try:
        for field in read_schema(file):
            if field.name.startswith("__index_level_"):
                continue
            if types.is_nested(field.type):
                _refuse_nested(file, field.name)
            rows = pd.read_parquet(file, columns=[field.name])
            if types.is_decimal(field.type):
                rows = rows.astype(np.float64)
            columns |= _compact(rows, target)
    except (ArrowException, OSError) as error:
        stop("unreadable", f"{file}: {error}", "a whole file of Parquet")
    return columns


def _compact(rows: pd.DataFrame, target: str) -> dict[str, Any]:
    """The same values in less memory: numbers in single precision, texts as categories. Those of
    the target keep theirs.
    """
    import pandas as pd
    from pandas.api import types

    columns = {}
    for name, values in rows.items():
        of: Any = values.reset_index(drop=True)
        if types.is_object_dtype(of.dtype) or types.is_string_dtype(of.dtype):
            of = of.astype("category")
            if name == target:
                of = of.cat.remove_categories([text for text in of.cat.categories if _blank(text)])
        elif name == target or not types.is_numeric_dtype(of.dtype) or of.dtype.kind == "b":
            pass
        elif isinstance(of.dtype, np.dtype) and of.dtype.kind in "iu":
            of = pd.to_numeric(of, downcast="integer")
        else:
            numbers = of.to_numpy(np.float64, na_value=np.nan)
            # Larger ones may be names of something: as categories they are told apart.
            of = pd.Series(numbers if (np.abs(numbers) > WHOLE).any() else single(numbers))
        columns[str(name)] = of
    return columns


def _blank(cell: object) -> bool:
    return isinstance(cell, str) and not cell.strip()


def together(tables: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The rows of tables with the same columns, one below the other, a column at a time."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    columns: dict[str, Any] = {}
    for name in [*tables[0]] if len(tables) > 1 else ():
        parts = [table[name] for table in tables]
        kinds = {str(part.dtype) for part in parts}
        if kinds == {"category"}:
            columns[name] = pd.Series(union_categoricals(parts))
        else:
            columns[name] = pd.concat(parts, ignore_index=True)
        if "category" in kinds and len(kinds) > 1:
            columns[name] = columns[name].astype("category")
        for table in tables:
            del table[name]
    return pd.DataFrame(columns or tables[0], copy=False)
