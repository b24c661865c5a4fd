"""The history of an endpoint: what the audit log says of versions applied, refused, signed off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ml.backends.registry import Version
from ml.core.errors import Exit, Problem, Refused
from ml.release import audit
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state
from ml.release.declaration.desired_state import Declared
from ml.release.declaration.release_file import Strategy
from ml.serving.server import Launch

Line = Mapping[str, object]
APPLIED, ROLLED_BACK = "applied", "rolled-back"


@dataclass(frozen=True)
class Release:
    """A declared version that is rolled out, and the person who approved it."""

    project: str
    environment: str
    declared: Declared
    version: Version
    launch: Launch
    samples: Sequence[Mapping[str, object]]
    strategy: Strategy
    approved_by: str

    def is_current(self) -> bool:
        """Whether it is still what is declared."""
        return desired_state.read(self.project, self.environment) == self.declared


@dataclass(frozen=True)
class Attempt:
    """The result of an apply: `outcome` is "applied", "rolled-back" or "refused".

    `why` is of the last two; `by` is the person who approved it, "" for nobody.
    """

    at: str
    outcome: str
    version: str
    why: str
    by: str

    def to_json(self) -> Mapping[str, str]:
        """As JSON takes it."""
        return asdict(self)


class History:
    """The lines of one endpoint in an audit log that was verified when it was read."""

    def __init__(self, endpoint: str, log: Sequence[Line]) -> None:
        self._endpoint, self._log = endpoint, log
        self._rollouts = [
            line
            for line in log
            if line.get("endpoint") == endpoint and line["event"] in (APPLIED, ROLLED_BACK)
        ]

    @property
    def applied(self) -> Sequence[Line]:
        """The line of every version that went live, oldest first."""
        return [line for line in self._rollouts if line["event"] == APPLIED]

    @property
    def served(self) -> Sequence[Line]:
        """The `applied` lines of the versions that a rollback may return to; the last is live.

        A rollback removes what came after: after 1, 2, 3 and 2 again there are 1 and 2, and 3 would
        be a promotion again.
        """
        lines: list[Line] = []
        for line in self.applied:
            pairs = [_pair(earlier) for earlier in lines]
            if _pair(line) in pairs:
                lines = lines[: pairs.index(_pair(line))]
            lines.append(line)
        return lines

    def served_before(self, launch: Launch) -> bool:
        """Whether this model with this serving code is among those that may be returned to."""
        return any(is_launch(line, launch) for line in self.served)

    def refusal(self, release: Release) -> Refused | None:
        """The error for a release that was rolled back before; None for any other.

        It is the same when model, serving code and proposal are; proposing again makes it new.
        """
        for line in reversed(self._rollouts):
            same = is_launch(line, release.launch) and (
                line["decision"] == release.declared.decision
            )
            if same and line["event"] == ROLLED_BACK:
                return Refused(
                    Problem(
                        "refused-before",
                        f"{release.version.model} {release.version.version} was rolled back on "
                        f"{str(line['at'])[:16]}: {line['why']}",
                        "a version that its canary has not refused",
                        f"propose another, or the same again: ml release propose {release.project};"
                        f" to return to the version before: ml release rollback {release.project} "
                        f"--to {release.environment}",
                    ),
                    exit_code=Exit.GATE_SAID_NO,
                )
        return None

    def last_refusal(self, declared: Declared) -> str | None:
        """Why the declared version was rolled back, if nothing happened to it since."""
        for line in reversed(self._rollouts):
            if line["event"] == ROLLED_BACK and line.get("decision") == declared.decision:
                return str(line["why"])
            if line["event"] == APPLIED and line["digest"] == declared.digest:
                return None
        return None

    def rolled_back(self, launch: Launch) -> Line | None:
        """The line of the rollback when this model with this code was not applied since.

        The proposal does not matter; None when it was never rolled back.
        """
        for line in reversed(self._rollouts):
            if is_launch(line, launch):
                return line if line["event"] == ROLLED_BACK else None
        return None

    def refused(self) -> Sequence[Attempt]:
        """The versions that were rolled back and not applied since, the latest last."""
        attempts: dict[str, Attempt] = {}
        for line in self._rollouts:
            attempts.pop(str(line["digest"]), None)
            if line["event"] == ROLLED_BACK:
                attempts[str(line["digest"])] = _attempt(line)
        return list(attempts.values())

    def approver(self, digest: str) -> str:
        """The person who approved the model when it was applied last; "" for nobody."""
        for line in reversed(self.applied):
            if line["digest"] == digest:
                return str(line.get("approved_by", ""))
        return ""

    def last_attempt(self, project: str, environment: str) -> Attempt | None:
        """The result of the last apply that changed or refused something; None before the first."""
        for line in reversed(self._log):
            if line in self._rollouts:
                return _attempt(line)
            decision = line.get("decision")
            if line["event"] == "decision" and isinstance(decision, Mapping):
                request = decision["request"]
                here = (line.get("project"), request["environment"]) == (project, environment)
                if here and request["step"] == "apply" and decision["outcome"] == "refused":
                    return Attempt(
                        at=str(line["at"]),
                        outcome="refused",
                        version=str(request["version"]),
                        why="gates that failed: " + ", ".join(_blocking(decision["results"])),
                        by=str(request["approved_by"]),
                    )
        return None

    def reason(self, decision: str) -> str:
        """The reason that was given for the decision with that hash, "" without one."""
        for line in self._log:
            details = line.get("decision")
            if line["hash"] == decision and isinstance(details, Mapping):
                return str(details["request"]["reason"])
        return ""


def of(endpoint: str) -> History:
    """The endpoint's history; raises Refused when a line of the audit log was changed."""
    return History(endpoint, audit.verify())


def record_applied(release: Release, replaced: Version | None, outcome: Outcome | None) -> None:
    """Add the line of a version that is live now, in place of `replaced`."""
    audit.append(
        APPLIED,
        {
            **_details(release),
            "replaced": replaced.version if replaced else None,
            "canary": outcome.to_json() if outcome else None,
        },
    )


def record_refused(release: Release, why: str, outcome: Outcome | None) -> None:
    """Add the line of a version that was rolled back."""
    canary = outcome.to_json() if outcome else None
    audit.append(ROLLED_BACK, {**_details(release), "why": why, "canary": canary})


def _details(release: Release) -> dict[str, object]:
    launch = release.launch
    return {
        "environment": release.environment,
        "endpoint": launch.endpoint,
        "model": launch.model,
        "version": launch.version,
        "digest": launch.digest,
        "serving": launch.serving,
        "decision": release.declared.decision,
        "approved_by": release.approved_by,
    }


def is_launch(line: Line, launch: Launch) -> bool:
    """Whether the line is of this model with this serving."""
    return _pair(line) == (launch.digest, launch.serving)


def _pair(line: Line) -> tuple[object, object]:
    return line.get("digest"), line.get("serving")


def _blocking(results: Sequence[Mapping[str, object]]) -> list[str]:
    return [
        str(result["gate"])
        for result in results
        if (result["mode"], result["verdict"]) == ("enabled", "fail")
    ]


def _attempt(line: Line) -> Attempt:
    return Attempt(
        at=str(line["at"]),
        outcome=str(line["event"]),
        version=str(line["version"]),
        why=str(line.get("why", "")),
        by=str(line.get("approved_by", "")),
    )
