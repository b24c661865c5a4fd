"""Waivers: a rule's no set aside for one resource of one environment, for a time, in git."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import yaml

from policies.infra import documents

FILE = Path(__file__).with_name("waivers.yml")
KEYS = ("rule", "environment", "resource", "reason", "owner", "expires")
# A waiver is renewed, and so looked at again, after this long.
LONGEST = timedelta(days=180)


@dataclass(frozen=True)
class Waiver:
    """Somebody's word for a rule until a day, that day included; `place` is its file and line."""

    rule: str
    environment: str
    resource: str
    reason: str
    owner: str
    expires: date
    place: str

    def void(self, today: date) -> str:
        """Why it does not hold, or ""."""
        if today > self.expires:
            return f"the waiver at {self.place} expired on {self.expires}"
        if self.expires - today > LONGEST:
            return f"the waiver at {self.place} is for more than {LONGEST.days} days"
        return ""

    def __str__(self) -> str:
        return f"waived until {self.expires} by {self.owner}: {self.reason} ({self.place})"


def load(rules: Iterable[str], file: Path = FILE) -> tuple[Waiver, ...]:
    """The waivers of a file, a list of mappings of `KEYS`; ValueError names a wrong one's line.

    `rules` are the names that a waiver may be for.
    """
    root = documents.composed(file)
    if root is None:
        return ()
    if not isinstance(root, yaml.SequenceNode):
        raise ValueError(f"{file.name}: a list of waivers")
    known = set(rules)
    found: dict[tuple[str, str, str], Waiver] = {}
    for node in root.value:
        one = _checked(node, known, f"{file.name}:{documents.line(node)}")
        first = found.setdefault((one.rule, one.environment, one.resource), one)
        if first is not one:
            raise ValueError(f"{one.place}: {first.place} waives the same; keep one of them")
    return tuple(found.values())


def applying(
    waivers: Sequence[Waiver], rule: str, environment: str, resource: str
) -> Waiver | None:
    """The waiver for a rule's no about a resource."""
    asked = (rule, environment, resource)
    return next(
        (one for one in waivers if (one.rule, one.environment, one.resource) == asked), None
    )


def _checked(node: yaml.Node, rules: set[str], place: str) -> Waiver:
    # The node is built by the loader whose scalars know dates.
    stated: Any = yaml.safe_load(yaml.serialize(node))
    if not isinstance(stated, dict) or set(stated) != set(KEYS):
        raise ValueError(f"{place}: a waiver has {', '.join(KEYS)}, no more and no less")
    for key in KEYS[:-1]:
        if not isinstance(stated[key], str) or not stated[key].strip():
            raise ValueError(f"{place}: `{key}`: in words")
    if stated["rule"] not in rules:
        raise ValueError(f"{place}: no rule `{stated['rule']}`")
    # A datetime is a date to Python; which zone's day it ends on would be a guess.
    if type(stated["expires"]) is not date:
        raise ValueError(f"{place}: `expires`: the last day on which it holds, as 2027-01-31")
    return Waiver(**stated, place=place)
