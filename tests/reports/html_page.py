"""A page as a browser parses it, and what it would fetch."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img", "wbr"}
# Stands for a place where a word may be broken.
_JOINED = "\0"
# What makes a browser fetch something, in any element.
FETCHING = {
    "src",
    "srcset",
    "href",
    "xlink:href",
    "poster",
    "data",
    "action",
    "formaction",
    "background",
}


class Page(HTMLParser):
    """The elements, texts and attributes of a document; `problems` lists what is not balanced."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self._texts: list[str] = []
        self._titles: list[str] = []
        self.feed(html)
        self.close()
        self.problems += [f"<{name}> is not closed" for name in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.problems.append(f"<{tag}> has an attribute twice: {names}")
        self.elements.append((tag, dict(attrs)))
        if tag == "wbr":
            self._texts.append(_JOINED)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in {"style", "script"}:
            self._texts.append(data)
            if self._open and self._open[-1] in {"h2", "h3"}:
                self._titles.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        """All that a person could read."""
        return " ".join(" ".join(self._texts).split()).replace(f" {_JOINED} ", "")

    def sections(self, home: Path) -> list[str]:
        """The text of each section, without the paths and the time of this page."""
        titles = "|".join(re.escape(title) for title in self._titles)
        text = re.sub(r" Written \S+ \S+ UTC by.*", "", self.text.replace(f"{home}/", ""))
        return re.split(rf" (?=(?:{titles})\b)", text)

    def count(self, tag: str, class_: str) -> int:
        """How many elements of that name have the class."""
        return sum(
            name == tag and class_ in (given.get("class") or "").split()
            for name, given in self.elements
        )

    def trials(self, colour: str) -> list[str | None]:
        """The trial of each mark and line in that colour, "" for one without a trial."""
        paint = f"var(--{colour})"
        return [
            given.get("data-t", "")
            for name, given in self.elements
            if name in ("path", "circle") and paint in (given.get("fill"), given.get("stroke"))
        ]

    def fetched(self) -> list[str]:
        """Everything that a browser would load because of an attribute."""
        return [
            f"<{tag} {name}={value}>"
            for tag, given in self.elements
            for name, value in given.items()
            if name in FETCHING and not (value or "").startswith("#")
        ]
