"""The audit log: append-only JSON lines, each with the hash of the previous line.

The history of an endpoint is read from its lines: versions applied, rolled back and withdrawn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from ml.backends.base import AuditLog, Backend
from ml.backends.endpoints import ModelDeployment
from ml.core.errors import Exit, Place, UserError
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry

START = "0" * 64  # the previous hash of the first line
# Events of a rollout; WITHDRAWN: a declaration that was removed before it was ever applied.
APPLIED, ROLLED_BACK, WITHDRAWN = "applied", "rolled-back", "withdrawn"
Line = Mapping[str, object]
T = TypeVar("T")


def append(log: AuditLog, event: str, details: Mapping[str, object]) -> str:
    """Append a line and return its hash (hex).

    Raises UserError if an earlier line does not verify or the disk is full; the log is unchanged.
    """
    line: dict[str, object] = {}

    def following(content: bytes | None) -> bytes:
        nonlocal line
        lines = _lines(log, content)
        line = {
            "number": len(lines) + 1,
            "at": datetime.now(UTC).isoformat(),
            "event": event,
            **details,
            "previous": lines[-1]["hash"] if lines else START,
        }
        line["hash"] = _hash(line)
        return (json.dumps(line, sort_keys=True) + "\n").encode()

    log.append(following)
    return str(line["hash"])


def verify(log: AuditLog, holding: str | None = None) -> tuple[Line, ...]:
    """Return all lines of the log after verifying its hash chain; raise UserError at a broken line.

    The chain stays valid if the log is truncated or rewritten. To detect that, pass `holding`, a
    hash (hex) noted earlier: one line must have it.
    """
    lines = _lines(log, log.read())
    if holding is not None and holding not in [line["hash"] for line in lines]:
        why = f"no line has the hash {holding}, which was noted earlier"
        raise _broken(log, len(lines) + 1, why)
    return tuple(lines)


def _lines(log: AuditLog, content: bytes | None) -> list[Line]:
    lines: list[Line] = []
    if content is None:
        return lines
    previous = START
    *texts, tail = content.split(b"\n")
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(_checked(text, number, previous))
        except ValueError as error:
            raise _broken(log, number, str(error)) from None
        previous = str(lines[-1]["hash"])
    if tail or not texts:
        raise _broken(log, len(lines) + 1, "the line does not end")
    return lines


def against(backend: Backend, lines: Sequence[Line]) -> Sequence[str]:
    """Check that the log contains the declared decisions; return a sentence for each.

    Raises UserError if a decision of this backend is missing: the log was truncated or rewritten.
    """
    numbers = {line["hash"]: line["number"] for line in lines}
    sentences = []
    for where, decision, belongs in desired_state.decisions(backend):
        if decision in numbers:
            sentences.append(f"{where} is line {numbers[decision]}")
        elif belongs:
            why = f"no line has the decision {decision}, {where}"
            raise _broken(backend.audit_log, len(lines) + 1, why)
        else:
            sentences.append(f"{where} was decided elsewhere: {decision}")
    return sentences


def _checked(text: bytes, number: int, previous: str) -> Mapping[str, object]:
    """Parse and verify a line; raise ValueError with the reason if it is invalid."""
    try:
        line = json.loads(text)
        claimed = line["hash"]
        content = {key: value for key, value in line.items() if key != "hash"}
        follows = (line["number"], line["previous"]) == (number, previous)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("it cannot be read") from None
    if not follows:
        raise ValueError("it does not follow the line before it")
    if claimed != _hash(content):
        raise ValueError("its content does not match its hash")
    # The hash ignores duplicate keys, whitespace and the order of keys; compare the bytes.
    if text != json.dumps(line, sort_keys=True).encode():
        raise ValueError("its bytes differ from the line that was written")
    return dict(line)


def _hash(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _broken(log: AuditLog, number: int, why: str) -> UserError:
    return UserError.with_code(
        "audit-broken",
        f"the audit log was changed: {why}",
        "a log to which lines are only appended",
        "find out who changed it, and keep a copy of the file, before the next promotion",
        Place(log.place, number),
        exit_code=Exit.GATE_SAID_NO,
    )


@dataclass(frozen=True)
class Attempt:
    """The result of an apply, or the withdrawal of a version."""

    time: str  # ISO 8601, UTC
    outcome: str  # "applied", "rolled-back", "rejected" or "withdrawn"
    version: str
    why: str  # "" if it was applied
    by: str  # the person who approved or withdrew it, "" for nobody


class History:
    """The lines of one endpoint in an audit log that was verified when it was read."""

    def __init__(self, endpoint: str, log: Sequence[Line]) -> None:
        self._endpoint, self._log = endpoint, log
        self._rollouts = [
            line
            for line in log
            if line.get("endpoint") == endpoint
            and line["event"] in (APPLIED, ROLLED_BACK, WITHDRAWN)
        ]

    @property
    def applied(self) -> Sequence[Line]:
        """The line of every version that went live, oldest first."""
        return [line for line in self._rollouts if line["event"] == APPLIED]

    @property
    def served(self) -> Sequence[Line]:
        """The `applied` lines of versions that a rollback may return to, and of the live one."""
        return returnable(self.applied, _pair)

    def has_decided(self, entry: ReleaseEntry, environment: str) -> bool:
        """Return whether the audit log has the declared decision and it allows this release."""
        for line in self._log:
            decision = line.get("decision")
            if line["hash"] == entry.decision and isinstance(decision, Mapping):
                request = decision["request"]
                about = (request["environment"], request["model"], request["digest"])
                allowed = line["event"] == "decision" and decision["outcome"] != "rejected"
                return allowed and about == (environment, entry.model, entry.digest)
        return False

    def is_good(self, entry: ReleaseEntry) -> bool:
        """Return whether the declared version was applied here and not rolled back later.

        If nothing was ever applied, as on another machine, every version is good unless it was
        rolled back or withdrawn.
        """
        for line in reversed(self._rollouts):
            if is_declared(line, entry):
                return line["event"] == APPLIED
        return not self.applied

    def refusal(self, entry: ReleaseEntry) -> Line | None:
        """Return the line that rolled back or withdrew the declared version by its decision.

        None if there is none, or if the model was applied since.
        """
        for line in reversed(self._rollouts):
            if line["event"] != APPLIED and line.get("decision") == entry.decision:
                return line
            if line["event"] == APPLIED and line["digest"] == entry.digest:
                return None
        return None

    def rolled_back(self, deployment: ModelDeployment, decision: str | None = None) -> Line | None:
        """Return the line that rolled back or withdrew this model with this serving code.

        None if there is none, or if it was applied since. With `decision`, only lines of the
        proposal with that decision are considered.
        """
        for line in reversed(self._rollouts):
            if matches_deployment(line, deployment) and decision in (None, line.get("decision")):
                return line if line["event"] != APPLIED else None
        return None

    def went_back_to(self, entry: ReleaseEntry, project: str, environment: str) -> bool:
        """Return whether the environment's last rollback restored this version and its decision."""
        for line in reversed(self._log):
            if line["event"] == "rollback" and (line["project"], line["environment"]) == (
                project,
                environment,
            ):
                return is_declared(line, entry) and line.get("decision") == entry.decision
        return False

    def refused(self) -> Sequence[Attempt]:
        """Return versions rolled back or withdrawn and not applied again, latest last."""
        attempts: dict[str, Attempt] = {}
        for line in self._rollouts:
            attempts.pop(str(line["digest"]), None)
            if line["event"] != APPLIED:
                attempts[str(line["digest"])] = _attempt(line)
        return list(attempts.values())

    def approver(self, digest: str) -> str:
        """Return the approver of the model's last apply; "" if there is none."""
        for line in reversed(self.applied):
            if line["digest"] == digest:
                return str(line.get("approved_by", ""))
        return ""

    def last_attempt(self, project: str, environment: str) -> Attempt | None:
        """Return the result of the last apply that changed or rejected something, or None."""
        for line in reversed(self._log):
            if line in self._rollouts:
                return _attempt(line)
            decision = line.get("decision")
            if line["event"] == "decision" and isinstance(decision, Mapping):
                request = decision["request"]
                is_about = (line.get("project"), request["environment"]) == (project, environment)
                if is_about and request["step"] == "apply" and decision["outcome"] == "rejected":
                    failed = [
                        str(result["gate"])
                        for result in decision["results"]
                        if (result["mode"], result["verdict"]) == ("enabled", "fail")
                    ]
                    return Attempt(
                        time=str(line["at"]),
                        outcome="rejected",
                        version=str(request["version"]),
                        why="gates that failed: " + ", ".join(failed),
                        by=str(request["approved_by"]),
                    )
        return None

    def reason(self, decision: str) -> str:
        """Return the reason that was given for the decision with that hash, "" without one."""
        for line in self._log:
            details = line.get("decision")
            if line["hash"] == decision and isinstance(details, Mapping):
                return str(details["request"]["reason"])
        return ""


def history(log: AuditLog, endpoint: str) -> History:
    """Return the endpoint's history; raise UserError when a line of the audit log was changed."""
    return History(endpoint, verify(log))


def returnable(items: Sequence[T], pair: Callable[[T], object]) -> list[T]:
    """Return the items that a rollback may return to, oldest first; the last is the present one.

    `pair` returns an item's model digest and deployment digest. A return to an earlier item removes
    the items after it: of 1, 2, 3, 2 there remain 1 and 2.
    """
    stack: list[T] = []
    for item in items:
        pairs = [pair(earlier) for earlier in stack]
        if pair(item) in pairs:
            stack = stack[: pairs.index(pair(item))]
        stack.append(item)
    return stack


def refused_before(line: Line, expected: str, hint: str) -> UserError:
    """Return the error for a version whose log line says that it was rolled back or withdrawn."""
    return UserError.with_code(
        "version-rejected",
        f"{line['model']} {line['version']} was {happened(line)} on {str(line['at'])[:16]}: "
        f"{line['why']}",
        expected,
        hint,
        exit_code=Exit.GATE_SAID_NO,
    )


def happened(line: Line) -> str:
    """Return the event in words: `applied`, `rolled back` or `withdrawn`."""
    return str(line["event"]).replace("-", " ")


def matches_deployment(line: Line, deployment: ModelDeployment) -> bool:
    """Return whether the line is about this model with this serving code and settings."""
    return _pair(line) == (deployment.digest, deployment.deployment_digest)


def is_declared(line: Line, entry: ReleaseEntry) -> bool:
    """Return whether the line is about the declared model, and its serving code if declared."""
    return _pair(line) == (
        entry.digest,
        entry.deployment_digest or line.get("deployment_digest"),
    )


def _pair(line: Line) -> tuple[object, object]:
    return line.get("digest"), line.get("deployment_digest")


def _attempt(line: Line) -> Attempt:
    return Attempt(
        time=str(line["at"]),
        outcome=str(line["event"]),
        version=str(line["version"]),
        why=str(line.get("why", "")),
        by=str(line.get("approved_by") or line.get("by", "")),
    )
