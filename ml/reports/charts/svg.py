"""Render Altair charts as inline SVG with a common theme, a title, a legend and a caption.

The SVG of vl-convert is rebuilt from allowed elements and attributes, so that no styles, references
or scripts reach the page. Colours are variables of page.css, which also has a dark mode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert
from markupsafe import Markup

from ml.reports.markup import readable, square, tag, tooltip

# A wider chart gets the CSS class `wide`, which fills the page.
WIDE = 800
# Kind of mark → (colour, meaning), in the order of a legend.
LEGENDS = {
    "best": ("best", "best trial"),
    "line": ("accent", "best so far"),
    "done": ("q4", "completed"),
    "q5": ("q5", "best fifth"),
    "q4": ("q4", "second fifth"),
    "q3": ("q3", "middle fifth"),
    "q2": ("q2", "fourth fifth"),
    "q1": ("q1", "worst fifth"),
    "stopped": ("stopped", "stopped early"),
    "failed": ("bad", "failed or not ranked"),
    "beaten": ("q2", "dominated"),
    "front": ("q4", "on the Pareto front"),
    "metric": ("stopped", "best by the metric"),
    "score": ("best", "best by the score"),
}
# The allowed SVG elements and attributes. `style`, `class`, `id` and `href` are not among them, so
# that a drawing refers to nothing and only the page sets the fonts.
_ELEMENTS = frozenset({"g", "line", "path", "rect", "text", "tspan"})
_ATTRIBUTES = frozenset(
    {
        *("d", "dx", "dy", "height", "transform", "width", "x", "x1", "x2", "y", "y1", "y2"),
        *("fill", "fill-opacity", "font-size", "font-weight", "opacity", "text-anchor"),
        *("stroke", "stroke-dasharray", "stroke-opacity", "stroke-width"),
    }
)
_DEFAULTS = {("transform", "translate(0,0)"), ("opacity", "1"), ("stroke-width", "1")}
# The path that Vega writes for a circle; a `circle` is shorter, and a page has thousands.
_CIRCLE = re.compile(r"M([\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0")
_DECIMALS = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_TRIAL = re.compile(r"trial (\d+):")
_QUIET, _INK, _LINE = (f"var(--{name})" for name in ("quiet", "ink", "line"))
_THEME: dict[str, Any] = {
    "background": None,
    "view": {"stroke": None},
    # Width and height include the axes and titles.
    "autosize": {"type": "fit", "contains": "padding"},
    "padding": {"left": 12, "right": 12, "top": 5, "bottom": 5},
    "mark": {"aria": False},
    "point": {"filled": True, "opacity": 1},
    "axis": {
        "aria": False,
        "domainColor": _QUIET,
        "tickColor": _QUIET,
        "gridColor": _LINE,
        "labelColor": _QUIET,
        "titleColor": _INK,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 600,
    },
    "axisX": {"grid": False, "titleAnchor": "end"},
    # Put the title of a vertical axis above it, horizontally.
    "axisY": {
        "domain": False,
        "ticks": False,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleAngle": 0,
        "titleY": -14,
    },
    "text": {"color": _QUIET, "fontSize": 11},
    "title": {"aria": False},
}


def figure(
    title: str,
    chart: alt.Chart | alt.LayerChart,
    width: int,
    height: int,
    caption: str = "",
    legend: Iterable[str] | Mapping[str, tuple[str, str]] = (),
) -> Markup:
    """Return an HTML figure: title, legend, the chart as SVG, caption.

    `legend` has the kinds of marks from LEGENDS, or maps other kinds to (colour, meaning). Width
    and height are in pixels.
    """
    kinds = set(legend)
    meanings = legend if isinstance(legend, Mapping) else LEGENDS
    keys = [
        tag("span", square(colour), meaning, class_="item")
        for kind, (colour, meaning) in meanings.items()
        if kind in kinds
    ]
    drawn = drawing(chart.properties(width=width, height=height), title)
    return tag(
        "figure",
        tag("h3", title),
        tag("div", *keys, class_="legend") if keys else None,
        tag("div", drawn, class_="scroll"),
        tag("figcaption", caption) if caption else None,
    )


def drawing(chart: alt.Chart | alt.LayerChart, title: str) -> Markup:
    """Return the chart as an SVG element.

    A mark's description becomes its tooltip; if it begins with `trial 3:`, page.js links the mark
    with that trial's table row.
    """
    # Skip Altair's validation, which takes longer than the drawing: all charts are made here.
    spec = _readable(chart.to_dict(validate=False))
    drawn = vl_convert.vegalite_to_svg(spec, config=_THEME, allowed_base_urls=[])
    root = ElementTree.fromstring(drawn)
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    return tag(
        "svg",
        *map(_allowed, root),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        class_="wide" if width > WIDE else "narrow",
    )


def _readable(spec: Any) -> Any:
    """Return the Vega-Lite specification without characters that are invalid XML.

    They would crash vl-convert.
    """
    if isinstance(spec, dict):
        return {name: _readable(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [*map(_readable, spec)]
    return readable(spec) if isinstance(spec, str) else spec


def _allowed(node: ElementTree.Element) -> Markup:
    """Return an SVG element as HTML with only allowed attributes and children; unwrap bare groups.

    Returns "" if the element is not allowed.
    """
    kind, attrib = node.tag.rpartition("}")[2], node.attrib
    if kind not in _ELEMENTS or attrib.get("class") in ("background", "foreground"):
        return Markup()
    attributes = {
        name: _DECIMALS.sub(_rounded, value)
        for name, value in attrib.items()
        if name in _ATTRIBUTES and (name, value) not in _DEFAULTS
    }
    if "stroke" not in attributes:
        attributes.pop("stroke-width", None)
    if circle := _CIRCLE.fullmatch(attributes.get("d", "")):
        kind, attributes["r"] = "circle", circle[1]
        del attributes["d"]
    words = attrib.get("aria-label")
    if words and (trial := _TRIAL.match(words)):
        attributes["data-t"] = trial[1]
    inner = [tooltip(words), node.text, *map(_allowed, node)]
    if kind == "g" and not attributes and not words:
        return Markup("").join(filter(None, inner))
    if kind == "g" and not any(inner):
        return Markup()
    return tag(kind, *inner, **attributes)


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def rows(values: Iterable[Mapping[str, object]]) -> alt.Chart:
    """Return an Altair chart with the rows as its data.

    Field names must be constants: names from a run could be parsed as expressions.
    """
    # Pass the data as a JSON string: Altair would copy each value of thousands of rows.
    text = json.dumps(_readable([*values]), allow_nan=False)
    return alt.Chart(alt.Data(values=text, format=alt.JsonDataFormat(type="json")))


def pointed(chart: alt.Chart) -> alt.Chart:
    """Use the field `words` as the tooltip of the chart's marks; return the chart."""
    chart = chart.encode(description="words:N")
    chart.mark["aria"] = True
    return chart


def colour(kind: str) -> str:
    """Return the CSS colour of a kind of mark in LEGENDS."""
    return f"var(--{LEGENDS[kind][0]})"


def evenly(items: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the items, spread evenly, including the first and the last."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[0]]
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]
