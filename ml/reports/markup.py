"""Build HTML elements and escape text.

Text is escaped unless it is a `Markup`, which only this package and its templates create.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Characters that an HTML parser rejects, or that change the displayed order of the text.
_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)


def readable(value: object) -> object:
    """Return the value as text without terminal colours; replace control characters by U+FFFD.

    Markup is returned unchanged, and None becomes "".
    """
    if value is None or isinstance(value, Markup):
        return value or ""
    text = _COLOURS.sub("", str(value)).encode("utf-8", "replace").decode()
    return _UNREADABLE.sub("\ufffd", text)


def tag(element: str, /, *children: object, **attributes: object) -> Markup:
    """Return an HTML element with children and attributes; None values are omitted.

    `class_` becomes `class`, other underscores become hyphens. Floats are rounded to one decimal,
    since they are coordinates in pixels.
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
    # Escape Markup, too: in an attribute, it is plain text.
    return escape(readable(str.__str__(value) if isinstance(value, str) else str(value)))


def square(colour: str) -> Markup:
    """Return a legend's square; `colour` is the name of a variable in page.css."""
    drawn = tag("rect", width=12, height=12, rx=2, fill=f"var(--{colour})")
    return tag("svg", drawn, width=12, height=12, class_="key")


def tooltip(words: str | None) -> Markup | None:
    """Return the `title` element that is an SVG element's tooltip; None without words."""
    return tag("title", words) if words else None
