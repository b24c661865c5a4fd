"""Horizontal bars for shares, and intervals on one line."""

from __future__ import annotations

from collections.abc import Sequence

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear
from ml.reports.markup import Html, tag
from ml.reports.numbers import number, shorten

ROW, NAME, BAR, VALUE = 24.0, 210.0, 320.0, 60.0
# Letters that fit before a bar.
LETTERS = 29
INTERVAL_WIDTH, INTERVAL_HEIGHT = 200.0, 26.0


def bars(
    title: str,
    shares: Sequence[tuple[str, float]],
    caption: object = None,
    weak: bool = False,
) -> Html:
    """A bar a name; shares are parts of 1, the longest bar is the largest of them.

    `weak` pales them: they say little, and the caption says why.
    """
    most = max((abs(share) for _, share in shares), default=0.0) or 1.0
    kind = "bar weak" if weak else "bar"
    marks: list[object] = []
    for place, (name, share) in enumerate(shares):
        y = place * ROW
        length = max(1.0, abs(share) / most * BAR)
        words = frame.title(f"{name}: {share:.1%}")
        marks += [
            tag("text", words, shorten(name, LETTERS), x=NAME - 8, y=y + 16, text_anchor="end"),
            tag("rect", words, x=NAME, y=y + 4, width=length, height=ROW - 8, class_=kind),
            tag("text", f"{share:.1%}", x=NAME + length + 8, y=y + 16),
        ]
    return frame.figure(title, NAME + BAR + VALUE, len(shares) * ROW, marks, caption)


# (class, value, low, high): a dot and the line of its interval.
Interval = tuple[str, float, float, float]


def intervals(drawn: Sequence[Interval], low: float, high: float) -> Html:
    """Intervals on one scale, one under the other, to stand in the cell of a table."""
    x = Linear(low, high, 4.0, INTERVAL_WIDTH - 4)
    gap = INTERVAL_HEIGHT / (len(drawn) + 1)
    marks: list[object] = []
    for place, (kind, value, lowest, highest) in enumerate(drawn, 1):
        y = place * gap
        words = frame.title(f"{kind}: {number(value)} ({number(lowest)} to {number(highest)})")
        marks += [
            tag("line", words, x1=x(lowest), x2=x(highest), y1=y, y2=y, class_=f"span {kind}"),
            tag("circle", words, cx=x(value), cy=y, r=3.5, class_=f"dot {kind}"),
        ]
    return tag(
        "svg",
        *marks,
        viewBox=f"0 0 {INTERVAL_WIDTH:.0f} {INTERVAL_HEIGHT:.0f}",
        width=INTERVAL_WIDTH,
        height=INTERVAL_HEIGHT,
        class_="inline",
        role="img",
        aria_label="intervals",
    )
