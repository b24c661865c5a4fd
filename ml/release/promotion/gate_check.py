"""Runs the gates on a registered version: evidence, champion, decision, audit line.

A champion that was measured on other data or by other code is evaluated again as the candidate was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ml.backends.base import Backend
from ml.backends.registry import Version
from ml.backends.runs import Run, Watch, unwatched
from ml.core import home, trees
from ml.core.errors import Exit, Problem, Refused
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.evidence import evidence
from ml.release.versions import EVALUATION, MODEL
from ml.specs.plan.plan import AutoMLPlan, CommandPlan, PipelinePlan, SweepPlan
from ml.specs.plan.planning import plan
from ml.specs.sdk.load import load as load_spec
from policies.promotion.decision import Decision, Request, Step
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence
from policies.promotion.gate_settings import Gates, load


@dataclass(frozen=True)
class GateCheck:
    """A decision, the versions compared, and the hash of its audit line ("" without one)."""

    decision: Decision
    candidate: Version
    champion: Version | None
    evidence: Evidence
    audited: str


def check_registered(backend: Backend, model: str, version: str, environment: str) -> GateCheck:
    """Run the gates on a registered version as if it were proposed now.

    A version that is declared in the environment is checked with its declared reason.
    """
    registered = backend.registry.find(model, version)
    project = projects.find(registered.project)
    reason = desired_state.reason_for(project.name, environment, registered.digest)
    return check_gates(
        backend, project, registered, request(backend, registered, environment, reason=reason)
    )


def request(
    backend: Backend,
    version: Version,
    environment: str,
    step: Step = "propose",
    *,
    approved_by: str = "",
    reason: str = "",
    served_before: bool = False,
    serving_changes: bool = False,
    serving: str = "",
) -> Request:
    """The request to promote the version to the environment now.

    `serving` is the digest of the code that is to serve it.
    """
    return Request(
        environment=environment,
        model=version.model,
        version=version.version,
        digest=version.digest,
        step=step,
        now=datetime.now(UTC),
        approved_by=approved_by,
        reason=reason,
        served_before=served_before,
        serving_changes=serving_changes,
        rehearsal=backend.rehearsal,
        served_in=tuple(
            place
            for place in version.served_in(serving)
            # Only of a rehearsal the registry's word is enough.
            if backend.rehearsal
            or desired_state.was_declared(version.project, place, version.digest, serving)
        ),
    )


def check_gates(
    backend: Backend,
    project: Project,
    version: Version,
    request: Request,
    *,
    record: bool = True,
    rival: Version | None = None,
    watch: Watch = unwatched,
) -> GateCheck:
    """Decide about a version; with `record` the decision is appended to the audit log.

    The version is compared with the champion, or with `rival` in its place. That one is scored
    again by the candidate's evaluation when it was measured by other code or on other data.
    Advisories are looked up again, because new ones may exist. A candidate that served there before
    skips both: it is a way back. Raises Refused for a gates.yml that is wrong or looser than the
    floor.
    """
    gates = load_gates(project)
    own = evidence.load(backend, version)
    champion = rival or champion_of(backend, version.model, request.environment)
    if request.served_before:
        against = evidence.load(backend, champion) if champion else None
    else:
        own = evidence.with_advisories(own)
        against = champion_evidence(backend, project, own, champion, version.digest, watch)
    decision = decide(gates, own, against, request)
    line = {"project": project.name, "decision": decision.to_json()}
    audited = audit.append(backend.audit_log, "decision", line) if record else ""
    return GateCheck(decision, version, champion, own, audited)


def load_gates(project: Project) -> Gates:
    """The floor with the project's tighter values; Refused when a file is wrong or looser."""
    return load(project.gates)


def champion_evidence(
    backend: Backend,
    project: Project,
    own: Evidence,
    champion: Version | None,
    digest: str,
    watch: Watch,
) -> Evidence | None:
    """The champion's evidence on the candidate's data, by the same evaluation code; empty when it
    cannot be measured. `digest` is that of the candidate, whose evidence is `own`.
    """
    if champion is None:
        return None
    theirs = evidence.load(backend, champion)
    if champion.digest == digest:
        return theirs
    believed = backend.rehearsal or bool(theirs.attested)
    if believed and _measured_by(theirs) == _measured_by(own):
        return theirs
    try:
        code = own.lineage.evaluation_snapshot or ""
        evaluated = evaluate(backend, project, champion.folder, watch, code)
        return evidence.rescore(backend, theirs, evaluated)
    except (Refused, OSError) as error:
        # The comparing gate fails with this reason.
        return Evidence(version=champion.version, disagreements=(str(error),))


def evaluate(
    backend: Backend, project: Project, model: Path, watch: Watch = unwatched, code: str = ""
) -> Run:
    """Run the project's evaluation of a model; raises Refused with exit code 1 when it fails.

    A command runs with the snapshot of code that has the digest `code`, where that is kept.
    """
    evaluation = evaluation_plan(project, model)
    snapshot = home.snapshots() / code.removeprefix(trees.DIGEST_PREFIX)
    if code and snapshot.is_dir() and isinstance(evaluation, CommandPlan):
        evaluation = replace(evaluation, code=snapshot)
    if refused := backend.refusals(evaluation):
        raise Refused(*refused, exit_code=Exit.CANNOT_HONOUR)
    run = backend.run(replace(evaluation, display_name=f"evaluate {project.name}"), watch)
    if run.status != "Completed":
        why = run.error or Problem("evaluation-failed", f"{run.name} is {run.status}")
        hint = f"its log: {run.folder / 'logs' / 'std_log.txt'}"
        raise Refused(replace(why, hint=why.hint or hint), exit_code=Exit.RUN_FAILED)
    return writer_of(backend, run, EVALUATION) if run.steps else run


def find_evaluation(backend: Backend, project: Project, model: Path) -> Run | None:
    """A pipeline's step that was this evaluation of this model; None when there is none.

    Command, code, environment and data are the same by content, so a new run would give the same
    result.
    """
    return backend.cached(evaluation_plan(project, model), EVALUATION)


def evaluation_plan(project: Project, model: Path) -> CommandPlan | PipelinePlan:
    """The project's evaluate.yml with its `model` set; Refused for another kind of job."""
    evaluation = plan(load_spec(project.evaluate, {f"inputs.{MODEL}": str(model)}))
    if isinstance(evaluation, SweepPlan | AutoMLPlan) or EVALUATION not in evaluation.outputs:
        raise Refused(
            Problem(
                "not-an-evaluation",
                "this job has no output `evaluation`",
                "a command or pipeline job with the input `model` and the output `evaluation`",
                place=evaluation.place,
            )
        )
    return evaluation


def writer_of(backend: Backend, pipeline: Run, output: str) -> Run:
    """The step (the trial, of a sweep) that wrote the pipeline's output; the first to do so."""
    wrote = pipeline.outputs[output].resolve()
    for run in pipeline.below():
        if output in run.outputs and run.outputs[output].resolve() == wrote and not run.steps:
            if not run.reused_from:
                return run
            try:
                return backend.runs.find(run.reused_from)
            except Refused:  # cleaned away since: the step that took it over has all that it had
                return run
    return pipeline


def champion_of(backend: Backend, model: str, environment: str) -> Version | None:
    """The version to beat: the one that serves by the endpoint's own state, else the alias's.

    An alias may be moved by anybody who writes to the registry.
    """
    live = backend.endpoints.live(desired_state.endpoint_of(model, environment))
    if live is not None:
        versions = backend.registry.versions(model)
        served = [each for each in versions if each.digest == live.launch.digest]
        if served:
            return served[-1]
    return backend.registry.champion(model, environment)


def _measured_by(of: Evidence) -> tuple[object, ...]:
    """The data, the units and the evaluation code that evidence was measured by."""
    units = {split: set(units) for split, units in of.outcomes.items()}
    return of.data, units, of.lineage.evaluation_snapshot
