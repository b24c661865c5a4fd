"""An experiment on its endpoint: B beside A behind the router, for the keys that are B's."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from ml.backends.base import Backend
from ml.core.errors import Exit, Problem, Refused
from ml.release import audit
from ml.release.ab.experiment import Experiment
from ml.release.declaration import projects
from ml.release.promotion.gate_check import check_gates
from ml.release.promotion.propose import launch_of
from ml.release.rollout import history
from ml.release.rollout.trial import smoke_test
from ml.serving import endpoint, server
from ml.serving.endpoint import Canary, Live
from ml.serving.router.process import Router
from ml.serving.server import Launch
from policies.promotion.decision import Decision


def serve(
    backend: Backend, experiment: Experiment, approved_by: str
) -> tuple[Decision, Router | None]:
    """Start B beside A and send its keys there; again, it is seen to that both run.

    Callers are answered by B, so the gates are asked as for a promotion, the experiment being the
    reason; None beside their decision when one says no. Raises Refused when A is not what serves,
    when something else is on trial, when a canary took B back, and when B fails. B stands until
    `stop`, or until a release is applied, which goes before. It is gated and led by no canary: the
    share of an experiment is fixed, and a fault of B's that shows under load is for a person to
    stop.
    """
    _alone(experiment)
    project = projects.find(experiment.project)
    version = backend.registry.find(experiment.model, experiment.b.version)
    name = experiment.endpoint
    launch = replace(launch_of(backend, version, project.deployment()), endpoint=name)
    _not_taken_back(launch, project.name)
    check = check_gates(
        *(backend, project, version, experiment.environment),
        step="apply",
        approved_by=approved_by,
        reason=f"the A/B experiment {experiment.name}",
    )
    if check.decision.outcome != "approved":
        return check.decision, None
    endpoint.ensure(name)
    with endpoint.locked(name), ExitStack() as undo:
        state = _alone(experiment)
        if state.canary is None:
            endpoint.check_model(launch)
            undo.callback(endpoint.stop_idle, name)
            green = server.start(endpoint.other_slot(name), launch)
            smoke_test(green, launch, project.samples())
            beside = Canary(
                *(green, launch, experiment.share),
                experiment=experiment.name,
                salt=experiment.salt,
            )
            audit.append("ab-served", _what(experiment, approved_by))  # nobody is served unwritten
            undo.callback(endpoint.switch, name, state)
            endpoint.switch(name, replace(state, canary=beside))
        undo.pop_all()
    return check.decision, endpoint.router(name)


def stop(experiment: Experiment) -> bool:
    """Send every key to A again and end B's server; whether B served. Outcomes may still come."""
    name = experiment.endpoint
    with endpoint.locked(name):
        state = endpoint.live(name)
        if state is None or not _is_on(state, experiment):
            return False
        endpoint.switch(name, replace(state, canary=None))
        if (router := endpoint.router(name)) is not None:
            endpoint.drain(router)
        endpoint.stop_idle(name)
        audit.append("ab-stopped", _what(experiment, ""))
    return True


def served(experiment: Experiment) -> bool:
    """Whether the endpoint sends B its keys now."""
    state = endpoint.live(experiment.endpoint)
    return state is not None and _is_on(state, experiment)


def _is_on(state: Live, experiment: Experiment) -> bool:
    return state.canary is not None and state.canary.experiment == experiment.name


def _alone(experiment: Experiment) -> Live:
    """The endpoint's state, once A is live and nothing but this experiment is beside it."""
    state = endpoint.live(experiment.endpoint)
    if state is None:
        raise endpoint.nothing_served(experiment.endpoint)
    if state.launch.digest != experiment.a.digest:
        raise Refused(
            Problem(
                "ab-not-live",
                f"version {state.launch.version} is live on `{experiment.endpoint}`",
                f"version {experiment.a.version}, which is A",
                "begin another experiment against what is live",
            )
        )
    if state.canary is not None and not _is_on(state, experiment):
        what = state.canary.experiment
        raise Refused(
            Problem(
                "ab-occupied",
                f"{f'the experiment `{what}`' if what else 'a canary'} is on there",
                "an endpoint with one version",
                f"ml ab stop {what}" if what else "wait for it to end",
            )
        )
    return state


def _not_taken_back(launch: Launch, project: str) -> None:
    """Refuse a B that its canary refused and that was not applied since: none watches it here."""
    if (line := history.of(launch.endpoint).rolled_back(launch)) is not None:
        raise Refused(
            Problem(
                "refused-before",
                f"{launch.model} {launch.version} was rolled back on {str(line['at'])[:16]}: "
                f"{line['why']}",
                "a B that its canary has not refused: no canary leads an experiment",
                f"mend its serving code, or try it anew: ml release propose {project}",
            ),
            exit_code=Exit.GATE_SAID_NO,
        )


def _what(experiment: Experiment, approved_by: str) -> dict[str, object]:
    return {
        "experiment": experiment.name,
        "endpoint": experiment.endpoint,
        "a": experiment.a.digest,
        "b": experiment.b.digest,
        "share": experiment.share,
        "approved_by": approved_by,
    }
