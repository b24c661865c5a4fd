"""A forest plot of paired differences, as text and as an SVG file.

GitHub strips inline SVG and data URIs from comments, and Mermaid's bars overlap: the text is shown
everywhere, and the file where the comment can name its address.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ml.core.markdown import plain, truncate
from ml.reports.formatting import signed_short

# Letters of a label and of the scale; the scale is odd, so that zero is in the middle.
LABEL, SCALE = 28, 33
# The page around the file is unknown, so it has a white background.
_INK, _QUIET, _GOOD, _BAD, _OPEN = "#1b1f24", "#8a929c", "#1a7f4b", "#c0312b", "#5b6470"


@dataclass(frozen=True)
class ForestRow:
    """A difference with its interval; all three finite, positive when the candidate is better.

    As text it is candidate minus champion, which is below zero for a better candidate where less
    is better (`sign` −1).
    """

    label: str
    mean: float
    low: float
    high: float
    sign: int = 1

    @property
    def color(self) -> str:
        """Whether the interval says better, worse, or neither."""
        return _GOOD if self.low > 0 else _BAD if self.high < 0 else _OPEN

    def __str__(self) -> str:
        ends = sorted((self.sign * self.low, self.sign * self.high))
        mean, low, high = map(signed_short, (self.sign * self.mean, *ends))
        return f"{mean} ({low} to {high})"


def forest_row(label: str, mean: float, low: float, high: float, sign: int = 1) -> ForestRow | None:
    """The row in the direction in which more is better; None when it cannot be drawn."""
    if not all(math.isfinite(value) and abs(value) < 1e300 for value in (mean, low, high)):
        return None
    low, high = sorted((sign * low, sign * high))
    return ForestRow(label, sign * mean, low, high, sign)


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
    import altair as alt

    from ml.reports.charts import svg

    reach, ink = _reach(rows), {"color": _INK, "fontSize": 12}
    table = svg.rows(
        {
            "place": place,
            "label": truncate(plain(row.label), LABEL),
            "mean": row.mean,
            "low": row.low,
            "high": row.high,
            "color": row.color,
            "words": str(row),
        }
        for place, row in enumerate(rows)
    )
    y = alt.Y("place:O", axis=None)
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    color = alt.Color("color:N", scale=None)
    # worse and better stand over the ends of the scale, the labels and numbers beside it.
    ends = svg.rows([{"words": "worse", "x": -reach}, {"words": "better", "x": reach}])
    chart = alt.layer(
        ends.mark_text(color=_QUIET, fontSize=12).encode(
            alt.X("x:Q", scale=scale, axis=None), y=alt.value(-10), text="words:N"
        ),
        svg.rows([{"mean": 0}]).mark_rule(color=_QUIET).encode(alt.X("mean:Q", scale=scale)),
        table.mark_text(align="right", dx=-10, **ink).encode(y, x=alt.value(0), text="label:N"),
        table.mark_rule(strokeWidth=2).encode(
            alt.X("low:Q", scale=scale), alt.X2("high:Q"), y, color
        ),
        table.mark_point(size=64).encode(alt.X("mean:Q", scale=scale), y, color),
        table.mark_text(align="left", dx=10, **ink).encode(
            y, x=alt.value(alt.expr("width")), text="words:N"
        ),
    )
    titled = chart.properties(
        width=680,
        height=24 * len(rows) + 60,
        title=alt.Title(title, color=_INK, fontSize=12, anchor="start"),
        background="#ffffff",
        # Letters may be wider where it is shown than where it is drawn.
        padding={"left": 40, "right": 40, "top": 8, "bottom": 8},
    )
    return svg.drawing(
        titled, title, xmlns="http://www.w3.org/2000/svg", font_family="system-ui, sans-serif"
    )


def _reach(rows: Sequence[ForestRow]) -> float:
    """How far the scale extends on both sides of zero."""
    return max((max(abs(row.low), abs(row.high)) for row in rows), default=0.0) or 1.0
