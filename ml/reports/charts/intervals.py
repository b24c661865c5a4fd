"""Draw bars for shares, and intervals on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.formatting import number, shorten
from ml.reports.markup import tag, tooltip

# (class, value, low, high): a dot and the line of its interval.
Interval = tuple[str, float, float, float]


def bars(
    title: str, shares: Sequence[tuple[str, float]], caption: str = "", weak: bool = False
) -> Markup:
    """Plot one bar per name; shares are fractions of 1, and the largest has the longest bar.

    `weak` shares are unreliable: they are drawn pale, and the caption gives the reason.
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
    # Two names may be equal once shortened; they are still two bars.
    y = alt.Y("place:O", axis=None)
    x = alt.X("size:Q", axis=None)
    names = rows.mark_text(align="right", dx=-8).encode(y, text="name:N", x=alt.value(0))
    drawn = rows.mark_bar(color=f"var(--{'q2' if weak else 'q4'})").encode(x, y)
    words = rows.mark_text(align="left", dx=8).encode(x, y, text="share:N")
    chart = alt.layer(svg.pointed(names), svg.pointed(drawn), words)
    return svg.figure(title, chart, 590, 24 * len(shares) + 10, caption)


def intervals(rows: Sequence[Interval], low: float, high: float) -> Markup:
    """Draw intervals on one scale, one below the other, for a table cell.

    A page has hundreds of them with few lines each, so they are written as SVG directly.
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
