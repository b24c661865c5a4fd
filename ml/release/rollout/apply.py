"""Apply: bring an environment to its desired state.

The live version (blue) serves until the declared one (green) has passed its canary. The audit log
records every attempt and its result, the endpoint's state the serving deployments. Leftovers of a
killed apply are removed first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ml.backends.base import Backend
from ml.backends.endpoints import DeploymentSpec, Live, ModelDeployment, Router, Server, reserved
from ml.backends.model_registry import Version
from ml.core.errors import Exit, Place, UserError
from ml.release import audit, serving
from ml.release.audit import APPLIED, ROLLED_BACK, History
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state, projects
from ml.release.declaration.projects import Project
from ml.release.declaration.release_file import (
    ReleaseEntry,
    Strategy,
    evidence_path,
    evidence_problem,
    other_project,
)
from ml.release.evidence import served
from ml.release.evidence.served import ParityCheck
from ml.release.promotion.gate_check import GateCheck, check_gates, load_gates, request
from policies.promotion.decision import Decision, Request, Step
from policies.promotion.measurements import by_precision

# Codes of failures caused by green: the version is not tried again. The machine causes the others.
FAULTS_OF_GREEN = ("server-crashed", "smoke-failed", "too-slow", "prediction-mismatch")


@dataclass(frozen=True)
class Acceptance:
    """How the new deployment is tested before it gets all the traffic."""

    samples: Sequence[Mapping[str, object]]
    strategy: Strategy
    # (requests, ms) to measure the deployment; None if the gate `latency` already did.
    latency_limit: tuple[int, float] | None
    # The evaluated rows and the tolerance; None if an equivalent server was already checked.
    parity_check: tuple[ParityCheck, float] | None
    # The response fields that green may add, and why other declared ones are not valid today.
    new_fields: Sequence[str]
    expired: Sequence[str]


@dataclass(frozen=True)
class RolloutPlan:
    """A rollout to carry out: the declared version, its tests, the environment's present state."""

    backend: Backend
    project: str
    environment: str
    entry: ReleaseEntry
    version: Version
    spec: DeploymentSpec
    deployment: ModelDeployment
    acceptance: Acceptance
    # The person who signs off.
    approved_by: str
    check: GateCheck
    # The endpoint's history from the audit log.
    history: History
    live: Live | None
    # Whether the version served here before.
    is_rollback: bool

    @property
    def differences(self) -> Sequence[str]:
        """Return a sentence for each difference from the live serving code and settings."""
        before = serving.find(self.live.deployment.deployment_digest) if self.live else None
        return tuple(serving.changes(before, self.spec)) if before else ()

    @property
    def is_champion(self) -> bool:
        """True if the declared version is the environment's champion already."""
        return self.check.decision.outcome == "already-champion"

    @property
    def serves(self) -> bool:
        """True if the declared version serves, even if an apply was killed after its switch."""
        return self.live is not None and _same(self.live.deployment, self.deployment)

    @property
    def refusal(self) -> UserError | None:
        """The error if the version was rolled back before and not proposed again; else None."""
        line = self.history.rolled_back(self.deployment, self.entry.decision)
        if line is None:
            return None
        back = (
            "; to return to the version before, or to none: ml release rollback "
            f"{self.project} --env {self.environment} --on {self.backend.name}"
        ) * (not self.check.decision.request.set_aside)
        return audit.refused_before(
            line,
            "a version that was neither rolled back nor withdrawn",
            "propose another, or the same again: "
            f"{_proposal(self.project, self.version, self.environment)}{back}",
        )

    def is_current(self) -> bool:
        """Return whether release.yml still declares this version."""
        return desired_state.read(self.backend, self.project, self.environment) == self.entry


@dataclass(frozen=True)
class Applied:
    """The result of an apply."""

    # "applied": the declared version is live now; "unchanged": it was live before;
    # "rejected": a gate failed and nothing was changed.
    outcome: Literal["applied", "unchanged", "rejected"]
    rollout: RolloutPlan
    router: Router | None = None
    started: bool = False  # whether a server was started
    canary: Outcome | None = None  # None without a canary

    @property
    def version(self) -> Version:
        """The declared version."""
        return self.rollout.version

    @property
    def decision(self) -> Decision:
        """The decision of the gates."""
        return self.rollout.check.decision

    @property
    def replaced(self) -> Version | None:
        """The previous champion; None if there was none."""
        return self.rollout.check.champion


def apply(
    backend: Backend,
    project: str,
    environment: str = desired_state.LOCAL,
    approved_by: str = "",
    *,
    approved: ReleaseEntry | None = None,
    port: int | None = None,
    through_canary: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    waiting: Callable[[str], None] = lambda _: None,
) -> Applied | None:
    """Roll out the environment's declared version; return None if none is declared.

    `approved_by` signs off the `approved` entry, by default the present one. If another version is
    declared meanwhile, it needs its own approval. A rollback skips the canary unless
    `through_canary`. If another apply is running, here or on another machine, call `waiting` and
    wait. `progress` receives one sentence per step. Raises UserError if the model or its evidence
    differ from the declaration, if green fails (blue stays live), and if the version was rolled
    back.
    """
    desired_state.check_environment(environment)
    target = projects.find(backend.root, project)
    approved = approved or desired_state.read(backend, target.name, environment)
    name = backend.endpoints.name_of(target.model() or target.name, environment)
    report_waiting = partial(waiting, f"another apply to {environment} is running; waiting")
    with (
        desired_state.rollout_lock(target.name, environment, report_waiting),
        reserved(backend.endpoints, name, waiting),
    ):
        while True:
            with desired_state.project_lock(target.name):
                entry = desired_state.read(backend, target.name, environment)
                if approved_by and entry and not entry.serves_as(approved):
                    progress(
                        f"{approved_by} approved {_approved(approved)}, but version "
                        f"{entry.version} is declared now: it needs its own approval"
                    )
                    approved_by = ""
                rollout = plan_rollout(backend, target, environment, approved_by, progress=progress)
            if rollout is None:
                return None
            result = _carry_out(rollout, port, through_canary, progress)
            if result is not None:
                return result
            progress("another version was declared meanwhile: starting again")


def _approved(entry: ReleaseEntry | None) -> str:
    return f"version {entry.version} ({entry.digest[:19]}…)" if entry else "nothing"


def plan_rollout(
    backend: Backend,
    project: Project,
    environment: str,
    approved_by: str = "",
    *,
    step: Step = "apply",
    record: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> RolloutPlan | None:
    """Compare the declared version with the environment and evaluate the gates on it.

    Return None if no version is declared. With `record` the decision is added to the audit log;
    nothing else is changed. Raises UserError as `apply` and `check_gates` do.
    """
    entry = desired_state.read(backend, project.name, environment)
    if entry is None:
        return None
    version = _declared_version(backend, project, environment, entry)
    name = backend.endpoints.name_of(version.model, environment)
    spec = _declared_spec(backend, project, environment, entry)
    deployment = serving.model_deployment(spec, version, name)
    live = backend.endpoints.live(name)
    history = audit.history(backend.audit_log, name)
    if not history.has_decided(entry, environment):
        raise _decision_unknown(backend, project, environment, entry, version)
    # The registry must record that it served here, and git that it was merged before.
    is_rollback = environment in version.served_in(deployment.deployment_digest) and (
        environment == desired_state.LOCAL
        or desired_state.was_declared_before(backend, project.name, environment, entry)
    )
    wanted = request(
        backend,
        version,
        environment,
        step,
        approved_by=approved_by,
        reason=entry.reason,
        served_before=is_rollback,
        serving_changes=live is None or not _same(live.deployment, deployment),
        deployment_digest=deployment.deployment_digest,
    )
    check = check_gates(backend, project, version, wanted, record=record, progress=progress)
    # The project's requests may have changed since an earlier version served.
    samples = serving.samples(deployment.deployment_digest) if is_rollback else ()
    # The same serving code returns the same response fields.
    is_other = live is None or live.deployment.deployment_digest != deployment.deployment_digest
    new_fields, expired = desired_state.new_fields(backend, project.name) if is_other else ((), ())
    return RolloutPlan(
        backend=backend,
        project=project.name,
        environment=environment,
        entry=entry,
        version=version,
        spec=spec,
        deployment=deployment,
        acceptance=Acceptance(
            samples=samples or project.samples(),
            strategy=_strategy(backend, project, environment, check),
            latency_limit=(
                _latency_limit(project, wanted, check) if backend.endpoints.p95_ms else None
            ),
            parity_check=_parity_check(project, wanted, check),
            new_fields=new_fields,
            expired=expired,
        ),
        approved_by=approved_by,
        check=check,
        history=history,
        live=live,
        is_rollback=is_rollback,
    )


def _strategy(backend: Backend, project: Project, environment: str, check: GateCheck) -> Strategy:
    """Return the settings of the canary.

    The drift of predictions is not limited if the champion was declared invalid.
    """
    limit = load_gates(project)["latency"].number("p95_ms")
    strategy = desired_state.strategy(backend, project.name, environment).within(limit)
    if not check.decision.request.set_aside:
        return strategy
    return replace(strategy, tolerances=replace(strategy.tolerances, drift=1.0))


def _parity_check(
    project: Project, wanted: Request, check: GateCheck
) -> tuple[ParityCheck, float] | None:
    """Return the rows of the parity check and its tolerance.

    None in the simulated environment, where the proposal already checked this server, and for a
    rollback.
    """
    if wanted.simulated or wanted.served_before:
        return None
    pointer = check.evidence.serving.prediction or ""
    parity_check = served.parity_check(
        check.candidate.evidence_folder, check.evidence.evaluation, pointer
    )
    return parity_check, by_precision(check.evidence, load_gates(project)["serving"], "tolerance")


def _latency_limit(project: Project, wanted: Request, check: GateCheck) -> tuple[int, float] | None:
    """Return (requests, limit in ms) for measuring the deployment, or None if not needed.

    It is not needed in a simulated environment or for a rollback. It is not needed either if the
    gate is waived, or if the evidence was measured on the deployment's instance type.
    """
    if wanted.simulated or wanted.served_before:
        return None
    gate = load_gates(project)["latency"]
    (result,) = (result for result in check.decision.results if result.gate == gate.name)
    measured = check.evidence.latency
    if result.verdict != "pass" or measured.hardware == measured.instance_type:
        return None
    return int(gate.number("min_requests")), gate.number("p95_ms")


def _carry_out(
    rollout: RolloutPlan, port: int | None, through_canary: bool, progress: Callable[[str], None]
) -> Applied | None:
    """Carry out the rollout; None if another version was declared before this one was live."""
    name, endpoints = rollout.deployment.endpoint, rollout.backend.endpoints
    if not rollout.is_champion and rollout.check.decision.outcome != "approved":
        return Applied("rejected", rollout)
    if rollout.serves:
        _, started = endpoints.ensure(name, port)
        _finish(rollout)
        return Applied("unchanged", rollout, endpoints.router(name), started)
    if (refused := rollout.refusal) is not None:
        # A rollout that was killed after its verdict may have left servers.
        canary.remove_leftovers(endpoints, name)
        raise refused
    endpoints.check_deployment(rollout.deployment)
    compares = _can_compare(rollout, port, through_canary, progress)
    return _roll_out(rollout, compares, port, progress)


def _declared_version(
    backend: Backend, project: Project, environment: str, entry: ReleaseEntry
) -> Version:
    """Return the declared version from the registry.

    Raise UserError if it is missing, or if its digest or evidence is not the declared one.
    """

    def place(field: str) -> Place:
        return desired_state.place(backend, project.name, environment, field)

    model = project.model() or entry.model
    if entry.model != model:
        raise UserError(other_project(entry.model, model, place("model")))
    try:
        version = backend.registry.find(entry.model, entry.version)
    except UserError as refused:
        raise UserError(
            *(
                replace(problem, place=problem.place or place("version"))
                for problem in refused.problems
            ),
            exit_code=refused.exit_code,
        ) from None
    if version.project != project.name:
        raise UserError(
            other_project(f"{version.model} of {version.project}", model, place("model"))
        )
    if version.kept_at(entry.evidence) is not None:
        # The version was measured again for another environment; use the evidence declared here.
        version = replace(version, evidence=entry.evidence)
    for what, actual, expected in (
        ("digest", version.digest, entry.digest),
        ("evidence", version.evidence, entry.evidence),
    ):
        if actual != expected:
            raise UserError.with_code(
                "digest-mismatch",
                f"{version.model} {version.version} has the {what} {actual or 'nothing'}",
                f"{expected}, as the release declares",
                "propose it again",
                place(what),
                exit_code=Exit.GATE_SAID_NO,
            )
    if environment != desired_state.LOCAL:
        file = evidence_path(desired_state.path(backend, project.name, environment), environment)
        if evidence_error := evidence_problem(file, entry.evidence, place("evidence")):
            raise UserError(evidence_error, exit_code=Exit.GATE_SAID_NO)
    return version


def _proposal(project: str, version: Version, environment: str) -> str:
    """Return the command that proposes the version's run again."""
    return f"ml release propose {project} --run {version.run or 'RUN'} --env {environment}"


def _decision_unknown(
    backend: Backend, project: Project, environment: str, entry: ReleaseEntry, version: Version
) -> UserError:
    return UserError.with_code(
        "decision-unknown",
        f"the audit log has no decision {entry.decision[:12]}… on version "
        f"{entry.version} for {environment}",
        "a decision of the gates on this model and environment",
        f"{_proposal(project.name, version, environment)} evaluates the gates",
        desired_state.place(backend, project.name, environment, "decision"),
        exit_code=Exit.GATE_SAID_NO,
    )


def _declared_spec(
    backend: Backend, project: Project, environment: str, entry: ReleaseEntry
) -> DeploymentSpec:
    """Return the declared deployment spec, as stored by the proposal or from the project's files.

    Raise UserError if it is no longer stored and the project's files differ.
    """
    proposed = entry.deployment_digest and serving.fetch(
        backend.registry, entry.model, entry.deployment_digest
    )
    if proposed:
        return proposed
    now = serving.snapshot(project.deployment_spec())
    if entry.deployment_digest not in ("", now.snapshot_digest):
        raise UserError.with_code(
            "digest-mismatch",
            f"the serving code and settings of {project.name} have the digest "
            f"{now.snapshot_digest}",
            f"{entry.deployment_digest}, as the release declares",
            "propose it again",
            desired_state.place(backend, project.name, environment, "deployment_digest"),
            exit_code=Exit.GATE_SAID_NO,
        )
    return now


def _same(deployment: ModelDeployment, other: ModelDeployment) -> bool:
    """Return whether both serve the same model with the same code and settings."""
    return (deployment.digest, deployment.deployment_digest) == (
        other.digest,
        other.deployment_digest,
    )


def _roll_out(
    rollout: RolloutPlan, compares: bool, port: int | None, progress: Callable[[str], None]
) -> Applied | None:
    """Make the version live and champion, and stop the old server.

    Returns None, with nothing changed, when another version was declared meanwhile. With `compares`
    a canary runs first. Raises UserError when green fails; blue then keeps all the traffic. The
    audit log records server-crashed, smoke-failed, too-slow, prediction-mismatch and rolled-back,
    so that the version is not tried again. It does not record baseline-failed, latency-unknown and
    predictions-unverified.
    """
    deployment, acceptance = rollout.deployment, rollout.acceptance
    name = deployment.endpoint
    samples = acceptance.samples
    endpoints = rollout.backend.endpoints
    with ExitStack() as undo:
        with endpoints.locked(name):
            blue = canary.clear_canary(endpoints, name)
            baseline = f", and {blue.deployment.version} again as baseline" if blue else ""
            progress(f"starting version {deployment.version}{baseline if compares else ''}")
            try:
                trial = canary.start_trial(
                    endpoints, name, blue, deployment, samples, undo, baseline=compares
                )
                if limit := acceptance.latency_limit:
                    progress("measuring the latency on the deployment; its metrics take minutes")
                    p95 = canary.check_latency(endpoints, trial.server, samples, *limit, progress)
                    progress(f"latency on the deployment: p95 {p95:.4g} ms, at most {limit[1]:g}")
                if acceptance.parity_check:
                    rows = canary.run_parity_check(
                        endpoints, trial.server, *acceptance.parity_check
                    )
                    progress(f"parity check: {rows} rows, all predictions as evaluated")
            except UserError as error:
                if error.problems[0].code in FAULTS_OF_GREEN:
                    record(rollout, ROLLED_BACK, None, why=_why(error))
                raise
        outcome = None
        if blue is not None and compares:
            progress("canary: the new version and the baseline serve")
            outcome = canary.run_canary(
                endpoints,
                name,
                trial,
                acceptance.strategy,
                samples,
                new_fields=acceptance.new_fields,
                superseded=lambda: not rollout.is_current(),
                progress=progress,
            )
            if outcome.kind == "superseded":
                return None
            if outcome.kind == "rolled-back":
                record(rollout, ROLLED_BACK, outcome, why=outcome.why)
                raise _rolled_back(rollout, outcome, blue)
        with desired_state.project_lock(rollout.project), endpoints.locked(name):
            if not rollout.is_current():
                endpoints.switch(name, canary.without_canary(endpoints, name))
                return None
            router = _promote(rollout, trial.server, port, outcome)
        undo.pop_all()
    return Applied("applied", rollout, router, True, outcome)


def _can_compare(
    rollout: RolloutPlan, port: int | None, through_canary: bool, progress: Callable[[str], None]
) -> bool:
    """Return whether to run a canary, and start blue and its router for it.

    The first version has none, since there is no blue. A version that served here before has one
    only with `through_canary`, so that a rollback is not delayed.
    """
    name, endpoints = rollout.deployment.endpoint, rollout.backend.endpoints
    if endpoints.live(name) is None:
        return False
    if rollout.is_rollback and not through_canary:
        progress("no canary: this version served here before")
        return False
    try:
        endpoints.ensure(name, port)
    except UserError as error:
        if error.problems[0].code == "port-in-use":
            raise
        progress(f"no canary: the live version cannot be started ({_why(error)})")
        return False
    return True


def _finish(rollout: RolloutPlan) -> None:
    """Finish a rollout killed after the traffic switch: leftovers, champion alias, audit line."""
    name, backend, registry = rollout.deployment.endpoint, rollout.backend, rollout.backend.registry
    canary.remove_leftovers(backend.endpoints, name)
    with backend.endpoints.locked(name):
        champion = registry.champion(rollout.version.model, rollout.environment)
        if champion is None or champion.digest != rollout.version.digest:
            registry.promote(
                rollout.version, rollout.environment, rollout.deployment.deployment_digest
            )
        applied = audit.history(backend.audit_log, name).applied
        if not applied or not audit.matches_deployment(applied[-1], rollout.deployment):
            record(rollout, APPLIED, None, replaced=None)


def _promote(
    rollout: RolloutPlan, green: Server, port: int | None, outcome: Outcome | None
) -> Router:
    """Switch the traffic, make the version champion and record it, or undo all; then stop blue.

    The caller holds the locks of the project and of the endpoint.
    """
    name, version, environment = rollout.deployment.endpoint, rollout.version, rollout.environment
    endpoints, registry = rollout.backend.endpoints, rollout.backend.registry
    blue = canary.without_canary(endpoints, name)
    champion = registry.champion(version.model, environment)
    with ExitStack() as undo:
        undo.callback(endpoints.stop_idle, name)  # also stops a router without servers
        undo.callback(endpoints.switch, name, blue)
        router = endpoints.start_router(name, port) if blue else None
        endpoints.switch(name, Live(green, rollout.deployment))
        router = router or endpoints.start_router(name, port)
        undo.callback(_restore, rollout, champion, blue)
        registry.promote(version, environment, rollout.deployment.deployment_digest)
        replaced = champion.version if champion else None
        record(rollout, APPLIED, outcome, replaced=replaced)
        undo.pop_all()
    endpoints.drain(name)
    endpoints.stop_idle(name)
    return router


def _restore(rollout: RolloutPlan, champion: Version | None, blue: Live | None) -> None:
    registry, environment = rollout.backend.registry, rollout.environment
    if champion is not None:
        registry.promote(champion, environment, blue.deployment.deployment_digest if blue else "")
    elif registry.champion(rollout.version.model, environment) is not None:
        registry.demote(rollout.version.model, environment)


def record(rollout: RolloutPlan, event: str, outcome: Outcome | None, **more: object) -> None:
    """Add a line about the rollout to the audit log."""
    deployment = rollout.deployment
    details = {
        "environment": rollout.environment,
        "endpoint": deployment.endpoint,
        "model": deployment.model,
        "version": deployment.version,
        "digest": deployment.digest,
        "deployment_digest": deployment.deployment_digest,
        "decision": rollout.entry.decision,
        "approved_by": rollout.approved_by,
        "canary": outcome.to_json() if outcome else None,
    }
    audit.append(rollout.backend.audit_log, event, {**details, **more})


def _rolled_back(rollout: RolloutPlan, outcome: Outcome, blue: Live) -> UserError:
    is_invalid = rollout.check.decision.request.set_aside
    serves = (
        "the champion, which is invalid," if is_invalid else f"version {blue.deployment.version}"
    )
    hint = f"{serves} still serves; propose this one again to retry it"
    if any(signal.name == "answers" and signal.alarmed for signal in outcome.signals):
        hint += "; declare intended new response fields in `new_fields` of release.yml"
        hint += "".join(f"; {reason}" for reason in rollout.acceptance.expired)
    requests = ", ".join(f"{count} to {name}" for name, count in outcome.requests.items())
    return UserError.with_code(
        "rolled-back",
        f"version {rollout.version.version} was rolled back at {outcome.step} % of the "
        f"traffic: {outcome.why} ({requests}; {outcome.replayed} were sample requests)",
        f"no worse than version {blue.deployment.version}, within the tolerances",
        hint,
        exit_code=Exit.GATE_SAID_NO,
    )


def _why(error: UserError) -> str:
    """Return the first line of an error: why a server failed, without its log."""
    return error.problems[0].actual.splitlines()[0].removesuffix("; its log ends:")
