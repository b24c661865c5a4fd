"""HTML and SVG that cannot be injected into: text is escaped unless this module made it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What an HTML parser rejects, what reorders the text around it, and what colours a terminal.
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNREADABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
# Elements without an end.
_VOID = frozenset({"br", "meta"})
# Digits after the point of a coordinate: a tenth of a pixel is finer than anybody sees.
_COORDINATE_DIGITS = 1


class Html(str):
    """Markup made by this module (or a constant of this package): it is not escaped again."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as escaped text; characters that a page cannot hold become U+FFFD."""
    if isinstance(value, Html):
        return value
    plain = _COLOURS.sub("", str(value)).encode("utf-8", "replace").decode()
    return Html(html.escape(_UNREADABLE.sub("\ufffd", plain)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """The parts one after the other, each escaped unless it is markup."""
    return Html(between.join(text(part) for part in parts))


def tag(element: str, /, *children: object, **attributes: object) -> Html:
    """An element. `class_` is `class`, other underscores are hyphens; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Html(f"<{element}{written}>")
    inner = join(child for child in children if child is not None)
    return Html(f"<{element}{written}>{inner}</{element}>")


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.{_COORDINATE_DIGITS}f}".removesuffix(".0")
    # Markup in an attribute would be text there: it is escaped like any other.
    return text(str.__str__(value) if isinstance(value, Html) else value)


def table(
    head: Iterable[object],
    rows: Iterable[Iterable[object]],
    class_: str | None = None,
    classes: Iterable[str | None] = (),
) -> Html:
    """A table that scrolls sideways on a narrow screen; a cell may be a `td` element already.

    `classes` are the rows', in their order.
    """
    styles = iter(classes)
    body = (tag("tr", *(_cell(cell) for cell in row), class_=next(styles, None)) for row in rows)
    header = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    return tag("div", tag("table", header, tag("tbody", *body), class_=class_), class_="scroll")


def _cell(cell: object) -> Html:
    if isinstance(cell, Html) and cell.startswith(("<td", "<th")):
        return cell
    return tag("td", cell)
