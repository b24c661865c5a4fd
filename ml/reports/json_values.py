"""Read an untrusted JSON document.

A job with a pull request's own code wrote it, so any part may be absent, huge or of another type.
Reading never raises; absent values are empty, and text is escaped for Markdown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ml.core import markdown
from ml.core.markdown import MAX_LETTERS

# Maximum items of a list or mapping that are read.
MAX_ITEMS = 500


@dataclass(frozen=True)
class Value:
    """A value of the document; absent values are `Value(None)`."""

    json: object = None

    def __getitem__(self, key: str) -> Value:
        return Value(self.json.get(key) if isinstance(self.json, Mapping) else None)

    def __bool__(self) -> bool:
        return bool(self.json)

    def __iter__(self) -> Iterator[Value]:
        """Yield the items of a list; yield none for another type."""
        items = self.json if isinstance(self.json, list | tuple) else []
        return (Value(item) for item in items[:MAX_ITEMS])

    def fields(self) -> Iterator[tuple[str, Value]]:
        """Yield the keys and values of a mapping; yield none for another type."""
        items = [*self.json.items()] if isinstance(self.json, Mapping) else []
        return ((str(key), Value(value)) for key, value in items[:MAX_ITEMS])

    @property
    def string(self) -> str:
        """Return a string, unescaped; "" for another type."""
        return self.json if isinstance(self.json, str) else ""

    @property
    def number(self) -> float | None:
        """Return a number; None for another type. NaN and infinities are strings in the JSON."""
        if isinstance(self.json, str) and self.json in {"nan", "inf", "-inf"}:
            return float(self.json)
        if isinstance(self.json, bool) or not isinstance(self.json, int | float):
            return None
        try:
            return float(self.json)
        except OverflowError:
            return math.inf if self.json > 0 else -math.inf

    def text(self, letters: int = MAX_LETTERS) -> str:
        """Return the string, escaped for Markdown and cut to `letters` characters."""
        return markdown.text(self.string, letters)

    def code(self, letters: int = 80) -> str:
        """Return the string as Markdown code, cut to `letters` characters; "missing" if empty."""
        return markdown.code(self.string[:letters]) if self.string else "missing"
