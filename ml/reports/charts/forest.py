"""Draw a forest plot of paired differences as text.

GitHub strips inline SVG and data URIs from comments, and Mermaid's bars would overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.core.markdown import plain, truncate
from ml.reports.formatting import signed_short

# Characters of a label and of the scale; the scale's number is odd, so that zero is in the middle.
LABEL, SCALE = 28, 33


@dataclass(frozen=True)
class ForestRow:
    """A paired difference with its interval; positive if the candidate is better.

    As text, it is candidate minus champion.
    """

    label: str
    mean: float
    low: float
    high: float
    sign: int = 1  # −1 if lower is better: the text then has the opposite sign

    def __str__(self) -> str:
        ends = sorted((self.sign * self.low, self.sign * self.high))
        mean, low, high = map(signed_short, (self.sign * self.mean, *ends))
        return f"{mean} ({low} to {high})"


def forest_row(label: str, mean: float, low: float, high: float, sign: int = 1) -> ForestRow | None:
    """Return the row for candidate minus champion; None if a number is infinite, NaN or huge."""
    if not all(math.isfinite(value) and abs(value) < 1e300 for value in (mean, low, high)):
        return None
    low, high = sorted((sign * low, sign * high))
    return ForestRow(label, sign * mean, low, high, sign)


def text_plot(rows: Sequence[ForestRow]) -> Iterator[str]:
    """Yield the plot's lines: the scale's title, then per row `├──●──┤` around zero and numbers."""
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
    """Return the largest absolute end of an interval: the scale's limit on both sides of zero."""
    return max((max(abs(row.low), abs(row.high)) for row in rows), default=0.0) or 1.0
