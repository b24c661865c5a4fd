"""Reviews: what somebody found in the slices and the contributions, in the project's gates.yml.

A number cannot say whether a difference between slices is fair or a feature is sound; a person can,
and writes it where the next reviewer reads it. A review holds for a model version, or for as long
as the features are the ones that were looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, timedelta

from policies.promotion.decision import Request
from policies.promotion.evidence import Evidence
from policies.promotion.waivers import last_day, version, words

KEYS = ("gate", "finding", "owner", "expires", "version", "feature_set")
# The gates that ask for one.
GATES = ("fairness", "explainability")
# A review is looked at again after this long.
LONGEST = timedelta(days=366)


@dataclass(frozen=True)
class Review:
    """What `owner` found for a gate, until a day, that day included (UTC).

    It is of the model version, of the feature set (its hash), or of both; "" means any. `place` is
    the file and line where it is written.
    """

    gate: str
    finding: str
    owner: str
    expires: date
    version: str
    feature_set: str
    place: str

    def void(self, request: Request, evidence: Evidence) -> str:
        """Why it does not hold for the request, or ""."""
        today = request.now.astimezone(UTC).date()
        if today > self.expires:
            return f"the review at {self.place} expired on {self.expires}"
        if self.expires - today > LONGEST:
            return f"the review at {self.place} is for more than {LONGEST.days} days"
        if self.version and self.version != request.version:
            return f"the review at {self.place} is of version {self.version}"
        if self.feature_set and self.feature_set != evidence.lineage.feature_set_hash:
            return f"the review at {self.place} is of other features"
        return ""

    def __str__(self) -> str:
        return f"reviewed by {self.owner}: {self.finding} ({self.place})"


def checked(stated: Mapping[str, object], place: str) -> Review:
    """The review that a mapping of `KEYS` states.

    Raises ValueError saying what was expected when a field is missing, blank or of another type,
    when the gate asks for none, or when it is of everything.
    """
    gate = stated.get("gate")
    if gate not in GATES:
        raise ValueError("`gate`: one of " + ", ".join(GATES))
    features = words(stated, "feature_set") if "feature_set" in stated else ""
    of = version(stated)
    if not (of or features):
        raise ValueError("`version` or `feature_set`: what was looked at")
    return Review(
        str(gate),
        words(stated, "finding"),
        words(stated, "owner"),
        last_day(stated),
        of,
        features,
        place,
    )
