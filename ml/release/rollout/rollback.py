"""Rollback: declare the version before again, as `git revert` of its successor would.

It is taken from the history of release.yml on the branch; where the declaration is not committed,
as that of `local` never is, from the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.registry import Registry
from ml.core import faults
from ml.core.errors import Problem, Refused
from ml.release import audit
from ml.release.audit import History
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import Declared
from ml.release.promotion.propose import attach


@dataclass(frozen=True)
class RolledBack:
    """The declared version, the one it replaces, and the files written."""

    project: str
    environment: str
    declared: Declared
    replaced: Declared
    written: tuple[Path, ...]


def roll_back(
    backend: Backend, project: str, environment: str = desired_state.LOCAL, why: str = ""
) -> RolledBack:
    """Declare the version before the declared one; `ml release apply` rolls it out.

    Versions that were refused or rolled back are passed over: where the declared one is, the live
    one is declared. Raises Refused when nothing is declared, or nothing good was before.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    with desired_state.project_lock(target.name):
        now = desired_state.read(target.name, environment)
        if now is None:
            raise _nowhere(target.name, environment, "nothing is declared")
        log = audit.history(backend.audit_log, desired_state.endpoint_of(now.model, environment))
        back = _on_branch(target.name, environment, now, log) or _served(backend.registry, now, log)
        if back is None:
            raise _nowhere(target.name, environment, f"nothing served before version {now.version}")
        version = replace(backend.registry.find(back.model, back.version), evidence=back.evidence)
        backend.registry.bring(version)
        beside: list[Path] = []

        def first(file: Path) -> None:
            if environment != desired_state.LOCAL:
                beside.extend(attach(file, environment, version))
            details = {"project": target.name, "environment": environment, "why": why}
            audit.append(
                backend.audit_log, "rollback", {**details, "from": now.version, "to": back.version}
            )

        # A rollback that was killed before the declaration is simply repeated.
        with faults.as_refusals():
            written = desired_state.declare(target.name, environment, back, first)
    return RolledBack(target.name, environment, back, now, (written, *beside))


def _on_branch(project: str, environment: str, now: Declared, log: History) -> Declared | None:
    """The last good version that the branch declared before; None where `now` is not committed."""
    declared = desired_state.on_branch(project, environment)
    if not declared or declared[-1] != now:
        return None
    *before, _ = audit.returnable(declared, lambda each: (each.digest, each.serving))
    return next((each for each in reversed(before) if log.is_good(each)), None)


def _served(registry: Registry, now: Declared, log: History) -> Declared | None:
    """The version that served before, by the audit log."""
    before = list(takewhile(lambda line: not audit.is_declared(line, now), log.served))
    if not before:
        return None
    last = before[-1]
    version = registry.find(str(last["model"]), str(last["version"]))
    decision = str(last["decision"])
    return Declared(
        model=version.model,
        version=version.version,
        digest=str(last["digest"]),
        evidence=version.evidence,
        decision=decision,
        reason=log.reason(decision),
        serving=str(last.get("serving", "")),
    )


def _nowhere(project: str, environment: str, state: str) -> Refused:
    return Refused(
        Problem(
            "nothing-before",
            f"{state} in `{environment}` on this machine",
            "a version that served before the one that is declared",
            f"ml release status {project}",
        )
    )
