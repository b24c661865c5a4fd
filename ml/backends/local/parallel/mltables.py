"""The data of a parallel job: files or an MLTable, its rows, and its mini-batches.

`describe` reads the file MLTable (reference-yaml-mltable) and refuses what is not supported here:
of the transformations, only one that reads the files. `divide` makes mini-batches
(reference-yaml-job-parallel: mini_batch_size), `frame` reads a part of a table. Needs pandas, and
nothing of the repository: the processes of a parallel job load this file by its path, with the
interpreter that the job asks for.
"""

from __future__ import annotations

import json
import math
import re
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
    "utf8bom": "utf-8-sig",
    "iso88591": "latin-1",
    "windows1252": "cp1252",
}


class Unreadable(ValueError):
    """The table needs something that is not supported here, or is not there."""


def _table(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """{files, read}: absolute paths of the table's files, and how they are read, None for not."""
    read = None
    for step in document.get("transformations") or []:
        name, options = (step, {}) if isinstance(step, str) else next(iter(step.items()))
        if name not in READS or read:
            raise Unreadable(f"{folder / FILE}: the transformation `{name}` is not supported here")
        unknown = sorted(set(options or {}) - READS[name])
        if unknown:
            raise Unreadable(f"{folder / FILE}: `{unknown[0]}` of `{name}` is not supported here")
        read = [name, options or {}]
    files: list[Path] = []
    for entry in document.get("paths") or []:
        kind, text = next(iter(entry.items()))
        if re.match(r"[a-z]+://", str(text)) or str(text).startswith("azureml:"):
            raise Unreadable(f"{folder / FILE}: {text} is not on this machine")
        if kind == "pattern":
            paths = sorted(folder.glob(str(text).removeprefix("./")))
        elif (folder / str(text)).is_dir():
            paths = sorted((folder / str(text)).rglob("*"))
        else:
            paths = [folder / str(text)]
        files += [path for path in paths if not path.is_dir()]
    missing = [path for path in files if not path.exists()]
    if missing:
        raise Unreadable(f"{folder / FILE}: there is no file {missing[0]}")
    return {"files": [str(path.resolve()) for path in files], "read": read}


def frame(table: Mapping[str, Any], part: int | None) -> pd.DataFrame:
    """The rows of the file of that number, None for all of the table."""
    import pandas as pd

    numbers = range(len(table["files"])) if part is None else [part]
    return pd.concat([_file(table, number) for number in numbers], ignore_index=True)


def _file(table: Mapping[str, Any], number: int) -> pd.DataFrame:
    import pandas as pd

    path, (name, options) = table["files"][number], table["read"]
    if name == "read_delimited":
        rows = _delimited(table["files"], number, options)
    elif name == "read_parquet":
        rows = pd.read_parquet(path)
    else:
        rows = _json_lines(Path(path), options)
    if options.get("include_path_column"):
        rows.insert(0, "Path", path)
    return rows


def _delimited(files: Sequence[str], number: int, options: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    header = str(options.get("header") or "all_files_same_headers")
    own = header.startswith("all_files") or (header == "from_first_file" and number == 0)
    encoding = str(options.get("encoding") or "utf8")
    shared: dict[str, Any] = {
        "sep": options.get("delimiter") or ",",
        "encoding": ENCODINGS.get(encoding, encoding),
        "keep_default_na": not options.get("empty_as_string"),
        "dtype": str if options.get("infer_column_types") is False else None,
    }
    rows: pd.DataFrame = pd.read_csv(files[number], header=0 if own else None, **shared)
    if header == "no_header":
        rows.columns = pd.Index([f"Column{place + 1}" for place in range(rows.shape[1])])
    elif not own:
        rows.columns = pd.read_csv(files[0], nrows=0, **shared).columns
    return rows


def _json_lines(path: Path, options: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    encoding = str(options.get("encoding") or "utf8")
    rows = []
    for line in path.read_text(ENCODINGS.get(encoding, encoding)).splitlines():
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            if options.get("invalid_lines") != "drop":
                raise Unreadable(f"{path}: {error}: {line[:60]}") from None
    return pd.DataFrame(rows)


# "The default value is 1" (reference-yaml-job-parallel, for files); for tables, where it is a
# size, the same document has none, and azure-ai-ml says 1 MB.
FILES = 1
TABLE_BYTES = 1 << 20


def describe(data: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The files of a folder, of a file or of an MLTable, and how they are read: {files, read}.

    Raises Unreadable, also for `keys` to divide files by: that is for the rows of a table.
    """
    table = _described(data)
    if keys and not table["read"]:
        raise Unreadable(f"{data}: only the rows of a table are divided by {', '.join(keys)} here")
    return table


def _described(data: Path) -> dict[str, Any]:
    file = data / FILE
    if file.is_file():
        import yaml

        try:
            document = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise Unreadable(f"{file}: {error}") from None
        return _table(data, document if isinstance(document, dict) else {})
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    return {"files": [str(path.resolve()) for path in files], "read": None}


def divide(table: Mapping[str, Any], size: int, keys: list[str]) -> list[dict[str, Any]]:
    """The mini-batches, numbered from 0: what a process needs to read its own, and its items.

    "If both partition_keys and mini_batch_size are specified, the partition keys take effect."
    A mini-batch of a table never crosses the boundary of a file (how-to-debug-parallel-run-step).
    """
    if table["read"]:
        batches = _groups(table, keys) if keys else _rows(table, size or TABLE_BYTES)
    else:
        size = size or FILES
        files = table["files"]
        batches = [
            {"files": files[at : at + size], "items": len(files[at : at + size])}
            for at in range(0, len(files), size)
        ]
    return [{"id": number, **batch} for number, batch in enumerate(batches)]


def _rows(table: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Even runs of rows, as many as make up the size of the file that they are in."""
    batches = []
    for part, file in enumerate(table["files"]):
        rows = len(frame(table, part))
        count = min(rows, math.ceil(Path(file).stat().st_size / size))
        for number in range(count):
            start, stop = rows * number // count, rows * (number + 1) // count
            batches.append({"part": part, "start": start, "stop": stop, "items": stop - start})
    return batches


def _groups(table: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    """Rows with the same values in the key columns; in the order of the values."""
    rows_of_all = frame(table, None)
    lacking = [key for key in keys if key not in rows_of_all.columns]
    if lacking:
        raise Unreadable(f"the table has no column `{lacking[0]}` to divide it by")
    batches = []
    for number, (values, rows) in enumerate(rows_of_all.groupby(keys, sort=True)):
        named = dict(zip(keys, map(_plain, values), strict=True))
        batches.append({"group": number, "keys": named, "items": len(rows)})
    return batches


def _plain(value: Any) -> Any:
    """A value of a column as JSON has it; a date as its text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, str | int | float | bool) else str(value)
