"""Waivers: a gate's no set aside for a time, in the project's gates.yml, where a reviewer sees it.

A waiver sets aside what a gate measured and found too little; what a gate could not judge is never
waived, so missing evidence stays a no.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, timedelta

from policies.promotion.decision import Request
from policies.promotion.settings import SETTINGS

KEYS = ("gate", "item", "reason", "owner", "expires", "version")
# A waiver is renewed, and so looked at again, after this long.
LONGEST = timedelta(days=90)
# gate → what a waiver of it names, one at a time, as the gate lists it.
ITEMS: Mapping[str, str] = {
    "format": "the file",
    "leakage": "the check and what it is of, as `feature.auc NAME`",
    "supply-chain": "the advisory's id, or `PACKAGE is LICENCE`",
}
# gate → why no waiver names it.
NEVER: Mapping[str, str] = {
    "identity": "evidence about another model says nothing about this one",
    "recomputed": "every other gate relies on the metrics that it proves",
    "completeness": "what is missing cannot be excused",
    "superiority": "it takes a reason in writing with the request instead",
    "sign-off": "nobody's name stands in for another's",
}


@dataclass(frozen=True)
class Waiver:
    """Somebody's word for a gate until a day, that day included (UTC); `version` "" means any.

    `item` is the one thing that it sets aside, of a gate in `ITEMS`, else "". `place` is the file
    and line where it is written.
    """

    gate: str
    item: str
    reason: str
    owner: str
    expires: date
    version: str
    place: str

    def void(self, request: Request) -> str:
        """Why it does not hold for the request, or ""."""
        today = request.now.astimezone(UTC).date()
        if today > self.expires:
            return f"the waiver at {self.place} expired on {self.expires}"
        if self.expires - today > LONGEST:
            return f"the waiver at {self.place} is for more than {LONGEST.days} days"
        if self.version and self.version != request.version:
            return f"the waiver at {self.place} is for version {self.version}"
        return ""

    def __str__(self) -> str:
        what = f"{self.item} waived" if self.item else "waived"
        return f"{what} until {self.expires} by {self.owner}: {self.reason} ({self.place})"

    def to_json(self) -> Mapping[str, object]:
        """Its fields, the day as text."""
        return {**asdict(self), "expires": self.expires.isoformat()}


def checked(stated: Mapping[str, object], place: str) -> Waiver:
    """The waiver that a mapping of `KEYS` states.

    Raises ValueError saying what was expected when a field is missing, blank or of another type,
    or when the gate is unknown or is never waived.
    """
    gate = stated.get("gate")
    if not isinstance(gate, str) or gate not in SETTINGS:
        raise ValueError("`gate`: one of " + ", ".join(one for one in SETTINGS if one not in NEVER))
    if gate in NEVER:
        raise ValueError(f"no waiver for `{gate}`: {NEVER[gate]}")
    if gate in ITEMS and not (isinstance(stated.get("item"), str) and str(stated["item"]).strip()):
        raise ValueError(f"`item`: {ITEMS[gate]}; a waiver is for one thing")
    if gate not in ITEMS and "item" in stated:
        raise ValueError(f"no `item`: the gate `{gate}` judges one thing")
    of = version(stated)
    if gate == "format" and not of:
        raise ValueError("`version`: a file that may run code is let through in one version")
    return Waiver(
        gate,
        str(stated.get("item", "")).strip(),
        words(stated, "reason"),
        words(stated, "owner"),
        last_day(stated),
        of,
        place,
    )


def words(stated: Mapping[str, object], key: str) -> str:
    """What is written under the key; ValueError when that is nothing."""
    text = stated.get(key)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"`{key}`: in words")
    return text.strip()


def last_day(stated: Mapping[str, object]) -> date:
    """What is written under `expires`; ValueError when that is no day."""
    expires = stated.get("expires")
    # A datetime is a date to Python; which zone's day it ends on would be a guess.
    if type(expires) is not date:
        raise ValueError("`expires`: the last day on which it holds, such as 2025-06-30")
    return expires


def version(stated: Mapping[str, object]) -> str:
    """What is written under `version`, "" when nothing is; ValueError when that is none."""
    found = stated.get("version", "")
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if "version" in stated and not (isinstance(found, str) and found.strip()):
        raise ValueError("`version`: the model version that it is for")
    return str(found).strip()
