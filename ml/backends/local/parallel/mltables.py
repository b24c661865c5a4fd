"""The data of a parallel job: files or an MLTable, its rows, and its mini-batches.

`describe` reads the file MLTable (reference-yaml-mltable) and refuses what is not supported here,
`divide` makes mini-batches (reference-yaml-job-parallel: mini_batch_size), `frame` reads a part of
a table. Needs pandas, and nothing of the repository: the processes of a parallel job load this file
by its path, with the interpreter that the job asks for.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "MLTable"
READS = frozenset({"read_delimited", "read_parquet", "read_json_lines"})
# Of these the whole table is needed: which rows they are is not known in one file alone.
WHOLE = frozenset({"take", "skip"})
OTHERS = frozenset({"drop_columns", "keep_columns", "convert_column_types"})
PARTITIONS = "extract_columns_from_partition_format"
# A moment in a path, part by part (MLTable.extract_columns_from_partition_format).
_DATES = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
ENCODINGS = {
    "utf8": "utf-8",
    "utf8bom": "utf-8-sig",
    "iso88591": "latin-1",
    "windows1252": "cp1252",
}
_KNOWN = {
    "read_delimited": frozenset(
        {"delimiter", "encoding", "header", "empty_as_string", "include_path_column"}
        | {"infer_column_types", "support_multi_line"}
    ),
    "read_json_lines": frozenset({"encoding", "include_path_column", "invalid_lines"}),
    "read_parquet": frozenset({"include_path_column"}),
}


class Unreadable(ValueError):
    """The table needs something that is not supported here, or is not there."""


def _table(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """{files, steps}: absolute paths of the table's files, and what is done with them in order."""
    steps = []
    for step in document.get("transformations") or []:
        name, options = (step, {}) if isinstance(step, str) else next(iter(step.items()))
        if name not in READS | WHOLE | OTHERS | {PARTITIONS}:
            raise Unreadable(f"{folder / FILE}: the transformation `{name}` is not supported here")
        unknown = sorted(set(options or {}) - _KNOWN[name]) if name in READS else []
        if unknown:
            raise Unreadable(f"{folder / FILE}: `{unknown[0]}` of `{name}` is not supported here")
        if name == PARTITIONS:
            options = _partition_format(folder, options)
        steps.append([name, options])
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
    return {"files": [str(path.resolve()) for path in files], "steps": steps}


def is_tabular(table: Mapping[str, Any]) -> bool:
    """Whether the table has rows; without a way to read them it is a list of files."""
    return any(name in READS for name, _ in table["steps"])


def parts(table: Mapping[str, Any]) -> list[int | None]:
    """What can be read by itself: each file, or (None) only all of them together."""
    if any(name in WHOLE for name, _ in table["steps"]):
        return [None]
    return list(range(len(table["files"])))


def frame(table: Mapping[str, Any], part: int | None) -> pd.DataFrame:
    """The rows of a part, None for all of the table."""
    import pandas as pd

    numbers = range(len(table["files"])) if part is None else [part]
    read = [_file(table, number) for number in numbers]
    rows = pd.concat(read, ignore_index=True) if len(read) != 1 else read[0]
    for name, options in table["steps"]:
        if name == "take":
            rows = rows.head(int(options))
        elif name == "skip":
            rows = rows.iloc[int(options) :]
        elif name in OTHERS:
            rows = _apply(rows, name, options)
    return rows.reset_index(drop=True)


def partitions(path: str, form: str) -> dict[str, str | datetime]:
    """The values that a path has for a partition format such as `/{store}/{day:yyyy-MM-dd}.csv`.

    The format ends where the path does, or at the end of one of its folders. Raises Unreadable for
    a path that does not have the format.
    """
    parts = re.split(r"\{([^{}]+)\}", form.lstrip("/"))
    fields = [field.partition(":") for field in parts[1::2]]
    held = [f"({_date(day)[0]})" if day else "([^/]+)" for _, _, day in fields]
    pattern = "".join(
        re.escape(text) + field for text, field in zip(parts[::2], [*held, ""], strict=True)
    )
    match = re.search(rf"(?:^|/){pattern}$", path) or re.search(rf"(?:^|/){pattern}/", path)
    if match is None:
        raise Unreadable(f"{path} does not have the partition format `{form}`")
    try:
        return {
            name: datetime.strptime(value, _date(day)[1]) if day else value
            for (name, _, day), value in zip(fields, match.groups(), strict=True)
        }
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from None


def _date(form: str) -> tuple[str, str]:
    """`yyyy/MM/dd` as a regular expression, and as `strptime` has it."""
    pattern = re.sub(r"[A-Za-z]+", lambda part: rf"\d{{{len(part[0])}}}", re.escape(form))
    return pattern, re.sub(r"[A-Za-z]+", lambda part: _DATES[part[0]], form.replace("%", "%%"))


def _partition_format(folder: Path, options: Any) -> str:
    """The format's text, whichever way the table gives it."""
    if isinstance(options, dict) and list(options.values()) == [None]:
        # `{day:yyyy/MM/dd}` without quotes is a mapping to YAML.
        options = f"{{{next(iter(options))}}}"
    form = options.get("partition_format") if isinstance(options, dict) else options
    if not isinstance(form, str):
        raise Unreadable(f"{folder / FILE}: `{PARTITIONS}` has no `partition_format`")
    for day in re.findall(r"\{[^{}:]*:([^{}]*)\}", form):
        if not set(re.findall(r"[A-Za-z]+", day)) <= set(_DATES):
            raise Unreadable(f"{folder / FILE}: `{day}` in `{PARTITIONS}` is not supported here")
    return form


def _file(table: Mapping[str, Any], number: int) -> pd.DataFrame:
    import pandas as pd

    path, rows = table["files"][number], pd.DataFrame()
    for name, options in table["steps"]:
        options = options or {}
        if name == "read_delimited":
            rows = _delimited(table["files"], number, options)
        elif name == "read_parquet":
            rows = pd.read_parquet(path)
        elif name == "read_json_lines":
            rows = _json_lines(Path(path), options)
        elif name == PARTITIONS:
            rows = rows.assign(**partitions(path, str(options)))
        if name in READS and options.get("include_path_column"):
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


def _apply(rows: pd.DataFrame, name: str, options: Any) -> pd.DataFrame:
    columns = [options] if isinstance(options, str) else options
    if name == "drop_columns":
        return rows.drop(columns=columns)
    if name == "keep_columns":
        return rows[columns]
    for change in options:
        named = change["columns"]
        for column in [named] if isinstance(named, str) else named:
            rows = rows.assign(**{column: _convert(rows[column], change["column_type"])})
    return rows


def _convert(values: pd.Series[Any], kind: Any) -> pd.Series[Any]:
    import pandas as pd

    options: Any = {}
    if isinstance(kind, dict):
        kind, options = next(iter(kind.items()))
    if kind == "datetime":
        formats = (options or {}).get("formats") or [None]
        return pd.to_datetime(values, format=formats[0])
    if kind == "boolean":
        truths = {str(text).lower() for text in (options or {}).get("true_values") or ["true", "1"]}
        return values.map(lambda value: str(value).lower() in truths)
    plain: dict[Any, Any] = {"int": "int64", "float": "float64", "string": "str"}
    if kind not in plain:
        raise Unreadable(f"the column type `{kind}` is not supported here")
    converted: pd.Series[Any] = values.astype(plain[kind])
    return converted


# "The default value is 1" (reference-yaml-job-parallel, for files); for tables, where it is a
# size, the same document has none, and azure-ai-ml says 1 MB.
FILES = 1
TABLE_BYTES = 1 << 20


def describe(data: Path) -> dict[str, Any]:
    """The files of a folder, of a file or of an MLTable, and what is done with them in order:
    {files, steps}. Raises Unreadable.
    """
    file = data / FILE
    if file.is_file():
        import yaml

        try:
            document = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise Unreadable(f"{file}: {error}") from None
        return _table(data, document if isinstance(document, dict) else {})
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    return {"files": [str(path.resolve()) for path in files], "steps": []}


def divide(table: Mapping[str, Any], size: int, keys: list[str]) -> list[dict[str, Any]]:
    """The mini-batches, numbered from 0: what a process needs to read its own, and its items.

    "If both partition_keys and mini_batch_size are specified, the partition keys take effect."
    A mini-batch of a table never crosses the boundary of a file (how-to-debug-parallel-run-step).
    """
    if is_tabular(table):
        batches = _groups(table, keys) if keys else _rows(table, size or TABLE_BYTES)
    elif keys:
        batches = _partitions(table, keys)
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
    for part in parts(table):
        files = table["files"] if part is None else [table["files"][part]]
        rows = len(frame(table, part))
        count = min(rows, math.ceil(sum(Path(file).stat().st_size for file in files) / size))
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


def _partitions(table: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    """Files whose paths have the same values."""
    formats = [options for name, options in table["steps"] if name == PARTITIONS]
    if not formats:
        raise Unreadable(
            f"files are divided by {', '.join(keys)}: their MLTable needs `{PARTITIONS}`"
        )
    groups: dict[tuple[Any, ...], list[str]] = {}
    for path in table["files"]:
        values = partitions(path, str(formats[0]))
        if lacking := set(keys) - set(values):
            raise Unreadable(f"`{formats[0]}` has no `{min(lacking)}` to divide by")
        groups.setdefault(tuple(values[key] for key in keys), []).append(path)
    return [
        {
            "files": files,
            "keys": dict(zip(keys, map(_plain, values), strict=True)),
            "items": len(files),
        }
        for values, files in sorted(groups.items())
    ]


def _plain(value: Any) -> Any:
    """A value of a column as JSON has it; a date as its text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, str | int | float | bool) else str(value)
