"""The data of a parallel job → its mini-batches (reference-yaml-job-parallel: mini_batch_size)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml.backends.local.parallel import mltables

# "The default value is 1" (reference-yaml-job-parallel, for files); for tables, where it is a
# size, the same document has none, and azure-ai-ml says 1 MB.
FILES = 1
TABLE_BYTES = 1 << 20


def described(data: Path) -> dict[str, Any]:
    """The files of a folder, of a file or of an MLTable: {files, steps}, as `mltables` has it.

    Raises mltables.Unreadable.
    """
    file = data / mltables.FILE
    if file.is_file():
        import yaml

        try:
            document = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise mltables.Unreadable(f"{file}: {error}") from None
        return mltables.described(data, document if isinstance(document, dict) else {})
    files = [data] if data.is_file() else sorted(path for path in data.rglob("*") if path.is_file())
    return {"files": [str(path.resolve()) for path in files], "steps": []}


def divided(table: Mapping[str, Any], size: int, keys: list[str]) -> list[dict[str, Any]]:
    """The mini-batches, numbered from 0: what a process needs to read its own, and its items.

    "If both partition_keys and mini_batch_size are specified, the partition keys take effect."
    A mini-batch of a table never crosses the boundary of a file (how-to-debug-parallel-run-step).
    """
    if mltables.is_tabular(table):
        found = _groups(table, keys) if keys else _rows(table, size or TABLE_BYTES)
    elif keys:
        found = _partitions(table, keys)
    else:
        size = size or FILES
        files = table["files"]
        found = [
            {"files": files[at : at + size], "items": len(files[at : at + size])}
            for at in range(0, len(files), size)
        ]
    return [{"id": number, **batch} for number, batch in enumerate(found)]


def _rows(table: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Even runs of rows, as many as make up the size of the file that they are in."""
    found = []
    for part in mltables.parts(table):
        files = table["files"] if part is None else [table["files"][part]]
        rows = len(mltables.frame(table, part))
        count = min(rows, math.ceil(sum(Path(file).stat().st_size for file in files) / size))
        for number in range(count):
            start, stop = rows * number // count, rows * (number + 1) // count
            found.append({"part": part, "start": start, "stop": stop, "items": stop - start})
    return found


def _groups(table: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    """Rows with the same values in the key columns; in the order of the values."""
    frame = mltables.frame(table, None)
    lacking = [key for key in keys if key not in frame.columns]
    if lacking:
        raise mltables.Unreadable(f"the table has no column `{lacking[0]}` to divide it by")
    found = []
    for number, (values, rows) in enumerate(frame.groupby(keys, sort=True)):
        named = dict(zip(keys, map(_plain, values), strict=True))
        found.append({"group": number, "keys": named, "items": len(rows)})
    return found


def _partitions(table: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    """Files whose paths have the same values."""
    formats = [options for name, options in table["steps"] if name == mltables.PARTITIONS]
    if not formats:
        raise mltables.Unreadable(
            f"files are divided by {', '.join(keys)}: their MLTable needs `{mltables.PARTITIONS}`"
        )
    groups: dict[tuple[Any, ...], list[str]] = {}
    for path in table["files"]:
        values = mltables.partitions(path, str(formats[0]))
        if lacking := set(keys) - set(values):
            raise mltables.Unreadable(f"`{formats[0]}` has no `{min(lacking)}` to divide by")
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
