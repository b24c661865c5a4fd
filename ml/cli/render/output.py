"""Print results: JSON for programs; tables and aligned lines for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from ml.core.terminal import printable, readable, unfiltered

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def show_step(sentence: str) -> None:
    """Print a line of progress on stderr and flush it."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def write_json(value: Any) -> None:
    """Print the value as one JSON document on stdout.

    Dataclasses become objects. NaN, infinities and paths become strings.
    """
    sys.stdout.write(as_text(value))


def as_text(value: Any) -> str:
    """Return the value as a JSON document, converted as by `write_json`."""
    return json.dumps(_plain(value), indent=1, default=str) + "\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print a table on stdout: with Rich on a terminal, otherwise as plain aligned columns.

    Control characters are escaped, and no cell is cut off.
    """
    safe = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, safe, indent)
        return
    widths = [max(len(row[i]) for row in [columns, *safe]) for i in range(len(columns))]
    for row in [columns, *safe]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(" " * indent + "  ".join(cells).rstrip() + "\n")


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(Padding(table, (0, 0, 0, indent)))


def console(stderr: bool = False, width: int | None = None) -> Console:
    """Return a Rich console that keeps colours and escapes control characters in texts."""
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Readable(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                is_text = not segment.control
                yield Segment(readable(segment.text), segment.style) if is_text else segment

    return Readable(file=unfiltered(sys.stderr if stderr else sys.stdout), width=width)


def align(pairs: Iterable[tuple[str, str]]) -> str:
    """Format (label, text) pairs as lines of two aligned columns."""
    listed = list(pairs)
    width = max((len(label) for label, _ in listed), default=0)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in listed)
