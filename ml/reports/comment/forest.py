"""Paired differences on one scale, as letters and as an SVG file.

GitHub strips inline SVG and data URIs from comments, and Mermaid's bars lie over one another: the
letters are shown everywhere; the file is shown where the comment can name an address of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.reports.charts.scales import Linear
from ml.reports.comment.markdown import plain, shorten
from ml.reports.markup import tag

# Letters of a label and of the scale; an odd number, so that zero can have the middle.
LABEL, SCALE = 28, 33
_ROW, _NAME, _WIDTH, _VALUE, _TOP = 24.0, 210.0, 300.0, 170.0, 44.0
# On white, whatever the page around it is.
_INK, _QUIET, _GOOD, _BAD, _OPEN = "#1b1f24", "#8a929c", "#1a7f4b", "#c0312b", "#5b6470"


@dataclass(frozen=True)
class Span:
    """A difference with its interval; all three finite, positive when the candidate is better."""

    label: str
    mean: float
    low: float
    high: float

    @property
    def color(self) -> str:
        """Whether the interval says better, worse, or neither."""
        return _GOOD if self.low > 0 else _BAD if self.high < 0 else _OPEN


def sound(label: str, mean: float, low: float, high: float, sign: int = 1) -> Span | None:
    """The span in the direction in which more is better; None when it cannot be drawn."""
    if not all(math.isfinite(one) and abs(one) < 1e300 for one in (mean, low, high)):
        return None
    low, high = sorted((sign * low, sign * high))
    return Span(label, sign * mean, low, high)


def letters(spans: Sequence[Span]) -> Iterator[str]:
    """A line a span: `├──●──┤` on a scale with zero in its middle, and the numbers."""
    if not spans:
        return
    reach = _reach(spans)
    middle = SCALE // 2
    width = min(LABEL, max(len(plain(one.label)) for one in spans))
    head = "worse ◂" + "0".center(SCALE - 14) + "▸ better"
    yield f"{' ' * width}  {head}"

    def at(value: float) -> int:
        return middle + round(max(-1.0, min(1.0, value / reach)) * middle)

    for one in spans:
        cells = [" "] * SCALE
        cells[middle] = "┊"
        low, high = at(one.low), at(one.high)
        cells[low : high + 1] = ["─"] * (high - low + 1)
        cells[low], cells[high] = "├", "┤"
        cells[at(one.mean)] = "●"
        label = shorten(plain(one.label), width).ljust(width)
        yield f"{label}  {''.join(cells)}  {_said(one)}"


def svg(spans: Sequence[Span], title: str) -> str:
    """A whole SVG document that needs nothing else; a title alone when there is no span."""
    reach = _reach(spans)
    left, right = _NAME, _NAME + _WIDTH
    x = Linear(-reach, reach, left, right)
    height = _TOP + _ROW * len(spans) + 12
    marks: list[object] = [
        tag("title", title),
        tag("rect", width=right + _VALUE, height=height, fill="#ffffff"),
        tag("text", title, x=8, y=20, fill=_INK, font_weight=600),
        tag("text", "worse", x=left, y=_TOP - 8, fill=_QUIET),
        tag("text", "better", x=right, y=_TOP - 8, fill=_QUIET, text_anchor="end"),
        tag("line", x1=x(0.0), x2=x(0.0), y1=_TOP - 4, y2=height - 8, stroke=_QUIET),
    ]
    for place, one in enumerate(spans):
        y = _TOP + _ROW * (place + 0.5)
        label = shorten(plain(one.label), LABEL)
        marks += [
            tag("text", label, x=left - 10, y=y + 4, fill=_INK, text_anchor="end"),
            tag(
                "line", x1=x(one.low), x2=x(one.high), y1=y, y2=y, stroke=one.color, stroke_width=2
            ),
            tag("circle", cx=x(one.mean), cy=y, r=4.5, fill=one.color),
            tag("text", _said(one), x=right + 10, y=y + 4, fill=_INK),
        ]
    return str(
        tag(
            "svg",
            *marks,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {right + _VALUE:.0f} {height:.0f}",
            width=right + _VALUE,
            height=height,
            font_family="system-ui, sans-serif",
            font_size=12,
            role="img",
        )
    )


def _said(one: Span) -> str:
    mean, low, high = (f"{value:+.3g}".replace("-", "−") for value in (one.mean, one.low, one.high))
    return f"{mean} ({low} to {high})"


def _reach(spans: Sequence[Span]) -> float:
    """How far the scale goes to either side of zero."""
    return max((max(abs(one.low), abs(one.high)) for one in spans), default=0.0) or 1.0
