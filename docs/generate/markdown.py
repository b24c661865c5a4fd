"""Write MyST Markdown: tables, code, and escaped texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`\n]+`)")
# Characters that begin markup in MyST or, like `$`, `{` and `|`, in its extensions.
_SPECIAL = re.compile(r"([\\*_<>\[\]{}$|#~^`])")


def escape(text: str) -> str:
    """Return the text on one line, with markup escaped except for `code`."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if _CODE.fullmatch(part) else _SPECIAL.sub(r"\\\1", part) for part in parts)


def code(text: object) -> str:
    """Return the text as inline code; "" for an empty text."""
    shown = " ".join(str(text).split())
    fence = "``" if "`" in shown else "`"
    return f"{fence}{shown}{fence}" if shown else ""


def paragraphs(text: str) -> str:
    """Return a docstring or comment, escaped, with each paragraph on one line."""
    return "\n\n".join(escape(part) for part in re.split(r"\n\s*\n", text.strip()))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown, and columns that are empty in all rows are dropped."""
    cells = [[*row] for row in rows]
    kept = [number for number in range(len(head)) if any(row[number] for row in cells)]
    lines = [[line[number] for number in kept] for line in (head, ["---"] * len(head), *cells)]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("\n", " ")


def anchor(kind: str, name: str) -> str:
    """Return the anchor of links such as `[](#error-unknown-field)`, as MyST."""
    return f"({kind}-{name})="


def sentence(text: str) -> str:
    """Return a comment with a capital first letter and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
