"""The mini-batches of a parallel job: of files, or of the rows of an MLTable.

`divide` makes them (reference-yaml-job-parallel: mini_batch_size); `ml.toolkit.data.mltables` reads
the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.toolkit.data import mltables
from ml.toolkit.data.mltables import Unreadable, frame

# "The default value is 1" (reference-yaml-job-parallel, for files); for tables, where it is a
# size, the same document has none, and azure-ai-ml says 1 MB.
FILES = 1
TABLE_BYTES = 1 << 20


def describe(data: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The files of a folder, of a file or of an MLTable, as the reader of tables has them.

    Raises Unreadable, also for `keys` to divide files by: that is for the rows of a table.
    """
    table = mltables.describe(data)
    if keys and not table["read"]:
        raise Unreadable(f"{data}: only the rows of a table are divided by {', '.join(keys)} here")
    return table


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
