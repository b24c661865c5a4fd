"""Read the files, rows and columns of an MLTable (reference-yaml-mltable).

It supports one `read_…` transformation and the column selections. It imports nothing of the
repository, because the processes of a parallel job load this file by its path in the job's
environment.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "MLTable"
# The options of each transformation that reads files.
READS = {
    "read_delimited": frozenset(
        {"delimiter", "encoding", "header", "empty_as_string", "include_path_column"}
        | {"infer_column_types", "support_multi_line"}
    ),
    "read_json_lines": frozenset({"encoding", "include_path_column", "invalid_lines"}),
    "read_parquet": frozenset({"include_path_column"}),
}
ENCODINGS = {
    "utf8": "utf-8",
    "ascii": "ascii",
    "utf8bom": "utf-8-sig",
    "iso88591": "latin-1",
    "windows1252": "cp1252",
}


# Transformations that select columns.
SELECTIONS = ("drop_columns", "keep_columns")


class Unreadable(ValueError):
    """Raised if an MLTable is invalid, unsupported, or lacks a file."""


def describe(data: Path) -> dict[str, Any]:
    """Return {files, read, columns} of an MLTable folder, another folder, or a file.

    `files` are absolute paths. `read` is [transformation, options], or None without an MLTable.
    `columns` has the column selections. Raises Unreadable if something is unsupported or missing.
    """
    file = data / FILE
    if file.is_file():
        import yaml

        try:
            document = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise Unreadable(f"{file}: {error}") from None
        return _table(data, document if isinstance(document, dict) else {})
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    return {"files": [str(path.resolve()) for path in files], "read": None, "columns": []}


def _table(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    read, columns = None, []
    for step in document.get("transformations") or []:
        name, options = (step, {}) if isinstance(step, str) else next(iter(step.items()))
        if name in SELECTIONS and read:
            names = [options] if isinstance(options, str) else list(options or ())
            columns.append([name, list(map(str, names))])
            continue
        if name not in READS or read:
            raise Unreadable(f"{folder / FILE}: the transformation `{name}` is not supported here")
        unknown = sorted(set(options or {}) - READS[name])
        if unknown:
            raise Unreadable(f"{folder / FILE}: `{unknown[0]}` of `{name}` is not supported here")
        read = [name, options or {}]
    files: list[Path] = []
    for entry in document.get("paths") or []:
        kind, text = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if re.match(r"[a-z]+://", str(text)) or str(text).startswith("azureml:"):
            raise Unreadable(f"{folder / FILE}: {text} is not on this machine")
        if kind == "pattern":
            paths = sorted(folder.glob(str(text).removeprefix("./")))
        elif (within := folder / str(text)).is_dir():
            paths = sorted(within.rglob("*"))
            if read:  # skip hidden files, such as `_SUCCESS` and checksums of Spark
                paths = [path for path in paths if not _is_hidden(path.relative_to(within))]
        else:
            paths = [folder / str(text)]
        files += [path for path in paths if not path.is_dir()]
    missing = [path for path in files if not path.exists()]
    if missing:
        raise Unreadable(f"{folder / FILE}: there is no file {missing[0]}")
    return {"files": [str(path.resolve()) for path in files], "read": read, "columns": columns}


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def frame(table: Mapping[str, Any], part: int | None) -> pd.DataFrame:
    """Return the rows of the file with index `part`, or of all files if it is None."""
    import pandas as pd

    numbers = range(len(table["files"])) if part is None else [part]
    rows = pd.concat([_file(table, number) for number in numbers], ignore_index=True)
    return select(table, rows)


def select(table: Mapping[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Apply the table's column selections; raise Unreadable for an unknown column."""
    for step, names in table.get("columns") or ():
        unknown = [name for name in names if name not in rows.columns]
        if unknown:
            raise Unreadable(f"`{step}` names `{unknown[0]}`, which is not a column of the table")
        rows = rows.drop(columns=names) if step == "drop_columns" else rows[names]
    return rows


def _file(table: Mapping[str, Any], number: int) -> pd.DataFrame:
    import pandas as pd

    path, (name, options) = table["files"][number], table["read"]
    if name == "read_delimited":
        rows = _delimited(table["files"], number, options)
    elif name == "read_parquet":
        rows = pd.read_parquet(path)
    else:
        rows = pd.DataFrame(json_lines(Path(path), options))
    if options.get("include_path_column"):
        rows.insert(0, "Path", path)
    return rows


def _delimited(files: Sequence[str], number: int, options: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    header = str(options.get("header") or "all_files_same_headers")
    named = header.startswith("all_files") or (header == "from_first_file" and number == 0)
    encoding = str(options.get("encoding") or "utf8")
    shared: dict[str, Any] = {
        "sep": options.get("delimiter") or ",",
        "encoding": ENCODINGS.get(encoding, encoding),
        "keep_default_na": not options.get("empty_as_string"),
        "dtype": str if options.get("infer_column_types") is False else None,
        # Otherwise a trailing delimiter makes the first column the index.
        "index_col": False,
    }
    with warnings.catch_warnings():
        # Turn the pandas warning about fields without a column into an error.
        warnings.filterwarnings("error", "Length of header", pd.errors.ParserWarning)
        try:
            rows: pd.DataFrame = pd.read_csv(files[number], header=0 if named else None, **shared)
        except pd.errors.ParserWarning:
            text = f"{files[number]} has rows with more fields than the header"
            raise Unreadable(text) from None
    if header == "no_header":
        rows.columns = pd.Index([f"Column{place + 1}" for place in range(rows.shape[1])])
    elif not named:
        rows.columns = pd.read_csv(files[0], nrows=0, **shared).columns
    return rows


def json_lines(path: Path, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one per line; blank lines are skipped.

    Raises Unreadable for an invalid line, unless `invalid_lines` is `drop`.
    """
    encoding = str(options.get("encoding") or "utf8")
    try:
        # Not splitlines(), because a text may contain other line separators.
        lines = path.read_text(ENCODINGS.get(encoding, encoding)).split("\n")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: {error}") from None
    rows = []
    for line in lines:
        try:
            rows += [_row(line)] if line.strip() else []
        except ValueError as error:
            if options.get("invalid_lines") != "drop":
                raise Unreadable(f"{path}: {error}: {line[:60]}") from None
    return rows


def _row(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("a line that is not a JSON object")
    return row
