"""Statements in git that expire: waivers, reviews and invalid versions, each with an owner.

A rule's waiver exempts one resource of one environment (policies/infra/waivers.yml). A gate's
waiver accepts a measurement that misses its limit; missing evidence is never waived. A review is a
person's verdict where a number cannot decide. An invalid version is one found wrong, such as a
champion trained on test data: no candidate has to beat it. These three are in the project's
gates.yml.

A statement has a maximum duration. It starts on the day when its lines were merged (git's
first-parent history), whatever the commits' dates are. Without that history (no repository, a
shallow or partial clone) it starts today, and the latest end of all statements with the same
subject counts for each: a series of renewals written in advance is not valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from ml.core import documents, git, settings
from ml.core.documents import Document, Key, walk
from ml.core.errors import Place, Problem, UserError
from ml.core.imports import ROOT
from ml.core.names import not_words
from ml.core.settings import CLOSED, invalid

RULE_WAIVERS = ROOT / "policies/infra/waivers.yml"
# gate → the kind of item that its waiver names, one of those that the gate lists.
ITEMS: Mapping[str, str] = {
    "format": "the file",
    "leakage": "the check and its subject, as `feature.auc NAME`",
    "supply-chain": "the advisory's id, or `PACKAGE is LICENCE`",
}
# gate → the optional item of its waiver, a slice.
SLICES: Mapping[str, str] = {"fairness": "a slice that is too rare, as `DIMENSION SLICE`"}
# gate → why it cannot be waived.
NEVER: Mapping[str, str] = {
    "identity": "evidence of another model says nothing of this one",
    "attestation": "a waiver cannot replace an attestation",
    "order": "the environment before it serves a version first",
    "verified-metrics": "every other gate relies on metrics that can be recomputed",
    "serving": "every other gate evaluates these predictions, and callers would get others",
    "completeness": "missing evidence cannot be excused",
    "superiority": "write a reason with the request instead",
    "sign-off": "a waiver does not replace an approval",
}
# The gates that need a review.
REVIEWED = ("fairness", "explainability")


def _words(text: str) -> str:
    if not text.strip():
        raise invalid("a text that is not empty")
    if problem := not_words(text.strip()):
        raise invalid("visible characters with at least one letter", problem)
    return text.strip()


def _plain(text: str) -> str:
    if not text.strip():
        raise invalid("a text that is not empty")
    if not text.strip().isprintable():
        raise invalid("visible characters")
    return text.strip()


def as_text(value: object) -> object:
    """Convert an integer to text: people write `version: 3`, registries store "3"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Words = Annotated[str, AfterValidator(_words)]
Version = Annotated[str, BeforeValidator(as_text), AfterValidator(_plain)]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A written exception until a date (UTC)."""

    __pydantic_config__ = CLOSED
    NAME: ClassVar[str]
    # The maximum duration until it must be renewed, and so reviewed again.
    LONGEST: ClassVar[timedelta]

    owner: Annotated[Words, Field(description="who answers for it")]
    expires: Annotated[date, Field(description="the last day on which it holds")]
    place: SkipJsonSchema[str] = field(default="", init=False)  # FILE:LINE
    # The day on which it begins; None if unknown.
    merged: SkipJsonSchema[date | None] = field(default=None, init=False)
    # The last day of all statements about the same subject.
    last: SkipJsonSchema[date | None] = field(default=None, init=False)

    @property
    def subject(self) -> tuple[str, ...]:
        """The subject of the statement: statements with the same subject are counted together."""
        raise NotImplementedError

    @property
    def position(self) -> Place:
        """`place` as a Place, for errors."""
        path, _, line = self.place.rpartition(":")
        return Place(path, int(line))

    def expired(self, today: date) -> str:
        """Return why the statement is not valid today, or ""."""
        which = f"the {self.NAME} at {self.place}"
        if today > self.expires:
            return f"{which} expired on {self.expires}"
        begins = self.merged or today
        if begins > today:
            return f"{which} begins on {begins}, when it was merged"
        if self.expires - begins > self.LONGEST:
            since = f", from its merge on {begins} on" if self.merged else ""
            return f"{which} is for more than {self.LONGEST.days} days{since}"
        if self.merged is None and (self.last or self.expires) - today > self.LONGEST:
            return (
                f"{which} is one of several, together more than {self.LONGEST.days} days: "
                f"the last ends on {self.last}"
            )
        return ""


@dataclass(frozen=True, kw_only=True)
class Waiver(Statement):
    """A written exception to a violation, with a reason."""

    NAME = "waiver"
    reason: Annotated[Words, Field(description="why the refusal may be set aside")]

    def __str__(self) -> str:
        return f"waived until {self.expires} by {self.owner} ({self.place}): {self.reason}"


@dataclass(frozen=True, kw_only=True)
class RuleWaiver(Waiver):
    """An exemption of one resource of an environment from `rule`."""

    __pydantic_config__ = CLOSED
    LONGEST = timedelta(days=180)

    rule: Words
    environment: Words
    resource: Annotated[Words, Field(description="the resource's name in the program")]

    @property
    def subject(self) -> tuple[str, str, str]:
        """The rule, the environment and the resource."""
        return (self.rule, self.environment, self.resource)


@dataclass(frozen=True, kw_only=True)
class GateWaiver(Waiver):
    """An exemption of a failed item from a gate."""

    __pydantic_config__ = CLOSED
    LONGEST = timedelta(days=90)

    gate: str
    item: Words = ""  # the one finding of a gate in `ITEMS`, a slice of one in `SLICES`, else ""
    version: Version = ""  # "" stands for every version

    @property
    def subject(self) -> tuple[str, ...]:
        """The gate and the item, without the version: a waiver of the next version is a renewal."""
        return (self.gate, self.item)

    def unusable(self, today: date, version: str) -> str:
        """Return why the waiver does not apply today to the model version, or ""."""
        if not (reason := self.expired(today)) and self.version not in ("", version):
            return f"the waiver at {self.place} is for version {self.version}"
        return reason

    def __str__(self) -> str:
        return f"{self.item} {super().__str__()}".strip()

    def to_json(self) -> Mapping[str, object]:
        """Return the fields, with dates as text."""
        stated = {key: value for key, value in asdict(self).items() if key != "last"}
        merged = self.merged.isoformat() if self.merged else None
        return {**stated, "expires": self.expires.isoformat(), "merged": merged}


@dataclass(frozen=True, kw_only=True)
class Review(Statement):
    """A person's review for a gate, of a model version, a feature set or both."""

    __pydantic_config__ = CLOSED
    NAME = "review"
    LONGEST = timedelta(days=366)

    gate: str
    finding: Annotated[Words, Field(description="what was found")]
    version: Version = ""  # "" stands for every version
    feature_set: Words = ""  # its hash; "" stands for every feature set

    @property
    def subject(self) -> tuple[str, ...]:
        """The gate and what was reviewed."""
        return (self.gate, self.version, self.feature_set)

    def unusable(self, today: date, version: str, feature_set: str | None) -> str:
        """Return why the review does not apply today to the version and its features, or ""."""
        if reason := self.expired(today):
            return reason
        if self.version not in ("", version):
            return f"the review at {self.place} is of version {self.version}"
        if self.feature_set not in ("", feature_set):
            return f"the review at {self.place} is of other features"
        return ""

    def __str__(self) -> str:
        return f"reviewed by {self.owner}: {self.finding} ({self.place})"


@dataclass(frozen=True, kw_only=True)
class InvalidVersion(Waiver):
    """A model version with invalid measurements: it is not promoted, and need not be beaten."""

    __pydantic_config__ = CLOSED
    NAME = "invalid version"
    LONGEST = timedelta(days=90)

    version: Version
    # Of the model. It identifies the version, whose number differs between registries.
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]

    @property
    def subject(self) -> tuple[str]:
        """The digest of the model."""
        return (self.digest,)

    def unusable(self, today: date, digest: str | None) -> str:
        """Return why the statement does not apply today to the model with that digest, or ""."""
        if self.digest != digest:
            return f"the {self.NAME} at {self.place} is another model: {self.digest[:19]}…"
        return self.expired(today)

    def __str__(self) -> str:
        about = f"version {self.version} ({self.digest[:19]}…) is invalid"
        return f"{about}, says {self.owner} until {self.expires}: {self.reason} ({self.place})"


_RULE_WAIVERS = tuple[RuleWaiver, ...]
S = TypeVar("S", bound=Statement)


def located(statements: tuple[S, ...], document: Document, file: Path, *keys: Key) -> tuple[S, ...]:
    """Set `place`, `last` and `merged` of the document's statements at `keys`; return them."""
    days = merge_days(file) if statements else {}
    last: dict[tuple[str, ...], date] = {}
    for statement in statements:
        last[statement.subject] = max(statement.expires, last.get(statement.subject, date.min))
    for index, statement in enumerate(statements):
        below = [inner for inner, _ in walk(document.get(*keys, index))]
        lines = [document.position(*keys, index, *inner)[0] for inner in below]
        merged = [days.get(line) for line in range(min(lines), max(lines) + 1)]
        dates = [day for day in merged if day is not None]
        # Set the computed fields once; the frozen dataclass has no other way.
        object.__setattr__(statement, "place", str(document.place(*keys, index)))
        object.__setattr__(statement, "last", last[statement.subject])
        object.__setattr__(statement, "merged", max(dates) if len(dates) == len(merged) else None)
    return statements


def lapsed(statements: Iterable[Statement], today: date) -> Iterator[Problem]:
    """Yield a warning for each statement that is invalid today and has no later successor."""
    for statement in statements:
        why = statement.expired(today)
        if why and not statement.expires < today <= (statement.last or date.min):
            actual = why.replace(f" at {statement.place}", "")
            hint = "delete it, or renew it if its reason still holds"
            position = statement.position
            yield Problem("expired-waiver", actual, "a valid one", hint, position, "warning")


def merge_days(file: Path) -> Mapping[int, date]:
    """Map each line to the day (UTC) on which it was merged, by the first-parent history.

    Today for an uncommitted line. Empty without a history; lines from before the start of a shallow
    clone are left out.
    """
    # Override `blame.ignoreRevsFile`, which would hide commits.
    words = ("blame", "--first-parent", "--ignore-revs-file=", "--line-porcelain", "--", file.name)
    blame = git.ask(file.parent, *words) or ""
    is_shallow = re.search(r"(?m)^boundary$", blame) and _is_shallow(file.parent)
    days: dict[int, date] = {}
    for entry in re.split(r"(?m)^(?=[0-9a-f]{40,64} \d+ \d+)", blame):
        head = re.match(r"[0-9a-f]{40,64} \d+ (\d+)", entry)
        time = re.search(r"(?m)^committer-time (\d+)$", entry)
        is_first = is_shallow and re.search(r"(?m)^boundary$", entry)
        if head and time and not is_first:
            days[int(head[1])] = datetime.fromtimestamp(int(time[1]), UTC).date()
    return days


def _is_shallow(folder: Path) -> bool:
    return git.ask(folder, "rev-parse", "--is-shallow-repository") != "false"


def read_rule_waivers(file: Path = RULE_WAIVERS) -> tuple[RuleWaiver, ...]:
    """Read the waivers of rules; () if the file is empty. Raise UserError if it is invalid."""
    try:
        document = documents.read(file)
    except UserError as refused:
        if refused.problems[0].code == "empty-file":
            return ()
        raise
    return located(settings.read(_RULE_WAIVERS, document), document, file)


def rule_waivers(rules: Collection[str], file: Path = RULE_WAIVERS) -> tuple[RuleWaiver, ...]:
    """Read the waivers; raise UserError if one names a rule outside `rules` or repeats another."""
    waivers = read_rule_waivers(file)
    problems: list[Problem] = []
    first: dict[tuple[str, str, str], str] = {}
    for waiver in waivers:
        actual = expected = ""
        if waiver.rule not in rules:
            actual, expected = f"no rule `{waiver.rule}`", "the name of a rule"
        elif (earlier := first.setdefault(waiver.subject, waiver.place)) != waiver.place:
            actual, expected = f"{earlier} waives the same", "one waiver of a rule for a resource"
        if actual:
            problems.append(Problem("wrong-value", actual, expected, "", waiver.position))
    if problems:
        raise UserError(*problems)
    return waivers


def check_waiver(waiver: GateWaiver, gates: Iterable[str]) -> GateWaiver:
    """Return the waiver; raise a pydantic error if its gate cannot be waived in this way."""
    gate = waiver.gate
    if gate not in gates:
        raise invalid("`gate`: one of " + ", ".join(name for name in gates if name not in NEVER))
    if gate in NEVER:
        raise invalid(f"no waiver of `{gate}`: {NEVER[gate]}", "delete it", f"waives `{gate}`")
    if gate in ITEMS and not waiver.item:
        raise invalid(f"`item`: {ITEMS[gate]}; a waiver is for one thing")
    if gate not in {*ITEMS, *SLICES} and waiver.item:
        raise invalid(f"no `item`: the gate `{gate}` has no items")
    if gate == "format" and not waiver.version:
        raise invalid("`version`: a file that may run code is waived for one version")
    return waiver


def check_review(review: Review) -> Review:
    """Return the review; raise a pydantic error if its gate needs none or it names no subject."""
    if review.gate not in REVIEWED:
        raise invalid("`gate`: one of " + ", ".join(REVIEWED))
    if not (review.version or review.feature_set):
        raise invalid("`version` or `feature_set`, as reviewed")
    return review
