"""Draw a forest plot of paired differences, as text.

GitHub strips inline SVG and data URIs from comments, and Mermaid's bars overlap: the text is
used everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.core.markdown import plain, truncate
from ml.reports.formatting import signed_short

# Letters of a label and of the scale; the scale is odd, so that zero is in the middle.
LABEL, SCALE = 28, 33


@dataclass(frozen=True)
class ForestRow:
    """A difference with its interval: three finite numbers, positive for a better candidate.

    As text it is candidate minus champion.
    """

    label: str
    mean: float
    low: float
    high: float
    sign: int = 1  # −1 if lower is better: as text, a better candidate is then below zero

    def __str__(self) -> str:
        ends = sorted((self.sign * self.low, self.sign * self.high))
        mean, low, high = map(signed_short, (self.sign * self.mean, *ends))
        return f"{mean} ({low} to {high})"


def forest_row(label: str, mean: float, low: float, high: float, sign: int = 1) -> ForestRow | None:
    """Return the row with positive values for a better candidate; None if it cannot be drawn."""
    if not all(math.isfinite(value) and abs(value) < 1e300 for value in (mean, low, high)):
        return None
    low, high = sorted((sign * low, sign * high))
    return ForestRow(label, sign * mean, low, high, sign)


def text_plot(rows: Sequence[ForestRow]) -> Iterator[str]:
    """Yield a line per row: `├──●──┤` on a scale with zero in its middle, and the numbers."""
    if not rows:
        return
    reach, middle = _reach(rows), SCALE // 2
    width = min(LABEL, max(len(plain(row.label)) for row in rows))
    yield f"{' ' * width}  worse ◂{'0'.center(SCALE - 14)}▸ better"

    def column(value: float) -> int:
        return middle + round(max(-1.0, min(1.0, value / reach)) * middle)

    for row in rows:
        cells = [" "] * SCALE
        cells[middle] = "┊"
        low, high = column(row.low), column(row.high)
        cells[low : high + 1] = ["─"] * (high - low + 1)
        cells[low], cells[high] = "├", "┤"
        cells[column(row.mean)] = "●"
        yield f"{truncate(plain(row.label), width).ljust(width)}  {''.join(cells)}  {row}"


def _reach(rows: Sequence[ForestRow]) -> float:
    """Return how far the scale extends on both sides of zero."""
    return max((max(abs(row.low), abs(row.high)) for row in rows), default=0.0) or 1.0
