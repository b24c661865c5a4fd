"""A forest plot of paired differences, as text and as an SVG file.

GitHub strips inline SVG and data URIs from comments, and Mermaid's bars overlap: the text is shown
everywhere, and the file where the comment can name its address.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.reports.charts.scales import Linear
from ml.reports.formatting import signed_short
from ml.reports.markdown import plain, truncate

# Letters of a label and of the scale; the scale is odd, so that zero is in the middle.
LABEL, SCALE = 28, 33
# The page around the file is unknown, so it has a white background.
_INK, _QUIET, _GOOD, _BAD, _OPEN = "#1b1f24", "#8a929c", "#1a7f4b", "#c0312b", "#5b6470"


@dataclass(frozen=True)
class ForestRow:
    """A difference with its interval; all three finite, positive when the candidate is better."""

    label: str
    mean: float
    low: float
    high: float

    @property
    def color(self) -> str:
        """Whether the interval says better, worse, or neither."""
        return _GOOD if self.low > 0 else _BAD if self.high < 0 else _OPEN

    def __str__(self) -> str:
        mean, low, high = map(signed_short, (self.mean, self.low, self.high))
        return f"{mean} ({low} to {high})"


def forest_row(label: str, mean: float, low: float, high: float, sign: int = 1) -> ForestRow | None:
    """The row in the direction in which more is better; None when it cannot be drawn."""
    if not all(math.isfinite(value) and abs(value) < 1e300 for value in (mean, low, high)):
        return None
    low, high = sorted((sign * low, sign * high))
    return ForestRow(label, sign * mean, low, high)


def text_plot(rows: Sequence[ForestRow]) -> Iterator[str]:
    """A line per row: `├──●──┤` on a scale with zero in its middle, and the numbers."""
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


def svg_file(rows: Sequence[ForestRow], title: str) -> str:
    """A complete SVG document without references; only the title when there are no rows."""
    # A pull request's comment needs the text alone, and is made without packages.
    from ml.reports.charts.svg import tag

    row_height, top, left, right, value_width = 24.0, 44.0, 210.0, 510.0, 170.0
    reach, width, height = _reach(rows), right + value_width, top + row_height * len(rows) + 12
    x = Linear(-reach, reach, left, right)
    marks = [
        tag("title", title),
        tag("rect", width=width, height=height, fill="#ffffff"),
        tag("text", title, x=8, y=20, fill=_INK, font_weight=600),
        tag("text", "worse", x=left, y=top - 8, fill=_QUIET),
        tag("text", "better", x=right, y=top - 8, fill=_QUIET, text_anchor="end"),
        tag("line", x1=x(0.0), x2=x(0.0), y1=top - 4, y2=height - 8, stroke=_QUIET),
    ]
    for place, row in enumerate(rows):
        y = top + row_height * (place + 0.5)
        label, ends = truncate(plain(row.label), LABEL), {"x1": x(row.low), "x2": x(row.high)}
        marks += [
            tag("text", label, x=left - 10, y=y + 4, fill=_INK, text_anchor="end"),
            tag("line", **ends, y1=y, y2=y, stroke=row.color, stroke_width=2),
            tag("circle", cx=x(row.mean), cy=y, r=4.5, fill=row.color),
            tag("text", row, x=right + 10, y=y + 4, fill=_INK),
        ]
    return tag(
        "svg",
        *marks,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        font_family="system-ui, sans-serif",
        font_size=12,
        role="img",
    )


def _reach(rows: Sequence[ForestRow]) -> float:
    """How far the scale extends on both sides of zero."""
    return max((max(abs(row.low), abs(row.high)) for row in rows), default=0.0) or 1.0
