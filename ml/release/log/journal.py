"""What was tried on an endpoint and what it came to: audit lines "applied" and "rolled-back"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml.core.errors import Exit, Problem, Refused
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired
from ml.release.declaration.desired import Declared
from ml.release.declaration.strategy import Strategy
from ml.release.log import audit
from ml.release.registry.registry import Version
from ml.serving.server import Launch


@dataclass(frozen=True)
class Release:
    """What is to be brought about, and who stands for it."""

    project: str
    environment: str
    declared: Declared
    version: Version
    launch: Launch
    samples: Sequence[Mapping[str, object]]
    strategy: Strategy
    approved_by: str

    def stands(self) -> bool:
        """Whether it is still what is declared."""
        return desired.read(self.project, self.environment) == self.declared


def refused_before(release: Release) -> Refused | None:
    """What is told when this very release was rolled back before; None when it was not.

    The same is: the model, the serving code, and the proposal. Proposing it again is a new one.
    """
    for line in reversed(lines(release.launch.endpoint)):
        if line["event"] == "rolled-back" and _same(line, release):
            return Refused(
                Problem(
                    "refused-before",
                    f"{release.version.model} {release.version.version} was rolled back on "
                    f"{str(line['at'])[:16]}: {line['why']}",
                    "a version that its canary has not refused",
                    f"propose another, or the same anew: ml release propose {release.project}; "
                    f"what served before: ml release rollback {release.project} "
                    f"--to {release.environment}",
                ),
                exit_code=Exit.GATE_SAID_NO,
            )
    return None


def last_refusal(name: str, declared: Declared) -> str | None:
    """Why the declared version was rolled back, when that is the last that happened to it."""
    for line in reversed(lines(name)):
        if line["event"] == "rolled-back" and line.get("decision") == declared.decision:
            return str(line["why"])
        if line["event"] == "applied" and line["digest"] == declared.digest:
            return None
    return None


def taken_back(launch: Launch) -> Mapping[str, object] | None:
    """The line that says so when this model with this code was rolled back and not applied since,
    whichever proposal it was of; None otherwise.
    """
    for line in reversed(lines(launch.endpoint)):
        same = (line.get("digest"), line.get("code")) == (launch.digest, launch.code.name)
        if same and line["event"] in ("applied", "rolled-back"):
            return line if line["event"] == "rolled-back" else None
    return None


def served_before(launch: Launch) -> bool:
    """Whether this model with this code is one that may be gone back to."""
    return any(
        line["digest"] == launch.digest and line.get("code") == launch.code.name
        for line in served(launch.endpoint)
    )


def served(name: str) -> Sequence[Mapping[str, object]]:
    """The `applied` lines of what may be gone back to, oldest first; the last one is live.

    Going back takes what came after away: after 1, 2, 3 and 2 again there are 1 and 2, and 3 would
    be a promotion again.
    """
    found: list[Mapping[str, object]] = []
    for line in lines(name):
        if line["event"] != "applied":
            continue
        digests = [one["digest"] for one in found]
        if line["digest"] in digests:
            found = found[: digests.index(line["digest"])]
        found.append(line)
    return found


def record_applied(release: Release, replaced: Version | None, outcome: Outcome | None) -> None:
    """Add the line of a version that is live now, in place of `replaced`."""
    audit.append(
        "applied",
        {
            **_what(release),
            "replaced": replaced.version if replaced else None,
            "canary": outcome.to_json() if outcome else None,
        },
    )


def record_refused(release: Release, why: str, outcome: Outcome | None) -> None:
    """Add the line of a version that was taken back."""
    audit.append(
        "rolled-back",
        {**_what(release), "why": why, "canary": outcome.to_json() if outcome else None},
    )


def lines(name: str) -> list[Mapping[str, object]]:
    """The endpoint's lines of the audit log, once it verifies."""
    return [line for line in audit.verify() if line.get("endpoint") == name]


def _same(line: Mapping[str, object], release: Release) -> bool:
    return (line["digest"], line["code"], line["decision"]) == (
        release.launch.digest,
        release.launch.code.name,
        release.declared.decision,
    )


def _what(release: Release) -> dict[str, object]:
    launch = release.launch
    return {
        "environment": release.environment,
        "endpoint": launch.endpoint,
        "model": launch.model,
        "version": launch.version,
        "digest": launch.digest,
        "code": launch.code.name,
        "decision": release.declared.decision,
        "approved_by": release.approved_by,
    }
