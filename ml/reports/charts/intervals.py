"""Bars for shares, intervals on one scale, and a confidence sequence over time."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.charts.scales import Linear, Log, bounds, is_logarithmic
from ml.reports.formatting import number, shorten

# (class, value, low, high): a dot and the line of its interval.
Interval = tuple[str, float, float, float]


def bars(
    title: str, shares: Sequence[tuple[str, float]], caption: str = "", weak: bool = False
) -> Markup:
    """One bar per name; shares are parts of 1, and the largest has the longest bar.

    `weak` pales them: they are unreliable, and the caption says why.
    """
    row, left, longest, letters = 24.0, 210.0, 320.0, 29
    most = max((abs(share) for _, share in shares), default=0.0) or 1.0
    marks: list[Markup] = []
    for place, (name, share) in enumerate(shares):
        y = place * row
        length = max(1.0, abs(share) / most * longest)
        words = svg.tooltip(f"{name}: {share:.1%}")
        colour = "bar weak" if weak else "bar"
        marks += [
            svg.tag("text", words, shorten(name, letters), x=left - 8, y=y + 16, text_anchor="end"),
            svg.tag("rect", words, x=left, y=y + 4, width=length, height=row - 8, class_=colour),
            svg.text(f"{share:.1%}", left + length + 8, y + 16),
        ]
    return svg.figure(title, left + longest + 60, len(shares) * row, marks, caption)


def intervals(rows: Sequence[Interval], low: float, high: float) -> Markup:
    """Intervals on one scale, one under the other, for the cell of a table."""
    width, height = 200.0, 26.0
    x = Linear(low, high, 4.0, width - 4)
    marks: list[Markup] = []
    for place, (kind, value, lowest, highest) in enumerate(rows, 1):
        y = place * height / (len(rows) + 1)
        words = f"{kind}: {number(value)} ({number(lowest)} to {number(highest)})"
        marks += [
            svg.line(x(lowest), y, x(highest), y, f"span {kind}", words),
            svg.tag("circle", svg.tooltip(words), cx=x(value), cy=y, r=3.5, class_=f"dot {kind}"),
        ]
    return svg.tag(
        "svg",
        *marks,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="inline",
        role="img",
        aria_label="intervals",
    )


def confidence_sequence(
    looks: Sequence[tuple[int, float, float, float]], effect: float, unit: str
) -> Markup | None:
    """The interval of a difference at every look; None without two looks.

    `looks` are (outcomes, difference, low, high). `effect` is the smallest difference that matters.
    """
    if len(looks) < 2:
        return None
    width, left, right, top, bottom = 1090.0, 70.0, 1075.0, 34.0, 290.0
    # The first looks are so wide that they would flatten the later ones: they are clipped.
    ends = [end for _, *values in looks for end in values]
    low, high = bounds([*ends[len(ends) // 2 :], -effect, effect])
    first, last = looks[0][0], looks[-1][0]
    wide = is_logarithmic([float(first), (first * last) ** 0.5, float(last)])
    x = Log(first, last, left, right) if wide else Linear(first, last, left, right, is_integer=True)
    y = Linear(low, high, bottom, top)
    upper = [(x(n), y(high)) for n, _, _, high in looks]
    lower = [(x(n), y(low)) for n, _, low, _ in looks]
    n, difference, lowest, highest = looks[-1]
    words = f"{number(difference)} ({number(lowest)} to {number(highest)}) after {n:,}"
    band = svg.points([*upper, *lower[::-1]])
    marks = [
        svg.left_axis(y, left, right, f"B minus A, {unit}", top),
        svg.bottom_axis(x, bottom, "outcomes", right),
        svg.tag("polygon", svg.tooltip(words), points=band, class_="band"),
        svg.line(left, y(0.0), right, y(0.0), "zero"),
        *(svg.line(left, y(at), right, y(at), "effect") for at in (effect, -effect)),
        svg.polyline([(x(n), y(difference)) for n, difference, _, _ in looks], "line"),
    ]
    caption = (
        "The band contains the true difference at all looks simultaneously. Dashed: the smallest "
        "difference that matters."
    )
    return svg.figure("Confidence interval over time", width, 340.0, marks, caption)
