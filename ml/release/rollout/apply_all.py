"""Apply to an environment: every project with a version declared for it, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from ml.backends.base import Backend
from ml.core.errors import Exit, Problem, UserError
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.rollout.apply import Applied


@dataclass(frozen=True)
class Result:
    """The result of an apply for one project."""

    project: str
    environment: str
    model: str
    version: str
    decision: str
    approved_by: str
    # "rolled-back": its canary or start failed, now or in an earlier attempt at this declaration;
    # "failed": an error that is not about the version; the others as in `Applied`.
    outcome: Literal["applied", "unchanged", "rejected", "rolled-back", "failed"]
    exit_code: int
    serving: str | None  # version that serves now; None if none does
    serving_digest: str | None  # digest of its model
    gates: Sequence[Mapping[str, str]] = ()  # `gate`, `actual`, `required` of each that rejected it
    problems: Sequence[Problem] = ()
    canary: Mapping[str, object] | None = None  # figures of the canary that rolled it back

    def to_json(self) -> Mapping[str, object]:
        """Return the result as JSON-compatible values."""
        problems = [
            {**asdict(problem), "place": str(problem.place) if problem.place else None}
            for problem in self.problems
        ]
        return {**asdict(self), "problems": problems}


def apply_all(
    backend: Backend,
    environment: str,
    approved_by: str,
    apply: Callable[[str], Applied | None],
) -> Sequence[Result]:
    """Apply each project in turn; a failure of one does not stop the others.

    `apply` takes a project and calls `ml.release.rollout.apply.apply`. A declaration that cannot be
    read counts as a failure of its project.
    """
    results = []
    releasable = {project.name for project in projects.every(backend.root)}
    for project in desired_state.projects(backend):
        if project not in releasable:
            continue
        report = partial(Result, project, environment, approved_by=approved_by)
        try:
            entry = desired_state.read(backend, project, environment)
        except UserError as refused:
            results.append(
                report(
                    model="",
                    version="",
                    decision="",
                    outcome="failed",
                    exit_code=int(refused.exit_code),
                    serving=None,
                    serving_digest=None,
                    problems=refused.problems,
                )
            )
            continue
        if entry is not None:
            about = partial(report, entry.model, entry.version, entry.decision)
            results.append(_result(backend, project, environment, entry, about, apply))
    return results


def _result(
    backend: Backend,
    project: str,
    environment: str,
    entry: ReleaseEntry,
    report: Callable[..., Result],
    apply: Callable[[str], Applied | None],
) -> Result:
    name = backend.endpoints.name_of(entry.model, environment)
    outcome: str
    gates: Sequence[Mapping[str, str]] = ()
    problems: Sequence[Problem] = ()
    figures = None
    try:
        applied = apply(project)
        # None: another process has removed the declaration since it was read.
        outcome = applied.outcome if applied else "unchanged"
        code = Exit.GATE_SAID_NO if outcome == "rejected" else Exit.DONE
        if applied and outcome == "rejected":
            gates = [
                {"gate": result.gate, "actual": result.actual, "required": result.required}
                for result in applied.decision.blocking
            ]
    except UserError as refused:
        problems, code, line = refused.problems, refused.exit_code, None
        with suppress(UserError):  # `refused` matters more than an unreadable audit log
            line = audit.history(backend.audit_log, name).refusal(entry)
        if line is not None and line["event"] == audit.ROLLED_BACK:
            outcome = "rolled-back"
            canary = line.get("canary")
            figures = dict(canary) if isinstance(canary, Mapping) else None
        else:
            outcome = "rejected" if code == Exit.GATE_SAID_NO else "failed"
    live = None
    try:
        live = backend.endpoints.live(name)
    except UserError as refused:
        outcome = outcome if code else "failed"
        problems, code = [*problems, *refused.problems], code or refused.exit_code
    return report(
        outcome=outcome,
        exit_code=int(code),
        serving=live.deployment.version if live else None,
        serving_digest=live.deployment.digest if live else None,
        gates=gates,
        problems=problems,
        canary=figures,
    )
