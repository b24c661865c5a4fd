"""Evaluate the gates on a registered version: evidence, champion, decision, audit line.

A champion that was measured on other data is evaluated again on the candidate's data.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ml.backends import snapshot
from ml.backends.base import Backend
from ml.backends.model_registry import Version
from ml.backends.runs import LOG_FOLLOWS, STARTED_BY, Run, narrated
from ml.core import git, home, trees
from ml.core.errors import Exit, Problem, UserError
from ml.release import audit, serving
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.evidence import evidence, served
from ml.release.versions import EVALUATION, MODEL
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import AutoMLPlan, CommandPlan, PipelinePlan, SweepPlan
from ml.specs.sdk.load import load as load_spec
from policies.promotion.champion_gates import find_invalid_entry, suggest_invalid_entry
from policies.promotion.decision import VALIDATION, Decision, Request, Step, real
from policies.promotion.engine import RELEASED_RULES, RUN_RULES, decide
from policies.promotion.evidence import Evidence
from policies.promotion.gate import Gates
from policies.promotion.gate_settings import load

Evaluation = CommandPlan | PipelinePlan


@dataclass(frozen=True)
class GateCheck:
    """The decision of the gates, and the versions that were compared."""

    decision: Decision
    candidate: Version
    champion: Version | None
    evidence: Evidence  # of the candidate
    audited: str  # hash of the decision's line in the audit log, "" without one


def check_registered(backend: Backend, model: str, version: str, environment: str) -> GateCheck:
    """Evaluate the gates on a registered version as if it were proposed now.

    If the environment declares it, the declared reason is used.
    """
    registered = backend.registry.find(model, version)
    project = projects.find(backend.root, registered.project)
    reason = desired_state.reason_for(backend, project.name, environment, registered.digest)
    return check_gates(
        backend, project, registered, request(backend, registered, environment, reason=reason)
    )


@dataclass(frozen=True)
class Released:
    """The decision on a project's champion by today's gates."""

    project: str
    decision: Decision | None = None  # None if there is an error
    error: str = ""  # why the champion could not be judged

    def to_json(self) -> Mapping[str, object]:
        """Return JSON-compatible values, as `ml gate --released --json` prints them."""
        return {**vars(self), "decision": self.decision and self.decision.to_json()}


def check_released(backend: Backend, environment: str) -> Iterator[Released]:
    """Evaluate today's gates on each project's champion in the environment; yield the decisions.

    The stored evidence is used. Gates that concern only a promotion are left out (freshness,
    comparisons, sign-off). Nothing is trained, recorded or changed.
    """
    for project in projects.every(backend.root):
        try:
            model = project.model()
            champion = champion_of(backend, model, environment) if model else None
            if champion is not None:
                stated = evidence.with_advisories(backend.root, evidence.load(backend, champion))
                proposal = request(backend, champion, environment)
                decision = decide(load_gates(project), stated, None, proposal, RELEASED_RULES)
                yield Released(project.name, decision)
        except UserError as refused:
            yield Released(project.name, error=str(refused))


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
    deployment_digest: str = "",
) -> Request:
    """Return the request to promote the version to the environment now.

    `deployment_digest` is the digest of the serving code and settings to release it with.
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
        simulated=backend.simulated,
        deployment_digest=deployment_digest,
        served_in=tuple(
            place
            for place in version.served_in(deployment_digest)
            # For real environments, git must confirm what the registry records.
            if backend.simulated
            or desired_state.was_declared(
                backend, version.project, place, version.digest, deployment_digest
            )
        ),
    )


def check_gates(
    backend: Backend,
    project: Project,
    version: Version,
    request: Request,
    *,
    record: bool = True,
    pending_version: Version | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> GateCheck:
    """Evaluate the gates on a version; with `record` append the decision to the audit log.

    The version is compared with `pending_version` if given, else with the champion. That version is
    scored again if it was measured on other data or rows. Advisories are looked up again, because
    new ones may exist. Both steps are skipped for a rollback (`request.served_before`). Raises
    UserError for a gates.yml that is invalid or looser than the policy.
    """
    gates = load_gates(project)
    candidate = evidence.load(backend, version)
    current_champion = champion_of(
        backend, version.model, request.environment, request.served_before
    )
    champion, request = version_to_beat(gates, request, pending_version, current_champion)
    if request.served_before:
        against = evidence.load(backend, champion) if champion else None
    else:
        candidate = evidence.with_advisories(backend.root, candidate)
        against = champion_evidence(
            backend, project, candidate, version.evidence_folder, champion, version.digest, progress
        )
    decision = decide(gates, candidate, against, request)
    line = {"project": project.name, "decision": decision.to_json()}
    audited = audit.append(backend.audit_log, "decision", line) if record else ""
    return GateCheck(decision, version, pending_version or current_champion, candidate, audited)


def version_to_beat(
    gates: Gates, request: Request, *versions: Version | None
) -> tuple[Version | None, Request]:
    """Return the version to beat, and the request with the invalid versions in `set_aside`.

    It is the first of `versions` that gates.yml does not list as invalid, or None. The candidate's
    own model never counts as invalid.
    """
    valid, stated = None, []
    for version in filter(None, versions):
        is_own = version.digest == request.digest
        why = "" if is_own else find_invalid_entry(gates, version.digest, request.day)
        stated += [why] if why else []
        valid = valid if why else valid or version
    return valid, replace(request, set_aside="; ".join(dict.fromkeys(stated)))


def check_before_evaluation(
    backend: Backend,
    project: Project,
    version: Version,
    trained: Run,
    evaluation: Evaluation,
    environment: str,
) -> None:
    """Evaluate the gates whose result does not depend on the `evaluation` that follows.

    Raises UserError with exit code 3 if one rejects the model. A gate with a waiver for one version
    is skipped here: the version's number is unknown until it is registered.
    """
    gates, commit = load_gates(project), trees.commit(backend.root)
    copies = [part.folder for part in snapshot.of_plan(evaluation).values() if part]
    dirty = commit is None or not all(map(commit.has_folder, copies))
    stated = evidence.before_evaluation(backend, version, trained, commit, dirty)
    rules = {
        name: rule
        for name, rule in RUN_RULES.items()
        if not any(waiver.version for waiver in gates[name].waivers)
    }
    decision = decide(gates, stated, None, request(backend, version, environment), rules)
    if refused := [result for result in decision.results if result.blocks]:
        numbers = [registered.version for registered in backend.registry.versions(version.model)]
        following = 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)
        is_dirty = stated.lineage.dirty is not False
        commit_it = f"commit it{' and train again, a run has the code of its start' * is_dirty}"
        ways = {
            "supply-chain": "correct the packages, or set MLOPS_ADVISORIES to the export of `make "
            "advisories`; then repeat the command",
            "lineage": _why_not_git(backend.root) or commit_it,
            "format": "save the model in an allowed format, or, for this version alone, write into "
            f"gates.yml: waivers: [{{gate: format, item: FILE, version: {following}, owner: NAME, "
            "expires: DATE, reason: WHY}]",
        }
        problems = [
            Problem(
                "gate-failed",
                f"{result.gate}: {result.actual}",
                result.required,
                "; ".join(
                    filter(None, (result.why, ways.get(result.gate, "correct it and train again")))
                ),
            )
            for result in refused
        ]
        raise UserError(*problems, exit_code=Exit.GATE_SAID_NO)


def _why_not_git(root: Path) -> str:
    """Return why git cannot read this folder, with the next command; "" if it can."""
    try:
        git.repository_of(root)
    except UserError as error:
        return f"{error.problems[0].actual}: {error.problems[0].hint}, and train again"
    return ""


def load_gates(project: Project) -> Gates:
    """Return the organisation policy with the project's tighter values.

    Raise UserError if a file is invalid, or if the project's is looser than the policy.
    """
    return load(project.gates)


def champion_evidence(
    backend: Backend,
    project: Project,
    candidate: Evidence,
    rows: Path,
    champion: Version | None,
    digest: str,
    progress: Callable[[str], None],
) -> Evidence | None:
    """Return the champion's evidence on the candidate's data; None without a champion.

    Its stored predictions are used if they cover the same data, rows and labels. Otherwise the
    champion is evaluated on the candidate's data: by its own evaluation code or, if that fails, by
    requests to its own scoring code, and at last by the candidate's evaluation code. If all fail,
    the evidence is empty with the reason in `mismatches`. A champion trained with other `folds` may
    have seen these rows and cannot be measured.
    `candidate` and `digest` are the candidate's evidence and digest; `rows` is the folder with the
    files of its evaluation.
    """
    if champion is None:
        return None
    theirs = evidence.load(backend, champion)
    if champion.digest == digest:
        return theirs
    believed = backend.simulated or bool(theirs.attested)
    if believed and _measured_by(theirs) == _measured_by(candidate):
        return evidence.by_metric_of(candidate, theirs, champion.evidence_folder)
    version = f"version {champion.version}"
    if theirs.evaluation.out_of_fold != candidate.evaluation.out_of_fold:
        # It may have learnt from the rows that it would have to predict.
        was, now = (
            max(map(real, side.evaluation.out_of_fold.values()), default=0)
            for side in (theirs, candidate)
        )
        wrong = (
            f"{version} was measured with `folds: {was:g}` and this one with `folds: {now:g}` (an "
            "AutoML model always with 0), so it may have learnt from these rows: set `folds` in "
            f"the schema as it was, or set {version} aside in gates.yml: "
            f"{suggest_invalid_entry(champion.version, champion.digest)}"
        )
        return Evidence(version=champion.version, digest=champion.digest, mismatches=(wrong,))
    own_code, their_code = (side.lineage.evaluation_snapshot or "" for side in (candidate, theirs))
    is_kept = believed and their_code != "" and _snapshot(their_code).is_dir()
    scored = partial(_scored_again, backend, project, candidate, champion, theirs, progress)
    ways = [partial(scored, their_code)] if is_kept else []
    ways += (
        [partial(_requested_again, backend, candidate, rows, champion, theirs)] if believed else []
    )
    ways += [] if is_kept and their_code == own_code else [partial(scored, own_code)]
    faults = []
    for measured in ways:
        progress(f"evaluating {version} again, on the data of the candidate")
        try:
            served.refuse_faulty(champion.folder)
            again = measured()
            if again.labels and _tested(again) == _tested(candidate):
                return again
            faults.append("the new evaluation has other rows or other labels")
        except (UserError, ValueError, OSError, http.client.HTTPException) as error:
            fault = error.problems[0].actual if isinstance(error, UserError) else str(error)
            faults.append(_on_one_line(fault))
    # The gates that compare with the champion fail with this reason.
    data = ", ".join(str(dataset.asset) for dataset in theirs.data.values()) or "its data"
    wrong = (
        f"{version} was measured on other data or rows and cannot be measured on these "
        f"({'; '.join(dict.fromkeys(faults))}): first propose the new model on {data}, where "
        "stored predictions are compared, and then the new data"
    )
    return Evidence(version=champion.version, digest=champion.digest, mismatches=(wrong,))


def _on_one_line(fault: str) -> str:
    """Return the first line of an error text, and the error line of the log that follows it."""
    head, _, log = fault.partition(LOG_FOLLOWS)
    lines = [line.strip(" |") for line in log.splitlines() if line.strip(" |")]
    error = next((line for line in lines if line.startswith("error[")), "".join(lines[-1:]))
    return ": ".join(filter(None, [head.partition("\n")[0], error]))


def _tested(candidate: Evidence) -> Mapping[str, Mapping[str, str]]:
    """Return the labels by unit, of every split but the validation split."""
    return {split: labels for split, labels in candidate.labels.items() if split != VALIDATION}


def _scored_again(
    backend: Backend,
    project: Project,
    candidate: Evidence,
    champion: Version,
    theirs: Evidence,
    progress: Callable[[str], None],
    code: str,
) -> Evidence:
    """Return the champion's evidence, measured by the evaluation code of the snapshot `code`."""
    evaluation = evaluation_plan(project, champion.folder)
    evaluated = evaluate(backend, project, evaluation, progress, code)
    again = evidence.rescore(backend, theirs, evaluated)
    return evidence.by_metric_of(candidate, again, evaluated.outputs[EVALUATION])


def _requested_again(
    backend: Backend, candidate: Evidence, rows: Path, champion: Version, theirs: Evidence
) -> Evidence:
    """Return the champion's evidence, measured by requests to its stored serving code."""
    digest = theirs.serving.deployment_digest or ""
    if not digest or (spec := serving.fetch(backend.registry, champion.model, digest)) is None:
        raise ValueError("the serving code that it was measured with is not kept")
    return served.champion_on(backend, candidate, rows, champion, theirs, spec)


def _snapshot(code: str) -> Path:
    return home.snapshots() / code.removeprefix(trees.DIGEST_PREFIX)


def evaluate(
    backend: Backend,
    project: Project,
    evaluation: Evaluation,
    progress: Callable[[str], None] = lambda _: None,
    code: str = "",
) -> Run:
    """Run the project's evaluation of a model; raises UserError with exit code 1 when it fails.

    A command job uses the code snapshot with the digest `code`, if that is still stored.
    """
    if code and _snapshot(code).is_dir() and isinstance(evaluation, CommandPlan):
        evaluation = replace(evaluation, code=_snapshot(code))
    if refused := backend.refusals(evaluation):
        raise UserError(*refused, exit_code=Exit.CANNOT_HONOUR)
    tags = {**evaluation.tags, STARTED_BY: "release"}
    evaluation = replace(evaluation, display_name=f"evaluate {project.name}", tags=tags)
    run = backend.run(evaluation, narrated(progress))
    if run.status != "Completed":
        actual = f"the evaluation {run.name} is {run.status}"
        why = run.error or Problem("evaluation-failed", actual)
        hint = f"its log: {run.folder / 'logs' / 'std_log.txt'}"
        raise UserError(replace(why, hint=why.hint or hint), exit_code=Exit.RUN_FAILED)
    return writer_of(backend, run, EVALUATION) if run.steps else run


def evaluation_plan(project: Project, model: Path) -> Evaluation:
    """Return the project's evaluate.yml with its `model` set.

    Raise UserError for another kind of job.
    """
    evaluation = plan(load_spec(project.evaluate, {f"inputs.{MODEL}": str(model)}))
    if isinstance(evaluation, SweepPlan | AutoMLPlan) or EVALUATION not in evaluation.outputs:
        raise UserError.with_code(
            "not-an-evaluation",
            "this job has no output `evaluation`",
            "a command or pipeline job with the input `model`",
            "add the output `evaluation` to the job",
            place=evaluation.place,
        )
    return evaluation


def writer_of(backend: Backend, pipeline: Run, output: str) -> Run:
    """Return the step or best trial that wrote the pipeline's output, under the output's name."""
    writer = backend.runs.writer(pipeline, output)
    if writer.trials and writer.best is not None:
        writer = writer.trial(writer.best)
    return replace(writer, outputs={output: pipeline.outputs[output]})


def champion_of(
    backend: Backend, model: str, environment: str, is_rollback: bool = False
) -> Version | None:
    """Return the version to beat: the served one, else the one with the champion alias, or None.

    The endpoint counts first because anybody with write access to the registry can move an alias or
    delete a version. Raises UserError if the registry lacks the served version, unless this is a
    rollback (`is_rollback`).
    """
    name = backend.endpoints.name_of(model, environment)
    live = backend.endpoints.live(name)
    if live is not None:
        versions = backend.registry.versions(model)
        served = [candidate for candidate in versions if candidate.digest == live.deployment.digest]
        if served:
            return served[-1]
        if not is_rollback:
            raise UserError.with_code(
                "champion-unknown",
                f"`{name}` serves {live.deployment.digest[:19]}, which no version of `{model}` in "
                "the registry has",
                "a registered version with the digest that the endpoint serves",
                "find out who removed it or changed its tags, and register it again; or "
                "`ml release rollback`",
                exit_code=Exit.GATE_SAID_NO,
            )
    return backend.registry.champion(model, environment)


def _measured_by(measured: Evidence) -> tuple[object, ...]:
    """Return a key for comparing what evidence was measured on: task, data, rows and labels."""
    return (
        measured.evaluation.task,
        {name: data.sha256 for name, data in measured.data.items()},
        measured.labels,
    )
