"""Generate the reference of `data/NAME.schema.yml`, the schema of a project's table."""

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
    """Return the example file in the docstring of the module that reads schemas."""
    lines = (datasets.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))


def notes() -> dict[str, str]:
    """Return each field → its comment in the example; "" without one."""
    found = re.findall(r"^([a-z_]+):(?:.*?\s#\s(.*))?", example(), re.M)
    return {name: comment.strip() for name, comment in found}


def page() -> str:
    """Return the page: the example, the fields, the columns, and the tasks with their metrics."""
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
        # `costs` is an alternative to `threshold`, and not a separate field.
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
