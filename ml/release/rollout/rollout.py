"""The rollout: start green beside blue, smoke test, canary, switch; undone when a step fails.

The audit log holds every attempt and its result, the endpoint's state what serves. Whatever a
killed rollout left in the state is removed first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from ml.backends.registry import Registry, Version
from ml.core.errors import Exit, Problem, Refused
from ml.release.canary import baseline, canary
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state
from ml.release.log import history
from ml.release.log.history import History, Release, record_applied, record_refused
from ml.release.rollout import smoke
from ml.release.rollout.cleanup import (
    clear_canary,
    drain_router,
    remove_leftovers,
    stop_unused,
    without_canary,
)
from ml.serving import endpoint, server
from ml.serving.endpoint import Canary, Live
from ml.serving.router.process import Router
from ml.serving.server import Launch, Server

# Faults of green itself: the version is not tried again. Any other is this machine's.
_OWN_FAULTS = ("server-crashed", "smoke-failed")


def roll_out(
    release: Release,
    registry: Registry,
    past: History,
    port: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Router, Outcome | None] | None:
    """Make the version live and champion, and stop the old server.

    Returns None, with nothing changed, when another version was declared meanwhile. The first
    version and one that served here before get no canary: a way back is not delayed. Raises Refused
    when green fails; blue then keeps all the traffic. server-crashed, smoke-failed and rolled-back
    are recorded, so that the version is not tried again; baseline-failed is not.
    """
    launch = release.launch
    name = launch.endpoint
    compared = _to_compare_with(launch, past, port, progress)
    with ExitStack() as undo:
        with endpoint.locked(name):
            blue = clear_canary(name)
            slot = endpoint.other_slot(name)
            undo.callback(stop_unused, name)
            second = None
            if blue is not None and compared:  # it loads in parallel with green
                second = baseline.begin(blue, release.samples)
            try:
                trial = Canary(server.start(slot, launch), launch, 0)
                smoke.test(trial.server, launch, release.samples)
            except Refused as error:
                if error.problems[0].code in _OWN_FAULTS:
                    record_refused(release, _why(error), None)
                raise
            if blue is not None:  # in the state, so that no other command takes it for a leftover
                if second is not None:
                    trial = replace(trial, baseline=second())
                undo.callback(drain_router, name)  # green answers its open requests
                undo.callback(canary.set_canary, name, None)
                endpoint.switch(name, replace(blue, canary=trial))
        outcome = None
        if blue is not None and compared:
            outcome = canary.lead(
                name,
                trial,
                release.strategy,
                release.samples,
                superseded=lambda: not release.is_current(),
                progress=progress,
            )
            if outcome.kind == "superseded":
                return None
            if outcome.kind == "rolled-back":
                record_refused(release, outcome.why, outcome)
                raise _rolled_back(release, outcome, blue)
        with desired_state.project_lock(release.project), endpoint.locked(name):
            if not release.is_current():
                endpoint.switch(name, without_canary(name))
                return None
            router = _promote(release, registry, trial.server, port, outcome)
        undo.pop_all()
    return router, outcome


def _to_compare_with(
    launch: Launch, past: History, port: int | None, progress: Callable[[str], None]
) -> bool:
    """Whether to run a canary; blue then runs behind its router."""
    if endpoint.live(launch.endpoint) is None:
        return False
    if past.served_before(launch):
        progress("none: this version served here before")
        return False
    try:
        endpoint.ensure(launch.endpoint, port)
    except Refused as error:
        if error.problems[0].code == "port-in-use":
            raise
        progress(f"none: the live version cannot be started ({_why(error)})")
        return False
    return True


def finish_rollout(release: Release, registry: Registry) -> None:
    """Finish a rollout that was killed after its switch: alias, audit line, the other server."""
    name = release.launch.endpoint
    remove_leftovers(name)
    with endpoint.locked(name):
        champion = registry.champion(release.version.model, release.environment)
        if champion is None or champion.digest != release.version.digest:
            registry.promote(release.version, release.environment)
        applied = history.of(name).applied
        if not applied or applied[-1]["digest"] != release.launch.digest:
            record_applied(release, None, None)


def _promote(
    release: Release, registry: Registry, green: Server, port: int | None, outcome: Outcome | None
) -> Router:
    """Switch, alias, audit line; undone in reverse when one fails. Then the old server is stopped.

    The caller holds the project and the endpoint.
    """
    name, version, environment = release.launch.endpoint, release.version, release.environment
    blue = without_canary(name)
    champion = registry.champion(version.model, environment)
    with ExitStack() as undo:
        undo.callback(endpoint.stop_idle, name)  # with it a router that stands before nothing
        undo.callback(endpoint.switch, name, blue)
        router = endpoint.start_router(name, port) if blue else None
        endpoint.switch(name, Live(green, release.launch))
        router = router or endpoint.start_router(name, port)
        undo.callback(_restore, registry, version, environment, champion)
        registry.promote(version, environment)
        record_applied(release, champion, outcome)
        undo.pop_all()
    endpoint.drain(router)
    endpoint.stop_idle(name)
    return router


def _restore(
    registry: Registry, version: Version, environment: str, champion: Version | None
) -> None:
    if champion is not None:
        registry.promote(champion, environment)
    elif registry.champion(version.model, environment) is not None:
        registry.demote(version.model, environment)


def _rolled_back(release: Release, outcome: Outcome, blue: Live) -> Refused:
    requests = ", ".join(f"{count} to {name}" for name, count in outcome.requests.items())
    return Refused(
        Problem(
            "rolled-back",
            f"version {release.version.version} was rolled back at {outcome.step} % of the "
            f"traffic: {outcome.why} ({requests}; {outcome.replayed} were sample requests)",
            f"no worse than version {blue.launch.version} beyond what is tolerated",
            f"version {blue.launch.version} serves; propose this one again to retry it",
        ),
        exit_code=Exit.GATE_SAID_NO,
    )


def _why(error: Refused) -> str:
    """Why a server failed, without its log."""
    return error.problems[0].found.splitlines()[0].removesuffix("; its log ends:")
