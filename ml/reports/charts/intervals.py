"""Draw bars for shares, and intervals on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.formatting import number, shorten
from ml.reports.markup import tag, tooltip

# (colour class, value, low, high): drawn as a dot and a line for the interval.
Interval = tuple[str, float, float, float]


def bars(
    title: str, shares: Sequence[tuple[str, float]], caption: str = "", weak: bool = False
) -> Markup:
    """Plot one bar per (name, share); shares are fractions of 1.

    `weak` draws unreliable shares in a pale colour; the caption should give the reason.
    """
    rows = svg.rows(
        {
            "place": place,
            "name": shorten(name, 29),
            "size": abs(share),
            "share": f"{share:.1%}",
            "words": f"{name}: {share:.1%}",
        }
        for place, (name, share) in enumerate(shares)
    )
    # Place bars by index, since two names may be equal once shortened.
    y = alt.Y("place:O", axis=None)
    x = alt.X("size:Q", axis=None)
    names = rows.mark_text(align="right", dx=-8).encode(y, text="name:N", x=alt.value(0))
    drawn = rows.mark_bar(color=f"var(--{'q2' if weak else 'q4'})").encode(x, y)
    words = rows.mark_text(align="left", dx=8).encode(x, y, text="share:N")
    chart = alt.layer(svg.pointed(names), svg.pointed(drawn), words)
    return svg.figure(title, chart, 590, 24 * len(shares) + 10, caption)


def intervals(rows: Sequence[Interval], low: float, high: float) -> Markup:
    """Draw intervals for a table cell, one below the other, on a scale from `low` to `high`.

    The SVG is written without Altair, since a page has hundreds of these small charts.
    """
    width, height, span = 200.0, 26.0, (high - low) or 1.0

    def x(value: float) -> float:
        return 4 + min(1.0, max(0.0, (value - low) / span)) * (width - 8)

    marks: list[Markup] = []
    for place, (kind, value, lowest, highest) in enumerate(rows, 1):
        y, colour = place * height / (len(rows) + 1), f"var(--{kind})"
        words = tooltip(f"{kind}: {number(value)} ({number(lowest)} to {number(highest)})")
        line = {"x1": x(lowest), "x2": x(highest), "y1": y, "y2": y}
        marks.append(tag("line", words, **line, stroke=colour, stroke_width=2))
        marks.append(tag("circle", words, cx=x(value), cy=y, r=3.5, fill=colour))
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="inline",
        role="img",
        aria_label="intervals",
    )
