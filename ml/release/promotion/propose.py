"""Propose: score the best run, register its model, gather the evidence, ask the gates, declare."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends.attestation import Attestor
from ml.backends.base import Backend
from ml.backends.deployments import Launch, check_launch
from ml.backends.endpoints import WARM_UP
from ml.backends.registry import EVIDENCE_FILE, Registry, Version
from ml.backends.runs import Filter, Run, Watch, unwatched
from ml.core import documents, faults, files, git, repository
from ml.core.errors import Problem, Refused
from ml.release import audit, serving
from ml.release.canary.canary import smoke_fault
from ml.release.comparison import versus
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.declaration.release_file import Declared, evidence_path
from ml.release.evidence import cost, evidence, machine, served
from ml.release.evidence.evidence import ATTESTATION
from ml.release.promotion.candidate import train
from ml.release.promotion.gate_check import (
    GateCheck,
    check_gates,
    evaluate,
    find_evaluation,
    load_gates,
    request,
    writer_of,
)
from ml.release.serving import Serving
from ml.release.versions import EVALUATION, MODEL, parts, store
from ml.specs.sdk.load import load
from policies.promotion.evidence import Latency

# Requests that the latency percentiles are measured on; p99 is then the second slowest.
REQUESTS = 200
# What every AutoML job calls its model: their schema has no other name.
BEST_MODEL = "best_model"
# Of the times of these requests.
PERCENTILES = (0.50, 0.95, 0.99)


@dataclass(frozen=True)
class Proposal(GateCheck):
    """The gates' decision on the model of a run (its name), and what was declared.

    `written` are the files that a promotion pull request carries, the declaration first; none when
    the gates refused the version or it is the champion already. `unapplied` is a version that was
    declared and not applied, and is no longer declared. `rival` is one that is declared, waits
    to be applied, and was what this one had to beat.
    """

    run: str
    written: tuple[Path, ...]
    unapplied: str | None
    rival: Version | None


def propose(
    backend: Backend,
    project: str,
    run: str | None = None,
    environment: str = "local",
    *,
    reason: str = "",
    watch: Watch = unwatched,
    prices: cost.Prices = cost.unknown,
    attestor: Attestor | None = None,
    attestation: bytes | None = None,
) -> Proposal:
    """Propose the run's model, or that of the latest completed sweep or pipeline.

    With an `attestation`: the model that it is about, with the evidence that `collect` made here.
    Evidence that is attested already counts for the environments after the first, too: without a
    `run` the version that is declared for the one before is proposed there, from any workspace.

    `reason` is why a champion should be replaced by a model that is not shown to beat it, `prices`
    what an instance costs. Without an `attestor` the evidence is of a rehearsal. What is declared
    and waits to be applied has to be beaten too: of two that are proposed at once the better one
    ends as champion. A refusal by a gate is in the Proposal; Refused is raised for what is wrong
    with the call or the machine.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    # What apply would refuse is reported before anything runs.
    load_gates(target)
    desired_state.strategy(target.name, environment)
    samples = target.samples()
    if (shared := backend.registry.shared) and environment in desired_state.TRACKED[1:]:
        shared.demand(environment)  # models are made in the first
    files = target.serving()
    attested = (
        evidence.keep_attested(backend, target.name, target.endpoint(), attestation)
        if attestation
        else None
    )
    before = None if run or attested else _attested_before(backend, target, environment)
    # The run may be in the workspace of another environment; its model is in the registry.
    chosen = None if before else choose(backend, target, attested.run if attested else run)
    with desired_state.project_lock(target.name):
        digest = before.digest if before else store(chosen.outputs[MODEL]) if chosen else ""
        registry = backend.registry
        serves = files.snapshot()
        version = attested or _champion(registry, serves.endpoint, environment, digest) or before
        if version is None and attestor is None and environment != desired_state.LOCAL:
            version = _attested(backend, serves.endpoint, digest)
        if version is None or (chosen and not _answers_by(backend, version, serves)):
            assert chosen is not None
            version = _registered(
                backend, target, environment, serves, chosen, digest, watch, prices, attestor
            )
        declared = desired_state.read(target.name, environment)
        launch = serves.launch(version, backend.endpoints.name_of(version.model, environment))
        wanted = request(
            backend,
            version,
            environment,
            reason=reason,
            serving_changes=_serving_changes(backend, declared, launch),
            serving=serves.digest,
        )
        check = check_gates(backend, target, version, wanted, watch=watch)
        rival = _rival(backend, declared, environment)
        if rival is not None and rival.digest != digest and check.decision.allowed:
            against = check_gates(backend, target, version, wanted, rival=rival, watch=watch)
            check = replace(against, champion=check.champion)
        else:
            rival = None
        written: list[Path] = []
        unapplied = _unapplied(registry, declared, environment, digest)
        if check.decision.allowed:
            declares = Declared(
                model=version.model,
                version=version.version,
                digest=version.digest,
                evidence=version.evidence,
                decision=check.audited,
                reason=reason,
                serving=serves.digest,
            )
            if (shared := registry.shared) is not None:
                shared.bring(version)
            check_launch(launch)
            with faults.as_refusals():
                serving.keep(registry, serves, samples)
                written.append(desired_state.declare(target.name, environment, declares))
                if environment != desired_state.LOCAL:
                    written += attach(written[0], environment, version)
    return Proposal(
        **vars(check),
        run=chosen.name if chosen else version.run,
        written=tuple(written),
        unapplied=unapplied if written else None,
        rival=rival,
    )


def collect(
    backend: Backend,
    project: str,
    run: str | None,
    environment: str,
    *,
    watch: Watch = unwatched,
    prices: cost.Prices = cost.unknown,
) -> Version:
    """Measure and register a run's model, and assemble its evidence here, to be attested.

    Without a `run` it is that of the project's training job, which a backend follows where it has
    run for this commit. No gate is asked. Evidence that was attested for
    this run and this commit before is taken again. Raises Refused as `propose` does.
    """
    desired_state.check_environment(environment)
    target = projects.find(project)
    load_gates(target)
    desired_state.read(target.name, environment)  # report a wrong release.yml before anything runs
    if (shared := backend.registry.shared) and environment in desired_state.TRACKED[1:]:
        shared.demand(environment)
    files = target.serving()
    chosen = choose(backend, target, run or train(backend, target).name)
    with desired_state.project_lock(target.name):
        digest = store(chosen.outputs[MODEL])
        serves = files.snapshot()
        known = _attested(backend, serves.endpoint, digest)
        if known is not None and known.run == chosen.id:
            commit = git.ask(repository.root(), "rev-parse", "HEAD")
            if evidence.statement(known).commit == commit:
                return known
        measured = _measure(backend, target, environment, serves, chosen, digest, watch, prices)
        return evidence.collect(backend, *measured, rehearsal=backend.rehearsal)


def promotion(backend: Backend, proposal: Proposal, environment: str) -> dict[str, Any]:
    """What a promotion pull request consists of, as JSON: the files, and the comparison of `ml
    compare` with the decision of the proposal.
    """
    version = proposal.candidate
    compared = versus(backend, f"{version.model}:{version.version}", None, environment)
    return {
        "project": version.project,
        "environment": environment,
        "model": version.model,
        "version": version.version,
        "outcome": proposal.decision.outcome,
        "files": {
            repository.shown(path): path.read_text(encoding="utf-8") for path in proposal.written
        },
        "comparison": replace(compared, decision=proposal.decision).to_json(),
    }


def _attested(backend: Backend, model: str, digest: str) -> Version | None:
    """The version with that digest whose evidence is attested, which needs no new measurement."""
    same = (each for each in backend.registry.versions(model) if each.digest == digest)
    known = (each for each in same if each.evidence and evidence.load(backend, each).attested)
    return next(known, None)


def _attested_before(backend: Backend, project: Project, environment: str) -> Version | None:
    """The version declared for the environment before, if its evidence is attested."""
    if environment not in desired_state.TRACKED[1:]:
        return None
    earlier = desired_state.TRACKED[desired_state.TRACKED.index(environment) - 1]
    declared = desired_state.read(project.name, earlier)
    if declared is None:
        return None
    version = backend.registry.find(declared.model, declared.version)
    return version if evidence.load(backend, version).attested else None


def _answers_by(backend: Backend, version: Version, serves: Serving) -> bool:
    """Whether the version needs no new measurement to be served so: its evidence is of that serving
    code, or says something that only the gates or a workflow can answer.
    """
    own = evidence.load(backend, version)
    return bool(own.attested or own.disagreements) or own.serving.code == serves.digest


def _rival(backend: Backend, declared: Declared | None, environment: str) -> Version | None:
    """What is declared and not champion yet; None when it cannot be, or its canary refused it.

    `ml release rollback` takes one back that is in the way, and so does git where that declares.
    """
    if declared is None:
        return None
    champion = backend.registry.champion(declared.model, environment)
    if champion is not None and champion.digest == declared.digest:
        return None
    name = backend.endpoints.name_of(declared.model, environment)
    if audit.history(backend.audit_log, name).refusal(declared) is not None:
        return None
    try:
        return backend.registry.find(declared.model, declared.version)
    except Refused:
        return None


def _serving_changes(backend: Backend, declared: Declared | None, launch: Launch) -> bool:
    """Whether the model is declared or live by other code or settings, or was refused by these.

    Not where it is declared by these and waits to be applied: nothing would change.
    """
    live = backend.endpoints.live(launch.endpoint)
    state = (declared, live.launch if live else None)
    same = [each for each in state if each and each.digest == launch.digest]
    if declared in same and declared.serving == launch.serving:
        history = audit.history(backend.audit_log, launch.endpoint)
        return history.refusal(declared) is not None
    return any(each.serving != launch.serving for each in same)


def _champion(registry: Registry, model: str, environment: str, digest: str) -> Version | None:
    """The champion when it is the same model, which needs no new measurement."""
    champion = registry.champion(model, environment)
    return champion if champion and champion.digest == digest else None


def _registered(
    backend: Backend,
    project: Project,
    environment: str,
    serves: Serving,
    chosen: Run,
    digest: str,
    watch: Watch,
    prices: cost.Prices,
    attestor: Attestor | None,
) -> Version:
    """Measure everything, then register the version with its evidence."""
    measured = _measure(backend, project, environment, serves, chosen, digest, watch, prices)
    return evidence.keep(backend, *measured, attestor)


def _measure(
    backend: Backend,
    project: Project,
    environment: str,
    serves: Serving,
    chosen: Run,
    digest: str,
    watch: Watch,
    prices: cost.Prices,
) -> tuple[Version, Run, Run, Latency, Mapping[str, object], Mapping[str, object]]:
    """The registered version and what evidence is made of: runs, latency, how it answered evaluated
    rows, cost.

    Beyond `local` only an evaluation that runs now counts.
    """
    model = serves.endpoint
    unregistered = Version(model, "", digest, project.name, chosen.id, "")
    evaluated = None
    if environment == desired_state.LOCAL:
        evaluated = find_evaluation(backend, project, chosen.outputs[MODEL])
    evaluated = evaluated or evaluate(backend, project, unregistered.folder, watch)
    stated = evidence.evaluation_of(evaluated).model
    if stated != model:
        raise Refused(
            Problem(
                "model-name",
                f"the evaluation is of a model `{stated}`",
                f"`{model}`, the endpoint that serves the project's model",
            )
        )
    gate = load_gates(project)["serving"]
    pointer = (
        gate.text("prediction") or desired_state.strategy(project.name, environment).prediction
    )
    times, answers = _measured(
        backend, project, serves.launch(unregistered, model), evaluated, pointer
    )
    version = backend.registry.register(model, project.name, digest, chosen.id)
    latency = _latency(times, serves.instance_type)
    priced = cost.of(chosen, latency, prices, backend.runs.entry(chosen).lineage)
    return version, chosen, evaluated, latency, answers, priced


def _latency(times: Sequence[float], instance_type: str) -> Latency:
    """Of the milliseconds of requests, one after another, on this machine."""
    slower = sorted(times)
    percentiles = (slower[min(int(len(slower) * of), len(slower) - 1)] for of in PERCENTILES)
    p50, p95, p99 = percentiles
    mean = sum(slower) / len(slower)
    about = (len(slower), WARM_UP, machine.hardware(), instance_type)
    return Latency(p50, p95, p99, mean, *about)


def attach(release: Path, environment: str, version: Version) -> list[Path]:
    """Copy the evidence beside a tracked declaration, for the pull request that carries it.

    Its attestation comes with it, if it has one; the files written.
    """
    to = evidence_path(release, environment)
    attestation = to.with_suffix(f".{ATTESTATION}")
    written = []
    for name, copy in ((EVIDENCE_FILE, to), (ATTESTATION, attestation)):
        files.sweep(copy)
        if (kept := version.evidence_folder / name).is_file():
            files.replace(copy, kept.read_text(encoding="utf-8"))
            written.append(copy)
        else:
            copy.unlink(missing_ok=True)
    return written


def _measured(
    backend: Backend, project: Project, launch: Launch, evaluated: Run, pointer: str
) -> tuple[list[float], Mapping[str, object]]:
    """The milliseconds of requests to the candidate, served to be measured, and how it answers
    evaluated rows.
    """
    samples = project.samples()
    of = evidence.evaluation_of(evaluated)
    examination = served.examination(evaluated.outputs[EVALUATION], of, pointer)
    with served.serve(backend, launch) as candidate:
        try:
            for sample in samples:
                if fault := smoke_fault(candidate.score(sample), launch, sample):
                    raise ValueError(fault)
            times = candidate.measure(samples, REQUESTS)
            return times, {**examination.of(candidate.score), "code": launch.serving}
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise candidate.failure(
                "candidate-fails",
                f"the served candidate does not answer: {error}",
                "an answer of this model to every sample request",
                f"the requests: {project.requests}",
            ) from None


def _unapplied(
    registry: Registry, declared: Declared | None, environment: str, digest: str
) -> str | None:
    """The declared version that is not the champion, unless it is the one proposed."""
    if declared is None or declared.digest == digest:
        return None
    champion = registry.champion(declared.model, environment)
    return None if champion and champion.digest == declared.digest else declared.version


def choose(backend: Backend, project: Project, reference: str | None) -> Run:
    """The run to propose: the one asked for, else the latest sweep or pipeline that completed.

    A sweep stands for its best trial, and a pipeline for the run that wrote its `model`. Raises
    Refused when there is none, when it did not complete, or when it left no model.
    """
    run = backend.runs.find(reference) if reference else _latest(backend, project)
    if run.trials and run.best is None:
        raise _unfit(run, "has no completed trial")
    if run.steps and run.status == "Completed" and MODEL in run.outputs:
        run = writer_of(backend, run, MODEL)
    elif run.best is not None:
        run = run.trial(run.best)
    if run.status != "Completed":
        raise _unfit(run, f"is {run.status}")
    run = _named_by_pipeline(backend, run)
    if MODEL not in run.outputs and BEST_MODEL in run.outputs:
        run = replace(run, outputs={**run.outputs, MODEL: run.outputs[BEST_MODEL]})
    if MODEL not in run.outputs:
        raise _unfit(run, "has no output `model`")
    return run


def _named_by_pipeline(backend: Backend, run: Run) -> Run:
    """The run; a step that calls its model otherwise has it by the name in its pipeline."""
    above = backend.runs.parent(run) if MODEL not in run.outputs else None
    while above is not None:
        if above.steps and MODEL in above.outputs:
            writer = writer_of(backend, above, MODEL)
            return writer if writer.id == run.id else run
        above = backend.runs.parent(above)
    return run


def _latest(backend: Backend, project: Project) -> Run:
    # A run belongs to the project when its experiment is that of the evaluation.
    experiment = str(load(project.evaluate).get("experiment_name"))
    completed = Filter(experiment=experiment, statuses=("Completed",))
    candidates = [
        entry.run
        for entry in completed.apply(backend.runs.entries())
        if entry.run.trials or (entry.run.steps and MODEL in entry.run.outputs)
    ]
    if not candidates:
        raise Refused(
            Problem(
                "no-candidate",
                f"no sweep or pipeline of the experiment `{experiment}` has completed on this "
                "machine",
                "a completed one, or a run named with --run",
                f"ml run {_sweep_of(project, experiment)}",
            )
        )
    return max(candidates, key=lambda run: run.started)


def _sweep_of(project: Project, experiment: str) -> str:
    """The path of a sweep or pipeline job of that experiment, for a hint."""
    for path in repository.yaml_files(project.folder / "jobs"):
        job = documents.read(path)
        is_kind = path != project.evaluate and job.get("type") in ("sweep", "pipeline")
        if is_kind and job.get("experiment_name") == experiment:
            return repository.shown(path)
    return repository.shown(project.folder / "jobs") + "/SWEEP.yml"


def _unfit(run: Run, why: str) -> Refused:
    return Refused(
        Problem(
            "unfit-run",
            f"the run `{run.name}` {why}",
            "a completed run with the output `model`",
            # A step's model that the pipeline does not pass on.
            "".join(f"--run {part.name}; " for part in parts(run, MODEL) if part != run)
            + "name another with --run",
        )
    )
