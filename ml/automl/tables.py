"""The table of a search: read as its MLTable says, and typed, with a choice for each column.

Numbers are kept in single precision, in which models are fitted, and texts as codes of categories:
a file is read a part at a time, so that it never lies in memory otherwise. Large numbers are so
once they are no categories, groups or times.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import MISSING, Kind, read_date
from ml.toolkit.data import mltables

if TYPE_CHECKING:
    import pandas as pd

# Bytes of an array that is returned once it is freed (M_MMAP_THRESHOLD of glibc's malloc.h).
LARGE, _MMAP_THRESHOLD = 1 << 20, -3
# Rows of a file that are read at once.
PART = 50_000
# Up to here single precision has every whole number.
WHOLE = 2**24
# Rarer categories are to the model as if it had never seen them (`ml.serving.scoring.columns`).
MOST_CATEGORIES = 1000
# A category of more values is taken as the mean of the target of each; of so many classes none is.
MANY_CATEGORIES, MOST_MEANS = 255, 10
# A text that differs in more of the rows is a name or an id, and tells nothing about other rows.
MOST_DIFFERENT = 0.5
# Words a value, from which a text is prose.
PROSE = 4
# What is chosen for dates and timestamps.
A_TIME = "a time"
Feature = Literal["", "number", "category", "mean", "date", "words"]
# Azure ML's purposes of a column (how-to-configure-auto-features: column purpose).
PURPOSES: Mapping[str, str] = {
    **{"numeric": "numeric", "categorical": "categorical", "categoricalhash": "categorical"},
    **{"text": "words", "datetime": "date", "ignore": "aside"},
}
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
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d?/\d\d?/\d{4}([T ]\d\d?:\d\d.*)?")


@dataclass(frozen=True)
class Column:
    """A column of a request: its kind, what was chosen for it, and why; `feature` is what models
    take it for, "" of one that is left out. `order` is that of a date's parts.
    """

    name: str
    kind: Kind
    choice: str
    feature: Feature = ""
    missing: float = 0.0
    order: str = ""

    @property
    def used(self) -> bool:
        """Whether models take it."""
        return bool(self.feature)


@dataclass(frozen=True)
class Table:
    """Features as numbers and texts (missing: NaN, None), and the columns beside them.

    `labels` are the values of the target as texts, or as numbers for a regression.
    """

    frame: pd.DataFrame
    labels: NDArray[Any]
    columns: Sequence[Column]
    weights: NDArray[np.float64] | None = None
    splits: Sequence[NDArray[np.bool_]] = ()
    notes: Sequence[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


def stop(code: str, found: str, expected: str, hint: str = "") -> NoReturn:
    """End the program with a problem of the table."""
    text = f"error[{code}]: {found}\n  expected: {expected}"
    raise SystemExit(f"{text}\n  hint: {hint}" if hint else text)


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
            of = pd.Series(numbers if (np.abs(numbers) > WHOLE).any() else _single(numbers))
        columns[str(name)] = of
    return columns


def _blank(cell: object) -> bool:
    return isinstance(cell, str) and not cell.strip()


def _single(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


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


@dataclass(frozen=True)
class Choices:
    """What the spec says of columns: their purposes, and what is not to be computed of them.

    `group` and `time` are the columns by which rows are divided (`ml.automl.validation`).
    """

    weight: str = ""
    splits: Sequence[str] = ()
    purposes: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    fills: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    group: str = ""
    time: str = ""

    @property
    def names(self) -> list[str]:
        """Every column that the spec names."""
        single = [of for of in (self.weight, self.group, self.time) if of]
        return [*single, *self.splits, *self.purposes, *self.fills]


def as_table(
    rows: pd.DataFrame, choices: Choices | None = None, *, target: str, regression: bool
) -> Table:
    """The table with a kind and a choice for each column. Ends the program for what no model can be
    made of: no such column, a target of one value, no feature.
    """
    import pandas as pd

    choices = choices or Choices()
    for name in (target, *choices.names):
        if name not in rows.columns:
            names = ", ".join(map(str, rows.columns[:12]))
            stop("no-such-column", f"the table has no column `{name}`", f"one of {names}")
    _refuse_two_uses(target, choices)
    has_label = rows[target].notna()
    notes = []
    if not has_label.all():
        notes.append(f"{int((~has_label).sum())} rows without a `{target}` are left out")
        rows = rows[has_label].reset_index(drop=True)
    labels = _labels(rows[target], target, regression)
    classes = 1 if regression else len({*labels})
    columns, data = [], {}
    for name in map(str, rows.columns):
        if name in (target, choices.weight, *choices.splits):
            continue
        column, data[name] = _column(name, rows[name], choices, classes)
        whole = "rows of one value are not divided: left out"
        is_group = name == choices.group
        columns.append(replace(column, choice=whole, feature="") if is_group else column)
    if not any(column.used for column in columns):
        reasons = "; ".join(f"{column.name}: {column.choice}" for column in columns[:5])
        stop("no-feature", f"no column can be learnt from: {reasons}", "a number or a category")
    weights = _weights(rows[choices.weight], choices.weight) if choices.weight else None
    marks = [_marks(rows[name], name) for name in choices.splits]
    return Table(pd.DataFrame(data, copy=False), labels, columns, weights, marks, notes)


def _refuse_two_uses(target: str, choices: Choices) -> None:
    """End the program where the spec uses a column for two things, of which none is a feature."""
    uses = [(target, "the target"), (choices.weight, "the weight of rows")]
    uses += [(name, "a split of `cv_split_column_names`") for name in choices.splits]
    uses += [(choices.group, "what rows belong to"), (choices.time, "the time of rows")]
    first: dict[str, str] = {}
    for name, use in uses:
        if name in first:
            found = f"`{name}` is both {first[name]} and {use}"
            stop("two-uses", found, "another column for one of them")
        if name:
            first.setdefault(name, use)


def _weights(values: pd.Series[Any], name: str) -> NDArray[np.float64]:
    import pandas as pd

    numbers = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(np.float64)
    wrong = ~(np.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        cell = values.iloc[int(np.argmax(wrong))]
        found = "missing" if pd.isna(cell) else repr(cell) if isinstance(cell, str) else str(cell)
        stop("bad-weights", f"`{name}` is {found} in a row", "a number of 0 or more in each row")
    if not numbers.any():
        stop("bad-weights", f"`{name}` is 0 in all rows", "a weight of more than 0 in some")
    return numbers


def _marks(values: pd.Series[Any], name: str) -> NDArray[np.bool_]:
    """The rows that a split fits; true and false stand for 1 and 0."""
    coded = values.astype("category").cat.remove_unused_categories()
    texts = [str(of).strip().lower().removesuffix(".0") for of in coded.cat.categories]
    wrong = [of for of in texts if of not in ("0", "1", "false", "true")]
    if wrong or values.isna().any():
        found = f"{wrong[0]!r}" if wrong else "missing"
        expected = "1 where a row is fitted and 0 where it judges: a column for each fold"
        stop("bad-splits", f"`{name}` of `cv_split_column_names` is {found} in a row", expected)
    fitted = np.array([of in ("1", "true") for of in texts], dtype=bool)
    return fitted[coded.cat.codes.to_numpy()]


def _labels(values: pd.Series[Any], target: str, regression: bool) -> NDArray[Any]:
    import pandas as pd

    if regression:
        numbers = pd.to_numeric(values.astype(object), errors="coerce").to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            at = int(np.argmin(np.isfinite(numbers)))
            stop("target-no-number", f"`{target}` is {values.iloc[at]!r}", "a finite number")
        if not len(numbers) or np.ptp(numbers) == 0:
            stop("one-value", f"`{target}` has one value in all {len(values)} rows", "two or more")
        return numbers
    coded = values.astype("category").cat.remove_unused_categories()
    stripped = np.array(_written(coded.cat.categories), dtype=object)
    texts = stripped[coded.cat.codes.to_numpy()] if len(coded) else np.array([], dtype=object)
    names = sorted({*stripped})
    if len(names) < 2:
        value = f"only {names[0]!r}" if names else "no value"
        stop("one-class", f"`{target}` has {value} in {len(texts)} rows", "rows of two classes")
    if len(names) > max(20, len(texts) // 5):
        found = f"`{target}` has {len(names)} different values in {len(texts)} rows"
        stop("too-many-classes", found, "classes with several rows each", "task: regression")
    return texts


def _column(
    name: str, values: pd.Series[Any], choices: Choices, classes: int
) -> tuple[Column, pd.Series[Any]]:
    import pandas as pd
    from pandas.api import types

    purpose = str(choices.purposes.get(name, ""))
    meaning = PURPOSES.get(purpose.replace("_", "").lower(), "") if purpose else ""
    if purpose and not meaning:
        known = "Numeric, Categorical, CategoricalHash, Text, DateTime, Ignore"
        stop("column-purpose", f"`{name}` is to be {purpose}", f"one of {known}")
    is_number = types.is_numeric_dtype(values) and not types.is_bool_dtype(values)
    if meaning == "numeric" and not is_number:
        values = pd.to_numeric(values.astype(object), errors="coerce").astype(np.float32)
        is_number = True
    if is_number and meaning not in ("categorical", "words", "date"):
        return _number(name, values, meaning, choices)
    if name in choices.fills and meaning != "aside":
        expected = "a column of numbers: a missing text is a category of its own"
        stop("bad-imputer", f"`{name}` of the imputer is no column of numbers", expected)
    return _text(name, _as_texts(values), meaning, choices, classes)


def _number(
    name: str, values: pd.Series[Any], meaning: str, choices: Choices
) -> tuple[Column, pd.Series[Any]]:
    import pandas as pd

    missing = float(values.isna().mean())
    note = f", {missing:.0%} missing" if missing else ""
    whole = values.dtype.kind in "iu"
    if values.dtype == np.float64 and name not in (choices.group, choices.time):
        values = pd.Series(_single(values.to_numpy()))
    infinite = 0 if whole else int(np.isinf(values.to_numpy()).sum())
    if infinite:
        values = values.replace([np.inf, -np.inf], np.nan)
        note += f", {infinite} infinite taken as missing"
    if fill := choices.fills.get(name):
        note += f", {fill.get('strategy', 'mean')} in place of a missing one"
    is_constant = bool(values.min() == values.max()) and not missing
    out = _out(meaning, bool(values.isna().all()), is_constant)
    if not out and whole and meaning != "numeric" and _counts(values.to_numpy()):
        out = "a running number: left out"
    kind: Kind = "integer" if whole else "float"
    return Column(name, kind, out or f"a number{note}", "" if out else "number", missing), values


def _out(meaning: str, is_empty: bool, is_constant: bool) -> str:
    """Why a column is left out whatever it holds, or ""."""
    if is_empty:
        return "no value in any row: left out"
    if is_constant:
        return "one value in all rows: left out"
    return "left out, as the spec says" if meaning == "aside" else ""


def _text(
    name: str, texts: pd.Series[Any], meaning: str, choices: Choices, classes: int
) -> tuple[Column, pd.Series[Any]]:
    """The values are categories without blanks around them."""
    known = int(texts.notna().sum())
    missing = 1 - known / max(1, len(texts))
    note = f", {missing:.0%} missing" if missing else ""
    different = len(texts.cat.categories)
    sample = [str(of) for of in texts.cat.categories[:: max(1, different // 200)][:200]]
    order = _order_of_dates(sample)
    varies = different > MOST_DIFFERENT * known and known > 20
    is_prose = bool(sample) and float(np.mean([len(of.split()) for of in sample])) >= PROSE

    def column(choice: str, feature: Feature = "") -> tuple[Column, pd.Series[Any]]:
        return Column(name, "text", choice, feature, missing, order), texts

    if out := _out(meaning, not known, different == 1 and not missing):
        return column(out)
    if meaning == "date" and not order:
        stop("not-a-time", f"`{name}` is to be a DateTime and is {sample[0]!r}", "2026-01-31")
    if order and meaning in ("", "date"):
        form = "" if order == "iso" else f", {order}"
        return column(f"{A_TIME}{form}: parts of the calendar and days{note}", "date")
    if meaning == "words" or (not meaning and is_prose and varies):
        if choices.blocked & {"tf_idf"}:
            return column("prose, and TfIdf is blocked: left out")
        return column(f"prose: its words by TF-IDF{note}", "words")
    if not meaning and varies:
        return column(f"a name, {different} values in {known} rows: left out")
    choice = f"a category of {different} values{note}"
    is_blocked = "cat_target_encoder" in choices.blocked
    if different > MANY_CATEGORIES and classes <= MOST_MEANS and not is_blocked:
        return column(f"{choice}: the mean of the target of each", "mean")
    if different > MOST_CATEGORIES:
        choice += f", the {MOST_CATEGORIES} most frequent are told apart"
    return column(choice, "category")


def _as_texts(values: pd.Series[Any]) -> pd.Series[Any]:
    """Categories without blanks around them; a whole number without a point."""
    import pandas as pd
    from pandas.api import types

    if types.is_datetime64_any_dtype(values):
        values = values.astype(str).where(values.notna())
    coded = values.astype("category").cat.remove_unused_categories()
    names = _written(coded.cat.categories)
    texts = sorted({*names} - {""})
    number = {text: at for at, text in enumerate(texts)}
    codes: Any = np.array([*(number.get(of, -1) for of in names), -1])[coded.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(texts)))


def _written(values: pd.Index[Any]) -> list[str]:
    """Different values as texts without blanks around them; whole numbers without a point."""
    # NumPy's numbers write themselves in as few digits as tell them apart.
    cells: Any = values.to_numpy()
    if cells.dtype.kind == "f" and np.isfinite(cells).all() and (cells % 1 == 0).all():
        cells = map(int, cells)
    return [str(of).strip() for of in cells]


def _order_of_dates(sample: Sequence[str]) -> str:
    """How all of these write dates, "" where one writes none."""
    if not sample or not all(_DATE.fullmatch(of) for of in sample):
        return ""
    orders = ("iso", "month-first", "day-first")
    return next((of for of in orders if all(read_date(text, of) for text in sample)), "")


def _counts(numbers: NDArray[Any]) -> bool:
    """Whether whole numbers are those of the rows: each once, without gaps to speak of."""
    if len(numbers) < 20 or float(np.ptp(numbers.astype(np.float64))) >= 2 * len(numbers):
        return False
    return len(np.unique(numbers)) == len(numbers)
