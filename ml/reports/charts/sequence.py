"""A confidence sequence over time: the estimate, the interval at every look, zero, what matters."""

from __future__ import annotations

from collections.abc import Sequence

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear, Log, bounds, is_logarithmic
from ml.reports.markup import Html, tag
from ml.reports.numbers import number

WIDTH, HEIGHT = 1090.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 1075.0, 34.0, 290.0


def interval_over_time(
    title: str, looks: Sequence[tuple[int, float, float, float]], effect: float, unit: str
) -> Html | None:
    """`looks` are (outcomes, difference, low, high); None without two of them.

    The first looks are so wide that the later ones could not be read: they go beyond the edge.
    """
    if len(looks) < 2:
        return None
    ends = [value for _, difference, low, high in looks for value in (difference, low, high)]
    low, high = bounds([*ends[len(ends) // 2 :], -effect, effect])
    first, last = looks[0][0], looks[-1][0]
    wide = is_logarithmic([float(first), (first * last) ** 0.5, float(last)])
    x = Log(first, last, LEFT, RIGHT) if wide else Linear(first, last, LEFT, RIGHT, whole=True)
    y = Linear(low, high, BOTTOM, TOP)
    above = [(x(n), y(top)) for n, _, _, top in looks]
    below = [(x(n), y(bottom)) for n, _, bottom, _ in looks]
    n, difference, lowest, highest = looks[-1]
    said = f"{number(difference)} ({number(lowest)} to {number(highest)}) after {n:,}"
    marks = [
        frame.left_axis(y, LEFT, RIGHT, f"B less A, {unit}", TOP),
        frame.bottom_axis(x, BOTTOM, "outcomes", RIGHT),
        tag(
            "polygon", frame.title(said), points=frame.points([*above, *below[::-1]]), class_="band"
        ),
        tag("line", x1=LEFT, x2=RIGHT, y1=y(0.0), y2=y(0.0), class_="zero"),
        *(
            tag("line", x1=LEFT, x2=RIGHT, y1=y(at), y2=y(at), class_="effect")
            for at in (effect, -effect)
        ),
        tag("polyline", points=frame.points((x(n), y(d)) for n, d, _, _ in looks), class_="line"),
    ]
    caption = (
        "The band holds the true difference at every look together. Dashed: the smallest "
        "difference that would matter."
    )
    return frame.figure(title, WIDTH, HEIGHT, marks, caption)
