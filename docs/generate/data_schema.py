"""The schema of a table's data: `data/NAME.schema.yml` of a project."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from typing import Any, get_args

from docs.generate.markdown import code, escape, paragraphs, table
from ml.measures import tasks
from ml.toolkit.data import datasets
from ml.toolkit.data.tables import Column, ColumnType, TableSchema


def example() -> str:
    """Return the example in the docstring of the module that reads the file."""
    lines = (datasets.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


def notes() -> dict[str, str]:
    """Field → the comment beside it in the example; "" without one."""
    found = re.findall(r"^([a-z_]+):(?:.*?\s#\s(.*))?", example(), re.M)
    return {name: comment.strip() for name, comment in found}


def page() -> str:
    """Return the example, the fields, the columns, and the tasks with their metrics."""
    text = (datasets.__doc__ or "").split("\n\n")
    after = [part for part in text[2:] if not part.startswith("    ")]
    return "\n\n".join(
        [
            f"```yaml\n{example()}\n```",
            *map(paragraphs, after),
            "## Fields",
            table(["field", "default", "description"], _fields()),
            "## Columns",
            escape(inspect.getdoc(Column) or ""),
            table(["field", "default"], [[code(f.name), _default(f)] for f in fields(Column)]),
            f"Types: {', '.join(map(code, get_args(ColumnType)))}.",
            "## Tasks and metrics",
            table(["task", "metrics"], _tasks()),
        ]
    )


def _fields() -> list[list[str]]:
    defaults = {field.name: field for field in (*fields(datasets.Target), *fields(TableSchema))}
    described = notes() | dict.fromkeys(sorted(datasets._FIELDS - notes().keys()), "")
    return [
        # `costs` is another way to state the threshold, and no field of its own.
        [code(name), _default(defaults[name]) if name in defaults else "", escape(note)]
        for name, note in described.items()
    ]


def _default(field: Any) -> str:
    if field.default is MISSING:
        return "required"
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return code(repr(default) if default == "\t" else default) if default not in ("", ()) else ""


def _tasks() -> list[list[str]]:
    return [
        [code(task), ", ".join(map(code, tasks.metrics_of(task)))] for task in datasets.TABLE_TASKS
    ]
