"""A table on stdout: drawn on a terminal, plain aligned columns for everything else."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def write(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Write the rows; a cell's control characters are spelt out, and no cell is cut off."""
    safe = [[plain(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, safe, indent)
        return
    widths = [max(len(row[i]) for row in [columns, *safe]) for i in range(len(columns))]
    for row in [columns, *safe]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write(" " * indent + "  ".join(cells).rstrip() + "\n")


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], indent: int) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(Padding(table, (0, 0, 0, indent)))


def plain(text: str) -> str:
    """The text with control characters spelt out: a job cannot control the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
