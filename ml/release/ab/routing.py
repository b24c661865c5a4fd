"""Serve an experiment: run B beside A on its endpoint, and route the keys assigned to B."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from ml.backends.base import Backend
from ml.backends.endpoints import Canary, Live, ModelDeployment, Router, reserved
from ml.backends.model_registry import Version
from ml.backends.traffic import DEPLOYMENT_HEADER, REQUEST_ID
from ml.core.errors import UserError
from ml.release import audit
from ml.release.ab.experiment import Arm, Experiment
from ml.release.canary.canary import smoke_test
from ml.release.declaration import projects
from ml.release.promotion.gate_check import check_gates, request
from ml.release.serving import model_deployment, snapshot
from policies.promotion.decision import Decision


def serve(
    backend: Backend,
    experiment: Experiment,
    approved_by: str,
    waiting: Callable[[str], None] = lambda _: None,
) -> tuple[Decision, Router | None]:
    """Evaluate the gates on B, start it beside A and route its keys; return decision and router.

    If B serves already, make sure that both run. B answers callers, so the gates are evaluated as
    for a promotion, with the experiment as the reason. The router is None if a gate fails. Raises
    UserError if A is not live, if a canary or another experiment runs, if a canary rolled B back,
    or if B fails. B serves until `stop`, or until a release is applied. No canary watches it: a
    person has to stop a B that fails under load.
    """
    _state(backend, experiment)
    project = projects.find(backend.root, experiment.project)
    version = backend.registry.find(experiment.model, experiment.b.version)
    deployment = model_deployment(snapshot(project.deployment_spec()), version, experiment.endpoint)
    _check_not_rolled_back(backend, deployment, version)
    check = check_gates(
        backend,
        project,
        version,
        request(
            backend,
            version,
            experiment.environment,
            "apply",
            approved_by=approved_by,
            deployment_digest=deployment.deployment_digest,
            reason=f"the A/B experiment {experiment.name}",
        ),
    )
    if check.decision.outcome != "approved":
        return check.decision, None
    return check.decision, begin(
        backend, experiment, deployment, project.samples(), approved_by, waiting
    )


def begin(
    backend: Backend,
    experiment: Experiment,
    deployment: ModelDeployment,
    samples: Sequence[Mapping[str, object]],
    approved_by: str,
    waiting: Callable[[str], None] = lambda _: None,
) -> Router | None:
    """Start the approved B beside A and route its keys to it. Raises as `serve`."""
    name, endpoints = experiment.endpoint, backend.endpoints
    endpoints.ensure(name)
    with reserved(endpoints, name, waiting), endpoints.locked(name), ExitStack() as undo:
        state = _state(backend, experiment)
        if state.canary is None:
            endpoints.check_deployment(deployment)
            undo.callback(endpoints.stop_idle, name)
            green = endpoints.begin(deployment)()
            smoke_test(endpoints, green, deployment, samples)
            canary = Canary(
                server=green,
                deployment=deployment,
                # If callers name the deployment, the router sends no other requests to it.
                weight=experiment.share if endpoints.exposed else 0,
                experiment=experiment.name,
                salt=experiment.salt,
            )
            # Record it before B gets its first request.
            audit.append(backend.audit_log, "ab-served", _details(experiment, approved_by))
            undo.callback(endpoints.switch, name, state)
            endpoints.switch(name, replace(state, canary=canary))
        undo.pop_all()
    return endpoints.router(name)


def stop(
    backend: Backend, experiment: Experiment, waiting: Callable[[str], None] = lambda _: None
) -> bool:
    """Route every key to A again and stop B's server; return whether B served.

    Outcomes may still be recorded afterwards.
    """
    name, endpoints = experiment.endpoint, backend.endpoints
    with reserved(endpoints, name, waiting), endpoints.locked(name):
        state = endpoints.live(name)
        if state is None or not _is_on(state, experiment):
            return False
        endpoints.switch(name, replace(state, canary=None))
        endpoints.drain(name)
        endpoints.stop_idle(name)
        audit.append(backend.audit_log, "ab-stopped", _details(experiment, ""))
    return True


def headers(
    backend: Backend, experiment: Experiment, arms: Mapping[str, Arm]
) -> Mapping[str, Mapping[str, str]]:
    """Return the request headers for each key, for endpoints that do not split the traffic.

    They name the deployment, and a request id that joins the response to the key. Raises UserError
    unless A and B serve.
    """
    state = _state(backend, experiment)
    if state.canary is None:
        hint = f"ml ab serve {experiment.name} --approved-by NAME"
        raise UserError.with_code("ab-not-served", "B is not served", "A and B, both served", hint)
    slots = {"A": state.server.slot.name, "B": state.canary.server.slot.name}
    return {
        key: {DEPLOYMENT_HEADER: slots[arm], REQUEST_ID: experiment.request_id(key)}
        for key, arm in arms.items()
    }


def is_served(backend: Backend, experiment: Experiment) -> bool:
    """Return whether B serves now, so that requests with its keys are routed to it."""
    state = backend.endpoints.live(experiment.endpoint)
    return state is not None and _is_on(state, experiment)


def _is_on(state: Live, experiment: Experiment) -> bool:
    return state.canary is not None and state.canary.experiment == experiment.name


def _state(backend: Backend, experiment: Experiment) -> Live:
    """Return the endpoint's state; raise UserError unless A is live and no other canary runs."""
    state = backend.endpoints.live(experiment.endpoint)
    if state is None:
        raise backend.endpoints.nothing_served(experiment.endpoint)
    if state.deployment.digest != experiment.a.digest:
        raise UserError.with_code(
            "ab-not-live",
            f"version {state.deployment.version} is live on `{experiment.endpoint}`",
            f"version {experiment.a.version}, which is A",
            "start another experiment against the live version",
        )
    if state.canary is not None and not _is_on(state, experiment):
        running = state.canary.experiment
        raise UserError.with_code(
            "ab-occupied",
            f"{f'the experiment `{running}`' if running else 'a canary'} is running on "
            f"`{experiment.endpoint}`",
            "an endpoint with one version",
            f"ml ab stop {running}" if running else "wait for it to end",
        )
    return state


def _check_not_rolled_back(backend: Backend, deployment: ModelDeployment, version: Version) -> None:
    """Raise UserError if a canary rolled B back: an experiment has no canary."""
    history = audit.history(backend.audit_log, deployment.endpoint)
    if (line := history.rolled_back(deployment)) is not None:
        raise audit.refused_before(
            line,
            "a version that no canary rolled back: an experiment has no canary of its own",
            "fix its serving code, or propose it again: "
            f"ml release propose {version.project} --run {version.run}",
        )


def _details(experiment: Experiment, approved_by: str) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "endpoint": experiment.endpoint,
        "a": experiment.a.digest,
        "b": experiment.b.digest,
        "share": experiment.share,
        "approved_by": approved_by,
    }
