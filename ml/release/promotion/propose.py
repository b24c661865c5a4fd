"""Propose a run: evaluate it, register it, collect evidence, evaluate the gates, declare it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends.attestation import Attestor
from ml.backends.base import Backend
from ml.backends.endpoints import WARM_UP, DeploymentSpec, ModelDeployment, check_deployment
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.backends.runs import Run
from ml.core import faults, files, git, repository
from ml.core.errors import UserError
from ml.release import audit, serving
from ml.release.canary.canary import smoke_fault
from ml.release.comparison import versus
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.declaration.release_file import ReleaseEntry, evidence_path
from ml.release.evidence import cost, evidence, served
from ml.release.evidence.evidence import ATTESTATION
from ml.release.promotion.candidate import choose, train
from ml.release.promotion.gate_check import (
    GateCheck,
    check_before_evaluation,
    check_gates,
    evaluate,
    evaluation_plan,
    load_gates,
    request,
)
from ml.release.versions import EVALUATION, MODEL, store
from policies.promotion.evidence import Latency

# Requests that the latency percentiles are measured on; p99 is then the second slowest.
REQUESTS = 200
# Reported percentiles of the request latencies.
PERCENTILES = (0.50, 0.95, 0.99)


@dataclass(frozen=True)
class Proposal(GateCheck):
    """The gates' decision on a run's model, and what was declared."""

    run: str  # its name; its id if the previous environment's version is proposed
    # Files of the promotion pull request, the declaration first; () if the gates rejected the
    # version or it is the champion already.
    written: tuple[Path, ...]
    unapplied: str | None  # version that was declared until now and never applied
    # A declared, not yet applied version that had to be beaten too.
    pending_version: Version | None


@dataclass(frozen=True)
class _Call:
    """The arguments of a proposal, and the deployment spec of the project's files."""

    backend: Backend
    project: Project
    environment: str
    spec: DeploymentSpec
    progress: Callable[[str], None]
    prices: cost.Prices


def propose(
    backend: Backend,
    project: str,
    run: str | None = None,
    environment: str = "local",
    *,
    reason: str = "",
    progress: Callable[[str], None] = lambda _: None,
    prices: cost.Prices = cost.unknown,
    attestor: Attestor | None = None,
    attestation: bytes | None = None,
) -> Proposal:
    """Evaluate a run's model, register it, evaluate the gates and declare it if they allow it.

    The model is that of `run`, by default of the latest completed sweep or pipeline. With an
    `attestation` it is the attested model, with the evidence that `collect` made here. Without a
    `run`, environments after the first propose the version that the previous environment declares,
    if its evidence is attested; this works from any workspace.

    `reason` is why the model should replace a champion that it does not beat. `prices` returns the
    price of an instance. Without an `attestor` the evidence counts as simulated. A declared version
    that is not applied yet has to be beaten too, so that of two proposals the better one ends as
    champion.

    If a gate rejects the version, the returned Proposal says so. UserError is raised for errors of
    the call or the machine. It is also raised if a gate rejects the model whatever the evaluation
    would measure: then nothing is evaluated or registered.
    """
    target = _project(backend, project, environment)
    samples, spec = target.samples(), target.deployment_spec()
    attested = (
        evidence.keep_attested(backend, target.name, target.endpoint(), attestation)
        if attestation
        else None
    )
    before = None if run or attested else _attested_before(backend, target, environment)
    # The run may be in the workspace of another environment; its model is in the registry.
    chosen = None if before else choose(backend, target, attested.run if attested else run)
    unapplied: str | None = None
    written: tuple[Path, ...] = ()
    with desired_state.project_lock(target.name):
        call = _Call(backend, target, environment, serving.snapshot(spec), progress, prices)
        version = _evidenced(call, chosen, attested, attestor) if chosen else before
        assert version is not None
        entry = desired_state.read(backend, target.name, environment)
        check, pending_version = _judged(call, version, entry, reason)
        if check.decision.allowed:
            unapplied = _unapplied(call, version, entry)
            written = _declared(call, version, check, reason, samples)
    return Proposal(
        **vars(check),
        run=chosen.name if chosen else version.run,
        written=written,
        unapplied=unapplied,
        pending_version=pending_version,
    )


def collect(
    backend: Backend,
    project: str,
    run: str | None,
    environment: str,
    *,
    progress: Callable[[str], None] = lambda _: None,
    prices: cost.Prices = cost.unknown,
) -> Version:
    """Measure and register a run's model, and assemble its evidence here, to be attested.

    Without a `run` the project's training job runs; a backend may reuse its run for this commit. No
    gate is evaluated. Evidence that was attested earlier for this run and commit is reused. Raises
    UserError as `propose` does.
    """
    target = _project(backend, project, environment)
    spec = target.deployment_spec()
    chosen = choose(backend, target, run or train(backend, target, progress).name)
    with desired_state.project_lock(target.name):
        digest = store(chosen.outputs[MODEL])
        call = _Call(backend, target, environment, serving.snapshot(spec), progress, prices)
        attested = _attested(call, digest)
        if attested is not None and attested.run == chosen.id:
            commit = git.ask(backend.root, "rev-parse", "HEAD")
            if evidence.statement(attested).commit == commit:
                return attested
        measured = _measure(call, chosen, digest)
        return evidence.collect(backend, *measured, backend.simulated)


def promotion(backend: Backend, proposal: Proposal, environment: str) -> dict[str, Any]:
    """Return a promotion pull request as JSON: the files, the comparison and the decision."""
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


def _project(backend: Backend, name: str, environment: str) -> Project:
    """Return the project; raise UserError for errors in its files that apply would raise later."""
    desired_state.check_environment(environment)
    project = projects.find(backend.root, name)
    load_gates(project)
    desired_state.strategy(backend, project.name, environment)
    if (shared := backend.registry.shared) and environment in desired_state.TRACKED[1:]:
        shared.demand(environment)  # models are trained in the first environment
    return project


def _attested_before(backend: Backend, project: Project, environment: str) -> Version | None:
    """Return the previous environment's declared version if its evidence is attested, or None."""
    if environment not in desired_state.TRACKED[1:]:
        return None
    earlier = desired_state.TRACKED[desired_state.TRACKED.index(environment) - 1]
    entry = desired_state.read(backend, project.name, earlier)
    if entry is None:
        return None
    version = backend.registry.find(entry.model, entry.version)
    return version if evidence.load(backend, version).attested else None


def _champion(call: _Call, model: str, digest: str) -> Version | None:
    """Return the champion if it has this digest, so that no new measurement is needed; or None."""
    champion = call.backend.registry.champion(model, call.environment)
    return champion if champion and champion.digest == digest else None


def _attested(call: _Call, digest: str) -> Version | None:
    """Return a version with that digest and attested evidence; None if there is none."""
    versions = call.backend.registry.versions(call.spec.endpoint_name)
    same = (version for version in versions if version.digest == digest and version.evidence)
    return next(
        (version for version in same if evidence.load(call.backend, version).attested), None
    )


def _evidenced(
    call: _Call, chosen: Run, attested: Version | None, attestor: Attestor | None
) -> Version:
    """Return the registered version of the run's model, with evidence for today's serving code."""
    digest = store(chosen.outputs[MODEL])
    version = attested or _champion(call, call.spec.endpoint_name, digest)
    if version is None and attestor is None and call.environment != desired_state.LOCAL:
        version = _attested(call, digest)
    if version is not None and _covers_serving_code(call, version):
        return version
    measured = _measure(call, chosen, digest, is_judged=version is None)
    simulated = attestor is None
    collected = evidence.collect(call.backend, *measured, simulated, attestor)
    return call.backend.registry.keep_evidence(measured[0], collected.evidence)


def _covers_serving_code(call: _Call, version: Version) -> bool:
    """Return whether the version can be released with this serving code without measuring again.

    It can if its evidence covers that code. Attested evidence is never measured again here, and
    evidence with mismatches is left to the gates, which reject it.
    """
    stored = evidence.load(call.backend, version)
    return (
        bool(stored.attested or stored.mismatches)
        or stored.serving.deployment_digest == call.spec.snapshot_digest
    )


def _measure(
    call: _Call, chosen: Run, digest: str, is_judged: bool = False
) -> tuple[Version, Run, Run, Latency, Mapping[str, object], Mapping[str, object]]:
    """Register the model and return the version, runs, latency, parity check and cost.

    Outside `local` no cached evaluation is used. With `is_judged`, raise UserError before the
    evaluation if the gates reject the model whatever it measures.
    """
    backend, project, model = call.backend, call.project, call.spec.endpoint_name
    unregistered = Version(model, "", digest, project.name, chosen.id, "")
    evaluated = None
    if call.environment == desired_state.LOCAL and backend.cached:
        # A new run of the same command, code, environment and data would give the same result.
        evaluated = backend.cached(evaluation_plan(project, chosen.outputs[MODEL]), EVALUATION)
    if evaluated is None:
        evaluation = evaluation_plan(project, unregistered.folder)
        if is_judged:
            check_before_evaluation(
                backend, project, unregistered, chosen, evaluation, call.environment
            )
        call.progress("evaluating the model")
        evaluated = evaluate(backend, project, evaluation, call.progress)
    stated = evidence.evaluation_of(evaluated).model
    if stated != model:
        raise UserError.with_code(
            "model-name",
            f"the evaluation is of a model `{stated}`",
            f"`{model}`, the name of the project's endpoint",
            f"set `model` in evaluate.py to {model}, and train again",
        )
    gate = load_gates(project)["serving"]
    strategy = desired_state.strategy(backend, project.name, call.environment)
    pointer = gate.text("prediction") or strategy.prediction
    deployment = serving.model_deployment(call.spec, unregistered, model)
    times, answers = _measured(call, deployment, evaluated, pointer)
    version = backend.registry.register(model, project.name, digest, chosen.id)
    latency = _latency(times, call.spec.instance_type)
    priced = cost.estimate(chosen, latency, call.prices, backend.runs.entry(chosen).lineage)
    return version, chosen, evaluated, latency, answers, priced


def _latency(times: Sequence[float], instance_type: str) -> Latency:
    """Summarise sequential request times (ms) on this machine as latency percentiles."""
    slower = sorted(times)
    percentiles = (slower[min(int(len(slower) * share), len(slower) - 1)] for share in PERCENTILES)
    p50, p95, p99 = percentiles
    mean = sum(slower) / len(slower)
    about = (len(slower), WARM_UP, cost.hardware(), instance_type)
    return Latency(p50, p95, p99, mean, *about)


def _measured(
    call: _Call, deployment: ModelDeployment, evaluated: Run, pointer: str
) -> tuple[list[float], Mapping[str, object]]:
    """Start a server of the candidate; return its latencies in ms and the result of its parity
    check.
    """
    samples = call.project.samples()
    evaluation = evidence.evaluation_of(evaluated)
    parity_check = served.parity_check(evaluated.outputs[EVALUATION], evaluation, pointer)
    served.refuse_faulty(deployment.model_folder)
    call.progress("starting a server of the model on this machine")
    with served.serve(call.backend, deployment) as candidate:
        try:
            for sample in samples:
                if fault := smoke_fault(candidate.score(sample), deployment, sample):
                    raise ValueError(fault)
            call.progress(f"measuring the latency of {REQUESTS} requests")
            times = candidate.measure(samples, REQUESTS)
            call.progress(f"comparing {len(parity_check.rows)} answers with the evaluation")
            return times, {
                **parity_check.run(candidate.score),
                "deployment_digest": deployment.deployment_digest,
            }
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise candidate.failure(
                "candidate-fails",
                f"the candidate's server failed: {error}",
                "a response of this model to every sample request",
                f"the requests: {call.project.requests}",
            ) from None


def _judged(
    call: _Call, version: Version, entry: ReleaseEntry | None, reason: str
) -> tuple[GateCheck, Version | None]:
    """Return the decision of the gates, and the declared version that also had to be beaten."""
    backend, project = call.backend, call.project
    wanted = request(
        backend,
        version,
        call.environment,
        reason=reason,
        serving_changes=_serving_changes(call, entry, version),
        deployment_digest=call.spec.snapshot_digest,
    )
    check = check_gates(backend, project, version, wanted, progress=call.progress)
    pending_version = _pending_version(call, entry)
    if (
        pending_version is None
        or pending_version.digest == version.digest
        or not check.decision.allowed
    ):
        return check, None
    against = check_gates(
        backend, project, version, wanted, pending_version=pending_version, progress=call.progress
    )
    return replace(against, champion=check.champion), pending_version


def _model_deployment(call: _Call, version: Version) -> ModelDeployment:
    name = call.backend.endpoints.name_of(version.model, call.environment)
    return serving.model_deployment(call.spec, version, name)


def _serving_changes(call: _Call, entry: ReleaseEntry | None, version: Version) -> bool:
    """Return whether the release would change the serving code or settings of the same model.

    True if the model is declared or live with another deployment digest, or if a rollout with this
    one was rolled back or withdrawn. False if it is declared with this one and not applied yet.
    """
    deployment = _model_deployment(call, version)
    live = call.backend.endpoints.live(deployment.endpoint)
    state = (entry, live.deployment if live else None)
    same = [side for side in state if side and side.digest == deployment.digest]
    if entry in same and entry.deployment_digest == deployment.deployment_digest:
        history = audit.history(call.backend.audit_log, deployment.endpoint)
        return history.refusal(entry) is not None
    return any(side.deployment_digest != deployment.deployment_digest for side in same)


def _pending_version(call: _Call, entry: ReleaseEntry | None) -> Version | None:
    """Return the declared version that is not applied yet; None if there is none.

    None, too, if it was rolled back, withdrawn or is not in the registry. `ml release rollback`
    removes the declaration of an unwanted one.
    """
    backend = call.backend
    if entry is None or _champion(call, entry.model, entry.digest):
        return None
    name = backend.endpoints.name_of(entry.model, call.environment)
    if audit.history(backend.audit_log, name).refusal(entry) is not None:
        return None
    try:
        return backend.registry.find(entry.model, entry.version)
    except UserError:
        return None


def _unapplied(call: _Call, version: Version, entry: ReleaseEntry | None) -> str | None:
    """Return the declared version; None if it is the proposed one, the champion, or missing."""
    if entry is None or entry.digest == version.digest:
        return None
    return None if _champion(call, entry.model, entry.digest) else entry.version


def _declared(
    call: _Call,
    version: Version,
    check: GateCheck,
    reason: str,
    samples: Sequence[Mapping[str, object]],
) -> tuple[Path, ...]:
    """Declare the version, store its serving code and samples, and return the written files."""
    registry = call.backend.registry
    declares = ReleaseEntry(
        model=version.model,
        version=version.version,
        digest=version.digest,
        evidence=version.evidence,
        decision=check.audited,
        reason=reason,
        deployment_digest=call.spec.snapshot_digest,
    )
    if registry.shared is not None:
        registry.shared.download(version)
    check_deployment(_model_deployment(call, version))
    with faults.as_user_errors():
        serving.store(registry, call.spec, samples)
        release = desired_state.declare(call.backend, call.project.name, call.environment, declares)
        if call.environment == desired_state.LOCAL:
            return (release,)
        return (release, *attach(release, call.environment, version))


def attach(release: Path, environment: str, version: Version | None) -> list[Path]:
    """Copy the evidence and its attestation beside a tracked declaration; return the files.

    The pull request of the promotion contains them. None for `version` removes both.
    """
    to = evidence_path(release, environment)
    attestation = to.with_suffix(f".{ATTESTATION}")
    written = []
    for name, copy in ((EVIDENCE_FILE, to), (ATTESTATION, attestation)):
        files.sweep(copy)
        if version and (source := version.evidence_folder / name).is_file():
            files.replace(copy, source.read_text(encoding="utf-8"))
            written.append(copy)
        else:
            copy.unlink(missing_ok=True)
    return written
