"""What every chart has: a figure with a caption, axes, a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ml.reports.charts.scales import Scale
from ml.reports.markup import Html, join, tag

# A chart wider than this fills the page; either kind shrinks a little before it scrolls.
WIDE = 800
# Kinds of marks, by the class that page.css colours, and what they stand for.
LEGENDS = {
    "best": "best trial",
    "line": "best so far",
    "done": "completed",
    "q5": "best fifth",
    "q4": "second fifth",
    "q3": "middle fifth",
    "q2": "fourth fifth",
    "q1": "worst fifth",
    "stopped": "stopped early",
    "failed": "failed or not ranked",
    "beaten": "beaten by another",
    "front": "on the Pareto front",
    "metric": "first by the metric",
    "score": "first by the score",
}


def figure(
    title: str,
    width: float,
    height: float,
    marks: Iterable[object],
    caption: object = None,
    legend: Sequence[str] = (),
) -> Html:
    """The chart with its title above and what to know below; scrolls where it does not fit."""
    drawn = tag(
        "svg",
        *marks,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="wide" if width > WIDE else "narrow",
        role="img",
        aria_label=title,
    )
    keys = [
        tag("span", tag("i", "", class_=f"key {kind}"), LEGENDS[kind], class_="item")
        for kind in legend
    ]
    return tag(
        "figure",
        tag("h3", title),
        tag("div", *keys, class_="legend") if keys else None,
        tag("div", drawn, class_="scroll"),
        tag("figcaption", caption) if caption else None,
    )


def left_axis(scale: Scale, x: float, right: float, label: str, top: float) -> Html:
    """Ticks and grid lines of a vertical scale at `x`; `label` stands above it."""
    parts = [tag("text", label, x=x, y=top - 12, class_="label")]
    for y, said in scale.ticks(5):
        parts.append(tag("line", x1=x, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", said, x=x - 6, y=y + 3.5, text_anchor="end"))
    return join(parts)


def bottom_axis(scale: Scale, y: float, label: str, right: float) -> Html:
    """Ticks of a horizontal scale along `y`; `label` stands under its end."""
    parts = [tag("text", label, x=right, y=y + 34, text_anchor="end", class_="label")]
    for x, said in scale.ticks(8):
        parts.append(tag("line", x1=x, x2=x, y1=y, y2=y + 4, class_="axis"))
        parts.append(tag("text", said, x=x, y=y + 17, text_anchor="middle"))
    return join(parts)


def points(pairs: Iterable[tuple[float, float]]) -> str:
    """The `points` of a polyline; a tenth of a pixel is kept."""
    return " ".join(f"{x:.1f},{y:.1f}".replace(".0", "") for x, y in pairs)


def title(words: str) -> Html:
    """What a mark says when the pointer rests on it."""
    return tag("title", words)


def present(kinds: Iterable[str]) -> list[str]:
    """The kinds of marks that a chart has, in the order of the legend."""
    found = set(kinds)
    return [kind for kind in LEGENDS if kind in found]


def evenly(things: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, spread evenly, first and last among them."""
    if len(things) <= most:
        return list(things)
    if most == 1:
        return [things[0]]
    return [things[round(at * (len(things) - 1) / (most - 1))] for at in range(most)]
