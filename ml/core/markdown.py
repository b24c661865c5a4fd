"""Markdown for GitHub comments, in which untrusted text stays plain text.

A metric's name or a label may contain pipes, tags, links or `@somebody`. Backslashes and entities
do not stop a mention or `#1`, which GitHub finds after it has rendered the Markdown. An empty HTML
comment does (github/cmark-gfm issues 181 and 389, github/markup issue 1168). A zero-width space
would too, but people would copy it with the name. In code spans GitHub looks for neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ml.core.terminal import printable

# Maximum characters of one text: a hostile label must not fill the comment.
MAX_LETTERS = 160
_APART = "<!-- -->"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$])")
# Patterns that GitHub turns into links, mentions and emoji after rendering.
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
    """Return the value as one line of escaped Markdown: no markup, cell border, link or mention."""
    words = _SPECIAL.sub(r"\\\1", truncate(plain(value), letters))
    words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for pattern, broken in _LATE:
        words = pattern.sub(broken, words)
    # At the start of a line these begin a list, a quote or a heading.
    return re.sub(r"^(\d*)([-.=])", r"\1\\\2", words)


def plain(value: object) -> str:
    """Return the value on one line, with control and invisible characters escaped."""
    return printable(" ".join(str(value).split()))


def truncate(words: str, letters: int) -> str:
    """Return at most `letters` characters of the text, ending with an ellipsis if it is cut."""
    return words if len(words) <= letters else words[: letters - 1] + "…"


def code(value: object) -> str:
    """Return a name as a code span; a value with other characters as escaped text."""
    words = plain(value)
    return f"`{words}`" if _NAME.fullmatch(words) else text(words)


def link(words: str, url: str) -> str:
    """Return a link with the Markdown text `words`; only `words` if `url` is no web address."""
    if not re.fullmatch(r"https?://[\w./:@%?=&#~+-]+", url):
        return words
    return f"[{words}](<{url}>)"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table of Markdown cells; the last `numbers` columns are right-aligned."""
    rule = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def details(summary: str, body: str) -> str:
    """Return a collapsed `<details>` section; `summary` is one line of Markdown."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def block(lines: Iterable[str]) -> str:
    """Return the lines as a code block, in which GitHub renders nothing."""
    safe = (printable(line).replace("`", "'") for line in lines)
    return "\n".join(["```text", *safe, "```"])
