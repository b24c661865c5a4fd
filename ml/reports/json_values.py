"""Read an untrusted JSON document.

A job that runs a pull request's own code wrote it: any part may be absent, of another type or huge.
Reading never fails; missing values are empty, and text is escaped for Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ml.core import markdown
from ml.core.markdown import MAX_LETTERS

# The most items of a list or a mapping that are read.
MAX_ITEMS = 500


@dataclass(frozen=True)
class Value:
    """A value of the document; `Value(None)` if it is absent."""

    json: object = None

    def __getitem__(self, key: str) -> Value:
        return Value(self.json.get(key) if isinstance(self.json, Mapping) else None)

    def __bool__(self) -> bool:
        return bool(self.json)

    def __iter__(self) -> Iterator[Value]:
        """Iterate over the items of a list; of nothing for another type."""
        items = self.json if isinstance(self.json, list | tuple) else []
        return (Value(item) for item in items[:MAX_ITEMS])

    def fields(self) -> Iterator[tuple[str, Value]]:
        """Return the keys and values of a mapping."""
        items = [*self.json.items()] if isinstance(self.json, Mapping) else []
        return ((str(key), Value(value)) for key, value in items[:MAX_ITEMS])

    @property
    def string(self) -> str:
        """Return a text, unescaped; "" for another type."""
        return self.json if isinstance(self.json, str) else ""

    @property
    def number(self) -> float | None:
        """Return a number, also NaN and infinities (text in JSON); None for another type."""
        if isinstance(self.json, str) and self.json in {"nan", "inf", "-inf"}:
            return float(self.json)
        if isinstance(self.json, bool) or not isinstance(self.json, int | float):
            return None
        try:
            return float(self.json)
        except OverflowError:
            return math.inf if self.json > 0 else -math.inf

    def text(self, letters: int = MAX_LETTERS) -> str:
        """Return the text as Markdown in which nothing is markup."""
        return markdown.text(self.string, letters)

    def code(self, letters: int = 80) -> str:
        """Return the first letters of a name as code; "missing" without one."""
        return markdown.code(self.string[:letters]) if self.string else "missing"
