"""How a field of the settings is declared: its words for people, its bounds, and no more."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Form:
    """The form of a text: a pattern that it matches in full, and the same in words."""

    pattern: str
    words: str

    def fits(self, text: str) -> bool:
        """Whether a text has the form."""
        return re.fullmatch(self.pattern, text, re.ASCII) is not None


@dataclass(frozen=True)
class Rule:
    """What a value must be besides of its type.

    Bounds are inclusive and count the items of a list; `key` is the field's name in the stack file
    where that is another; an `internal` field does not stand in the file.
    """

    says: str
    form: Form | None = None
    low: int | None = None
    high: int | None = None
    key: str = ""
    internal: bool = False


def field(
    says: str,
    default: Any = dataclasses.MISSING,
    *,
    form: Form | None = None,
    low: int | None = None,
    high: int | None = None,
    key: str = "",
    internal: bool = False,
) -> Any:
    """A dataclass field with its rule; without a default the stack file must have it."""
    metadata = {"rule": Rule(says, form, low, high, key, internal)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def rule(field_: dataclasses.Field[Any]) -> Rule:
    """The rule that a field was declared with."""
    found = field_.metadata["rule"]
    assert isinstance(found, Rule)
    return found


def required(field_: dataclasses.Field[Any]) -> bool:
    """Whether the stack file must state the field."""
    return field_.default is dataclasses.MISSING and field_.default_factory is dataclasses.MISSING
