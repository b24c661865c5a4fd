"""Rollback: declare the previous version again, as `git revert` of its successor would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ml.backends.registry import Registry
from ml.core import faults
from ml.core.errors import Problem, Refused
from ml.release import audit
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
    registry: Registry, project: str, environment: str = desired_state.LOCAL, why: str = ""
) -> RolledBack:
    """Declare the version that served before the declared one; `ml release apply` rolls it out.

    When the declared version is not live (a gate or its canary refused it), the live one is
    declared. Raises Refused when nothing is declared or nothing served before.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    with desired_state.project_lock(target.name):
        now = desired_state.read(target.name, environment)
        if now is None:
            raise _nowhere(target.name, environment, "nothing is declared")
        log = audit.history(desired_state.endpoint_of(now.model, environment))
        served = log.served
        pairs = [(line["digest"], line.get("serving", "")) for line in served]
        declared = (now.digest, now.serving)
        before = served[: pairs.index(declared)] if declared in pairs else served
        if not before:
            raise _nowhere(target.name, environment, f"nothing served before version {now.version}")
        last = before[-1]
        version = registry.find(str(last["model"]), str(last["version"]))
        decision = str(last["decision"])
        back = Declared(
            model=version.model,
            version=version.version,
            digest=str(last["digest"]),
            evidence=version.evidence,
            decision=decision,
            reason=log.reason(decision),
            serving=str(last.get("serving", "")),
        )
        beside: list[Path] = []

        def first(file: Path) -> None:
            if environment != desired_state.LOCAL:
                beside.append(attach(file, environment, version))
            details = {"project": target.name, "environment": environment, "why": why}
            audit.append("rollback", {**details, "from": now.version, "to": back.version})

        # A rollback that was killed before the declaration is simply repeated.
        with faults.as_refusals():
            written = desired_state.declare(target.name, environment, back, first)
    return RolledBack(target.name, environment, back, now, (written, *beside))


def _nowhere(project: str, environment: str, state: str) -> Refused:
    return Refused(
        Problem(
            "nothing-before",
            f"{state} in `{environment}` on this machine",
            "a version that served before the one that is declared",
            f"ml release status {project}",
        )
    )
