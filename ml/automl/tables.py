"""The table of a search: read as its MLTable says, typed, and encoded as a model takes it.

A model's numbers are those of `ml.serving.scoring.columns` with the encoding `codes`; here they are
computed a column at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import yaml
from numpy.typing import NDArray

from ml.serving.scoring.columns import MISSING, Kind

if TYPE_CHECKING:
    import pandas as pd

FILE = "MLTable"
# Rarer categories are to the model as if it had never seen them (`ml.serving.scoring.columns`).
MOST_CATEGORIES = 1000
# A text that differs in more of the rows is a name or an id, and tells nothing about other rows.
MOST_DIFFERENT = 0.5
# Words a value, from which a text is prose.
PROSE = 4
# What is chosen for dates and timestamps.
A_TIME = "a time"
# Azure ML's purposes of a column (how-to-configure-auto-features: column purpose).
PURPOSES: Mapping[str, str] = {
    **{"numeric": "numeric", "categorical": "categorical", "categoricalhash": "categorical"},
    **{"text": "aside", "datetime": "aside", "ignore": "aside"},
}
_ENCODINGS = {"utf8": "utf-8", "utf8bom": "utf-8-sig", "iso88591": "latin-1", "ascii": "ascii"}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d?/\d\d?/\d{4}")


@dataclass(frozen=True)
class Column:
    """A column of a request: its kind, what was chosen for it, and why; `used` by models or not."""

    name: str
    kind: Kind
    choice: str
    used: bool
    missing: float = 0.0


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


def read(folder: Path, target: str) -> pd.DataFrame:
    """The rows of an MLTable as its transformations say. Ends the program for what cannot be read.

    Values that tables write for a missing one are missing; the target, and columns of true and
    false, are texts.
    """
    import pandas as pd

    document, steps = _document(folder)
    files = _files(folder, document)
    (how, options), *others = steps or [("", {})]
    if how == "read_delimited":
        frames = [_delimited(file, options, target) for file in files]
    elif how == "read_parquet":
        frames = [pd.read_parquet(file) for file in files]
    else:
        stop(
            "bad-mltable",
            f"{folder / FILE}: the first transformation is `{how}`",
            "read_delimited or read_parquet",
        )
    rows = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    for name, given in others:
        columns = [given] if isinstance(given, str) else list(given or ())
        if name not in ("drop_columns", "keep_columns"):
            known = "read_delimited, read_parquet, drop_columns, keep_columns"
            stop("bad-mltable", f"{folder / FILE}: the transformation `{name}`", known)
        if unknown := [of for of in columns if of not in rows.columns]:
            names = ", ".join(map(str, rows.columns[:12]))
            stop("bad-mltable", f"{folder / FILE}: `{name}` names `{unknown[0]}`", names)
        rows = rows.drop(columns=columns) if name == "drop_columns" else rows[columns]
    return rows


def _document(folder: Path) -> tuple[Mapping[str, Any], list[tuple[str, Any]]]:
    try:
        document = yaml.safe_load((folder / FILE).read_text(encoding="utf-8-sig"))
        steps = [
            (step, {}) if isinstance(step, str) else next(iter(step.items()))
            for step in document.get("transformations") or ()
        ]
    except (OSError, yaml.YAMLError, AttributeError, TypeError, StopIteration) as error:
        stop("bad-mltable", f"{folder / FILE}: {error}", "an MLTable file")
    return document, [(str(name), options or {}) for name, options in steps]


def _files(folder: Path, document: Mapping[str, Any]) -> list[Path]:
    files: list[Path] = []
    for entry in document.get("paths") or ():
        kind, text = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        place = folder / str(text)
        if kind == "pattern":
            files += sorted(folder.glob(str(text).removeprefix("./")))
        else:
            files += sorted(place.rglob("*")) if place.is_dir() else [place]
    files = [file for file in files if not file.is_dir()]
    if missing := [file for file in files if not file.is_file()]:
        stop("bad-mltable", f"{folder / FILE}: there is no {missing[0]}", "a file on this machine")
    if not files:
        stop("bad-mltable", f"{folder / FILE} names no file", "`paths` with a file of rows")
    return files


def _delimited(file: Path, options: Mapping[str, Any], target: str) -> pd.DataFrame:
    import pandas as pd

    known = {"delimiter", "encoding", "header", "empty_as_string", "infer_column_types"}
    if unknown := sorted({*options} - known - {"support_multi_line"}):
        stop("bad-mltable", f"{file.parent / FILE}: `{unknown[0]}`", ", ".join(sorted(known)))
    header = str(options.get("header") or "all_files_same_headers")
    if header == "no_header":
        stop("bad-mltable", f"{file}: `header: no_header`", "a header: requests name the columns")
    encoding = str(options.get("encoding") or "utf8")
    shared: dict[str, Any] = {
        "sep": options.get("delimiter") or ",",
        "encoding": _ENCODINGS.get(encoding, encoding),
        "keep_default_na": False,
        "na_values": sorted(MISSING),
        "skipinitialspace": True,
    }
    try:
        names = pd.read_csv(file, header=None, nrows=1, dtype=str, **shared).iloc[0]
        if names.isna().any() or names.duplicated().any():
            twice = (
                "an empty name"
                if names.isna().any()
                else f"`{names[names.duplicated()].iloc[0]}` twice"
            )
            stop("column-names", f"{file} has {twice} in its header", "each column by its own name")
        rows = pd.read_csv(file, dtype={target: str}, low_memory=False, **shared)
        if truths := [str(name) for name in rows.columns if rows[name].dtype == bool]:
            rows[truths] = pd.read_csv(file, usecols=truths, dtype=str, **shared)[truths]
    except (OSError, UnicodeDecodeError, LookupError, pd.errors.ParserError) as error:
        stop("unreadable", f"{file}: {error}", "UTF-8 text with the delimiter of the MLTable")
    except pd.errors.EmptyDataError:
        stop("unreadable", f"{file} is empty", "a header and rows")
    table: pd.DataFrame = rows
    return table


def as_table(
    rows: pd.DataFrame,
    *,
    target: str,
    weight: str = "",
    splits: Sequence[str] = (),
    purposes: Mapping[str, str] | None = None,
    regression: bool,
) -> Table:
    """The table with a kind and a choice for each column. Ends the program for what no model can be
    made of: no such column, a target of one value, no feature.
    """
    purposes = purposes or {}
    for name in (target, *([weight] if weight else []), *splits, *purposes):
        if name not in rows.columns:
            names = ", ".join(map(str, rows.columns[:12]))
            stop("no-such-column", f"the table has no column `{name}`", f"one of {names}")
    has_label = rows[target].notna()
    notes = []
    if not has_label.all():
        notes.append(f"{int((~has_label).sum())} rows without a `{target}` are left out")
        rows = rows[has_label].reset_index(drop=True)
    labels = _labels(rows[target], target, regression)
    columns, data = [], {}
    for name in rows.columns:
        if name in (target, weight, *splits):
            continue
        column, values = _column(str(name), rows[name], purposes.get(str(name), ""))
        columns.append(column)
        data[column.name] = values
    if not any(column.used for column in columns):
        reasons = "; ".join(f"{column.name}: {column.choice}" for column in columns[:5])
        stop("no-feature", f"no column can be learnt from: {reasons}", "a number or a category")
    import pandas as pd

    weights = rows[weight].to_numpy(np.float64) if weight else None
    if weights is not None and not (np.isfinite(weights).all() and (weights >= 0).all()):
        stop("bad-weights", f"`{weight}` is negative or missing in a row", "a weight in each row")
    marks = [rows[name].to_numpy() == 1 for name in splits]
    return Table(pd.DataFrame(data), labels, columns, weights, marks, notes)


def _labels(values: pd.Series[Any], target: str, regression: bool) -> NDArray[Any]:
    import pandas as pd

    if regression:
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64)
        if not np.isfinite(numbers).all():
            at = int(np.argmin(np.isfinite(numbers)))
            stop("target-no-number", f"`{target}` is {values.iloc[at]!r}", "a finite number")
        if not len(numbers) or np.ptp(numbers) == 0:
            stop("one-value", f"`{target}` has one value in all {len(values)} rows", "two or more")
        return numbers
    texts = values.astype(str).str.strip().to_numpy(dtype=object)
    names = sorted({*texts})
    if len(names) < 2:
        value = f"only {names[0]!r}" if names else "no value"
        stop("one-class", f"`{target}` has {value} in {len(texts)} rows", "rows of two classes")
    if len(names) > max(20, len(texts) // 5):
        found = f"`{target}` has {len(names)} different values in {len(texts)} rows"
        stop("too-many-classes", found, "classes with several rows each", "task: regression")
    return texts


def _column(name: str, values: pd.Series[Any], purpose: str) -> tuple[Column, pd.Series[Any]]:
    import pandas as pd
    from pandas.api import types

    meaning = PURPOSES.get(purpose.replace("_", "").lower(), "") if purpose else ""
    if purpose and not meaning:
        known = "Numeric, Categorical, CategoricalHash, Text, DateTime, Ignore"
        stop("column-purpose", f"`{name}` is to be {purpose}", f"one of {known}")
    missing = float(values.isna().mean())
    note = f", {missing:.0%} missing" if missing else ""
    if types.is_datetime64_any_dtype(values):
        return Column(name, "text", f"{A_TIME}: left out", False, missing), values.astype(str)
    is_number = types.is_numeric_dtype(values) and not types.is_bool_dtype(values)
    if meaning == "numeric" and not is_number:
        values, is_number = pd.to_numeric(values, errors="coerce"), True
    if is_number and meaning != "categorical":
        numbers = values.to_numpy(np.float64, na_value=np.nan)
        infinite = int(np.isinf(numbers).sum())
        numbers = np.where(np.isinf(numbers), np.nan, numbers)
        whole = types.is_integer_dtype(values.dtype)
        if infinite:
            note += f", {infinite} infinite taken as missing"
        used, choice = meaning != "aside", f"a number{note}"
        if np.isnan(numbers).all():
            used, choice = False, "no value in any row: left out"
        elif np.nanmin(numbers) == np.nanmax(numbers) and not missing:
            used, choice = False, "one value in all rows: left out"
        elif whole and meaning != "numeric" and _counts(numbers):
            used, choice = False, "a running number: left out"
        return Column(name, "integer" if whole else "float", choice, used, missing), pd.Series(
            numbers
        )
    texts = values.astype(object).map(lambda of: None if pd.isna(of) else of)
    if is_number:
        whole = bool((values.dropna() % 1 == 0).all())
        texts = texts.map(lambda of: None if of is None else str(int(of) if whole else of))
    texts = texts.map(lambda of: None if of is None else str(of).strip())
    different, given = texts.nunique(), int(texts.notna().sum())
    used, choice = meaning != "aside", f"a category of {different} values{note}"
    if not given:
        used, choice = False, "no value in any row: left out"
    elif different == 1 and not missing:
        used, choice = False, "one value in all rows: left out"
    elif meaning != "categorical":
        sample = texts.dropna().head(200)
        if all(_DATE.fullmatch(of) for of in sample):
            used, choice = False, f"{A_TIME}: left out"
        elif (
            np.mean([len(of.split()) for of in sample]) >= PROSE
            and different > MOST_DIFFERENT * given
        ):
            used, choice = False, "prose: left out"
        elif different > MOST_DIFFERENT * given and given > 20:
            used, choice = False, f"a name, {different} values in {given} rows: left out"
    if used and different > MOST_CATEGORIES:
        choice += f", the {MOST_CATEGORIES} most frequent are told apart"
    return Column(name, "text", choice, used, missing), texts.astype("category")


def _counts(numbers: NDArray[np.float64]) -> bool:
    """Whether whole numbers are those of the rows: each once, without gaps to speak of."""
    if len(numbers) < 20 or np.isnan(numbers).any():
        return False
    return bool(len(np.unique(numbers)) == len(numbers) and np.ptp(numbers) < 2 * len(numbers))


def encoding(table: Table, rows: NDArray[np.int64], classes: Sequence[str]) -> dict[str, Any]:
    """The document of `columns.json` as these rows fill it."""
    inputs: list[dict[str, Any]] = []
    for column in table.columns:
        if not column.used:
            continue
        entry: dict[str, Any] = {"name": column.name}
        if column.kind == "text":
            counts = table.frame[column.name].iloc[rows].value_counts()
            common = counts[counts > 0].head(MOST_CATEGORIES).index
            entry["categories"] = sorted(map(str, common))
        inputs.append(entry)
    return {
        "columns": [{"name": column.name, "type": column.kind} for column in table.columns],
        "inputs": inputs,
        "encoding": "codes",
        "classes": list(classes),
    }


def matrix(table: Table, document: Mapping[str, Any]) -> NDArray[np.float32]:
    """All rows as numbers, as `Columns.matrix` gives them, in single precision."""
    import pandas as pd

    numbers = np.empty((len(table), len(document["inputs"])), dtype=np.float32)
    for at, entry in enumerate(document["inputs"]):
        values = table.frame[entry["name"]]
        if "categories" in entry:
            codes = pd.Categorical(values, categories=entry["categories"]).codes
            numbers[:, at] = np.where(codes < 0, np.nan, codes)
        else:
            numbers[:, at] = values
    return numbers


def categorical(document: Mapping[str, Any]) -> list[int]:
    """The numbers of the inputs that are codes."""
    return [at for at, entry in enumerate(document["inputs"]) if "categories" in entry]
