"""Markdown for GitHub's comments, in which text from the data stays text.

A metric's name or a label may contain pipes, tags, links or `@somebody`. Backslashes and entities
do not stop a mention or `#1`, which GitHub finds after it has rendered the Markdown; an empty
comment of HTML does (github/cmark-gfm issues 181 and 389, github/markup issue 1168). A zero-width
space would too, and whoever copies the name copies it along. In code GitHub looks for neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ml.core.terminal import printable

# Letters of one text: a hostile label must not fill the comment.
MAX_LETTERS = 160
_APART = "<!-- -->"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
# What GitHub turns into links, people and pictures after rendering.
_LATE = (
    (re.compile(r"@"), "@" + _APART),
    (re.compile(r"(\\?#)(?=\d)"), r"\g<1>" + _APART),
    (re.compile(r"\b(gh-)(?=\d)", re.I), r"\g<1>" + _APART),
    (re.compile(r":(?=//)"), ":" + _APART),
    (re.compile(r"\b(www)(?=\.)", re.I), r"\g<1>" + _APART),
    (re.compile(r":(?=[\w+\\-]+:)"), ":" + _APART),
)
_NAME = re.compile(r"[\w./:-]+")


def text(value: object, letters: int = MAX_LETTERS) -> str:
    """Return the value as one line of plain words: no markup, cell separator, link or mention."""
    words = _SPECIAL.sub(r"\\\1", truncate(plain(value), letters))
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for pattern, broken in _LATE:
        words = pattern.sub(broken, words)
    # At the start of a line these begin a list, a quote or a heading.
    return re.sub(r"^(\d*)([-.=])", r"\1\\\2", words)


def plain(value: object) -> str:
    """Return the value on one line; control and direction characters are spelt out."""
    return printable(" ".join(str(value).split()))


def truncate(words: str, letters: int) -> str:
    """At most that many letters, with an ellipsis when some are cut."""
    return words if len(words) <= letters else words[: letters - 1] + "…"


def code(value: object) -> str:
    """Return a name as code; a value with anything unusual in it as text."""
    words = plain(value)
    return f"`{words}`" if _NAME.fullmatch(words) else text(words)


def link(words: str, url: str) -> str:
    """A link; `words` are Markdown already, and come back alone when `url` is not a web address."""
    if not re.fullmatch(r"https?://[\w./:@%?=&#~+-]+", url):
        return words
    return f"[{words}](<{url}>)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table of cells that are Markdown already; the last `numbers` columns are right-aligned."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def details(summary: str, body: str) -> str:
    """Return a folded part; `summary` is one line of Markdown."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def block(lines: Iterable[str]) -> str:
    """Lines of monospaced text in which nothing is rendered."""
    safe = (printable(line).replace("`", "'") for line in lines)
    return "\n".join(["```text", *safe, "```"])
