"""What an endpoint went through, read from the audit log: versions applied, refused, signed off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ml.release.log import audit
from ml.release.log.journal import lines, served

Line = Mapping[str, object]


@dataclass(frozen=True)
class Attempt:
    """The last thing that an apply did: `outcome` is "applied", "rolled-back" or "refused".

    `why` is of the last two; `by` is who stood for it, "" for nobody.
    """

    at: str
    outcome: str
    version: str
    why: str
    by: str

    def to_json(self) -> Mapping[str, str]:
        """As JSON takes it."""
        return asdict(self)


def is_way_back(endpoint: str, digest: str) -> bool:
    """Whether the model served there before the one that does: it had passed gates and canary."""
    return any(line["digest"] == digest for line in served(endpoint))


def refused(endpoint: str) -> Sequence[Attempt]:
    """The versions that were rolled back and not applied since, the latest last."""
    found: dict[str, Attempt] = {}
    for line in lines(endpoint):
        if line["event"] in ("applied", "rolled-back"):
            found.pop(str(line["digest"]), None)
        if line["event"] == "rolled-back":
            found[str(line["digest"])] = _attempt(line)
    return list(found.values())


def signed_off(endpoint: str, digest: str) -> str:
    """Who stood for the model when it was applied there last; "" when nobody did."""
    for line in reversed(lines(endpoint)):
        if line["event"] == "applied" and line["digest"] == digest:
            return str(line.get("approved_by", ""))
    return ""


def last_attempt(project: str, environment: str, endpoint: str) -> Attempt | None:
    """What the last apply came to; None before the first. One that changed nothing is none."""
    for line in reversed(audit.verify()):
        if line.get("endpoint") == endpoint and line["event"] in ("applied", "rolled-back"):
            return _attempt(line)
        decision = line.get("decision")
        if line["event"] == "decision" and isinstance(decision, Mapping):
            asked = decision["request"]
            here = (line.get("project"), asked["environment"]) == (project, environment)
            if here and asked["step"] == "apply" and decision["outcome"] == "refused":
                return Attempt(
                    at=str(line["at"]),
                    outcome="refused",
                    version=str(asked["version"]),
                    why="gates that say no: " + ", ".join(_blocking(decision["results"])),
                    by=str(asked["approved_by"]),
                )
    return None


def reason(decision: str) -> str:
    """The reason in writing that the decision of that hash was given, "" without one."""
    for line in audit.verify():
        found = line.get("decision")
        if line["hash"] == decision and isinstance(found, Mapping):
            return str(found["request"]["reason"])
    return ""


def _blocking(results: Sequence[Mapping[str, object]]) -> list[str]:
    return [
        str(one["gate"]) for one in results if (one["mode"], one["verdict"]) == ("enabled", "fail")
    ]


def _attempt(line: Line) -> Attempt:
    return Attempt(
        at=str(line["at"]),
        outcome=str(line["event"]),
        version=str(line["version"]),
        why=str(line.get("why", "")),
        by=str(line.get("approved_by", "")),
    )
