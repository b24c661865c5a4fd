"""SVG elements, and what every chart has: a figure with a caption, axes, a legend.

Text is escaped unless this package or a template made it, which `Markup` marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape

from ml.reports.charts.scales import Scale

# A chart wider than this fills the page; both kinds shrink a little before they scroll.
WIDE = 800
# Classes of marks, which page.css colours, and their meaning.
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
    "beaten": "dominated",
    "front": "on the Pareto front",
    "metric": "best by the metric",
    "score": "best by the score",
}
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# What an HTML parser rejects, and what reorders the text around it.
_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


def readable(value: object) -> object:
    """The value as text that a page can hold: no terminal colours, U+FFFD for what is left.

    Markup and missing values (None becomes "") pass through.
    """
    if value is None or isinstance(value, Markup):
        return value or ""
    text = _COLOURS.sub("", str(value)).encode("utf-8", "replace").decode()
    return _UNREADABLE.sub("\ufffd", text)


def tag(element: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is `class`, other underscores are hyphens; None omits an attribute.

    Floats are coordinates: a tenth of a pixel is finer than anybody sees.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(readable(child)) for child in children)
    return Markup(f"<{element}{written}>{inner}</{element}>")


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    # Markup is text in an attribute, and escaped like any other.
    return escape(readable(str.__str__(value) if isinstance(value, str) else str(value)))


def figure(
    title: str,
    width: float,
    height: float,
    marks: Iterable[object],
    caption: str = "",
    legend: Iterable[str] = (),
    meanings: Mapping[str, str] = LEGENDS,
) -> Markup:
    """The chart with its title and legend above and its caption below.

    `legend` are the classes of the marks; the legend has them in the order of `meanings`.
    """
    classes = set(legend)
    keys = [
        tag("span", tag("i", class_=f"key {kind}"), meaning, class_="item")
        for kind, meaning in meanings.items()
        if kind in classes
    ]
    drawing = tag(
        "svg",
        *marks,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        class_="wide" if width > WIDE else "narrow",
        role="img",
        aria_label=title,
    )
    return tag(
        "figure",
        tag("h3", title),
        tag("div", *keys, class_="legend") if keys else None,
        tag("div", drawing, class_="scroll"),
        tag("figcaption", caption) if caption else None,
    )


def text(words: str, x: float, y: float, class_: str | None = None, anchor: str = "") -> Markup:
    """A text that starts at (x, y), or ends or is centred there (`anchor`: end, middle)."""
    return tag("text", words, x=x, y=y, text_anchor=anchor or None, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, title: str = "") -> Markup:
    """A line; `title` is its tooltip."""
    return tag("line", tooltip(title), x1=x1, x2=x2, y1=y1, y2=y2, class_=class_)


def polyline(
    pairs: Iterable[tuple[float, float]], class_: str, title: str = "", trial: int | None = None
) -> Markup:
    """A line through points; `title` is its tooltip, `trial` the number of its trial."""
    return tag("polyline", tooltip(title), points=points(pairs), class_=class_, data_t=trial)


def tooltip(words: str) -> Markup | None:
    """What a mark says when the pointer rests on it."""
    return tag("title", words) if words else None


def points(pairs: Iterable[tuple[float, float]]) -> str:
    """The `points` of a polyline; a tenth of a pixel is kept."""
    return " ".join(f"{x:.1f},{y:.1f}".replace(".0", "") for x, y in pairs)


def left_axis(scale: Scale, x: float, right: float, label: str, top: float) -> Markup:
    """Ticks and grid lines of a vertical scale at `x`; `label` stands above it."""
    parts = [text(label, x, top - 12, "label")]
    for y, tick in scale.ticks(5):
        parts += [line(x, y, right, y, "grid"), text(tick, x - 6, y + 3.5, anchor="end")]
    return Markup("").join(parts)


def bottom_axis(scale: Scale, y: float, label: str, right: float) -> Markup:
    """Ticks of a horizontal scale along `y`; `label` stands under its end."""
    parts = [text(label, right, y + 34, "label", "end")]
    for x, tick in scale.ticks(8):
        parts += [line(x, y, x, y + 4, "axis"), text(tick, x, y + 17, anchor="middle")]
    return Markup("").join(parts)


def evenly(items: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, spread evenly, first and last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[0]]
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
