"""Generate the table of `make azure-first-day`: command, expected answer, source, remedy."""

from __future__ import annotations

from itertools import groupby

from docs.generate.markdown import code, escape
from ml.backends.azure.first_day.rows import Row, load


def page() -> str:
    """Return the page: a table for each group of rows."""
    parts = []
    for group, rows in groupby(load(), lambda row: row.group):
        parts += [f"## {group}", *map(_section, rows)]
    return "\n\n".join(parts)


def _by(row: Row) -> str:
    return f"make azure-first-day{'' if row.request else ' ENV=dev'}"


def _section(row: Row) -> str:
    command, _, situation = row.command.partition(", ")
    expected = escape(row.expected) or "; ".join(map(code, row.facts))
    source = f"<{row.source}>" if row.source.startswith("https:") else code(row.source)
    fields = {
        "Command": f"{code(command)}{', ' if situation else ''}{escape(situation)}",
        "Expected": expected,
        "Source": source,
        "If not": escape(row.remedy),
        "Compared": f"by hand: {row.decision}" if row.decision else f"by {code(_by(row))}",
    }
    lines = (f":{name}: {text}" for name, text in fields.items())
    return f"### {row.name}\n\n" + "\n".join(lines)
