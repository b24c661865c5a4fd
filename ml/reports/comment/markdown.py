"""Markdown for GitHub's comments that stays what it was meant to be, whatever names the data bring.

A name of a metric or a label is somebody's text: it may hold pipes, tags, links or `@somebody`.
Backslashes and entities do not stop a mention or `#1`, which GitHub finds after the Markdown was
rendered; a zero-width space does (github/cmark-gfm issues 181 and 389, github/markup issue 1168).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Letters of one text: a hostile label must not fill the comment.
LONGEST = 160
_BREAK = "\u200b"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
# What GitHub turns into links, people and pictures after rendering.
_FOUND_LATER = (
    (re.compile(r"@"), "@" + _BREAK),
    (re.compile(r"(\\?#)(?=\d)"), r"\g<1>" + _BREAK),
    (re.compile(r"\b(gh-)(?=\d)", re.I), r"\g<1>" + _BREAK),
    (re.compile(r":(?=//)"), ":" + _BREAK),
    (re.compile(r"\b(www)(?=\.)", re.I), r"\g<1>" + _BREAK),
    (re.compile(r":(?=[\w+\\-]+:)"), ":" + _BREAK),
)
_NAME = re.compile(r"[\w./:-]+")


def text(value: object, longest: int = LONGEST) -> str:
    """The value as words on one line: no markup, no cell's end, no link, nobody notified."""
    said = shorten(plain(value), longest)
    said = _SPECIAL.sub(r"\\\1", said)
    said = said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for pattern, broken in _FOUND_LATER:
        said = pattern.sub(broken, said)
    # At the start of a line these make a list, a quote or a heading of it.
    return re.sub(r"^(\d*)([-.=])", r"\1\\\2", said)


def plain(value: object) -> str:
    """The value on one line, control and direction characters spelt out."""
    words = " ".join(str(value).split())
    return "".join(one if one.isprintable() else f"U+{ord(one):04X}" for one in words)


def shorten(said: str, longest: int) -> str:
    """At most so many letters; that some are left out is seen."""
    return said if len(said) <= longest else said[: longest - 1] + "…"


def code(value: object) -> str:
    """A name in code letters; one that holds anything odd is text like any other."""
    said = plain(value)
    return f"`{said}`" if _NAME.fullmatch(said) else text(said)


def link(words: str, url: str) -> str:
    """A link of words that are Markdown already, or the words alone when it is no web address."""
    if not re.fullmatch(r"https?://[\w./:@%?=&#~+-]+", url):
        return words
    return f"[{words}](<{url}>)"


def image(words: str, url: str) -> str:
    """A picture; "" when the address is none of the web's."""
    linked = link(text(words), url)
    return f"!{linked}" if linked.endswith(")") and linked.startswith("[") else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table of Markdown cells; the last `numbers` columns are aligned to the right."""
    left = len(head) - numbers
    rule = ["---"] * left + ["--:"] * numbers
    lines = [head, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def details(summary: str, body: str) -> str:
    """What is folded away; `summary` is Markdown already and may not span lines."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def block(lines: Iterable[str]) -> str:
    """Lines in letters of one width, nothing in them rendered."""
    safe = (line.replace("`", "'").replace("@", "@" + _BREAK) for line in lines)
    return "\n".join(["```text", *safe, "```"])
