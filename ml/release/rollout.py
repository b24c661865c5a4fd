"""The rollout: green beside blue, proved by requests and a canary, then switched; undone when not.

What was tried and what it came to is in the journal, what serves in the endpoint's state; whatever
a killed rollout left in the state is taken away first.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from ml.release import canary, desired
from ml.release.canary import Outcome
from ml.release.journal import Release, lines, record_applied, record_refused, served_before
from ml.release.registry import Registry, Version
from ml.serving import client, endpoint, server, slots
from ml.serving.router.process import Router
from ml.serving.server import Launch, Server
from ml.serving.state import Canary, Live
from ml.specs.problems import Exit, Problem, Refused

# Faults of green itself: the version is not tried again. Any other is this machine's.
_OWN_FAULTS = ("server-crashed", "smoke-failed")


def roll_out(
    release: Release,
    registry: Registry,
    port: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[Router, Outcome | None] | None:
    """Make the version live and champion, and stop the old server; None when something else was
    declared meanwhile: nothing is changed then.

    There is no canary for the first version, nor for one that served here before: going back is not
    put off. Raises Refused when green fails, blue having all the traffic as before: server-crashed,
    smoke-failed and rolled-back are recorded, so that the version is not tried again; and when
    there is no room to judge it fairly (baseline-failed), which is not.
    """
    launch = release.launch
    name = launch.endpoint
    compared = _to_compare_with(launch, port, told)
    with ExitStack() as undo:
        with endpoint.locked(name):
            blue = cleared(name)
            slot = endpoint.other_slot(name)
            undo.callback(swept, name)
            second = None
            if blue is not None and compared:  # it loads while green does
                second = baseline(blue, release.samples)
            try:
                trial = Canary(server.start(slot, launch), launch, 0)
                smoke(trial.server, launch, release.samples)
            except Refused as error:
                if error.problems[0].code in _OWN_FAULTS:
                    record_refused(release, _why(error), None)
                raise
            if blue is not None:  # in the state, so that no other command takes it for a leftover
                if second is not None:
                    trial = replace(trial, baseline=second())
                undo.callback(drained, name)  # what green has in hand is answered
                undo.callback(canary.weigh, name, None)
                endpoint.switch(name, replace(blue, canary=trial))
        outcome = None
        if blue is not None and compared:
            outcome = canary.lead(
                name,
                trial,
                release.strategy,
                release.samples,
                superseded=lambda: not release.stands(),
                told=told,
            )
            if outcome.kind == "superseded":
                return None
            if outcome.kind == "rolled-back":
                record_refused(release, outcome.why, outcome)
                raise _rolled_back(release, outcome, blue)
        with desired.locked(release.project), endpoint.locked(name):
            if not release.stands():
                endpoint.switch(name, _cleared_state(name))
                return None
            router = _promote(release, registry, trial.server, port, outcome)
        undo.pop_all()
    return router, outcome


def baseline(blue: Live, samples: Sequence[Mapping[str, object]]) -> Callable[[], Server]:
    """Begin to start a second server of what is live; what is returned waits until it answers.

    Either is refused as this machine's fault.
    """
    slot = blue.server.slot.with_name(endpoint.BASELINE)
    with _not_greens_fault(blue):
        endpoint.check_model(blue.launch)
        begun = server.begin(slot, blue.launch)

    def answers() -> Server:
        with _not_greens_fault(blue):
            started = server.ready(begun)
            smoke(started, blue.launch, samples)
        return started

    return answers


@contextmanager
def _not_greens_fault(blue: Live) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(
            Problem(
                "baseline-failed",
                f"version {blue.launch.version} serves, but a second server of it for the canary "
                f"fails: {error.problems[0].found}",
                "room for three servers as long as a canary takes",
                "free some memory and apply again; if the version itself can no longer be started, "
                f"stop it (`ml serve {blue.launch.endpoint} --stop`): then none is compared with",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None


def _to_compare_with(launch: Launch, port: int | None, told: Callable[[str], None]) -> bool:
    """Whether a canary is led; blue then runs behind its router."""
    if endpoint.live(launch.endpoint) is None:
        return False
    if served_before(launch):
        told("none: this version served here before")
        return False
    try:
        endpoint.ensure(launch.endpoint, port)
    except Refused as error:
        if error.problems[0].code == "port-in-use":
            raise
        told(f"none: what is live cannot be started ({_why(error)})")
        return False
    return True


def settle(release: Release, registry: Registry) -> None:
    """Finish a rollout that was killed after its switch: alias, audit line, the other server."""
    name = release.launch.endpoint
    tidy(name)
    with endpoint.locked(name):
        champion = registry.champion(release.version.model, release.environment)
        if champion is None or champion.digest != release.version.digest:
            registry.promote(release.version, release.environment)
        applied = [line for line in lines(name) if line["event"] == "applied"]
        if not applied or applied[-1]["digest"] != release.launch.digest:
            record_applied(release, None, None)


def _promote(
    release: Release, registry: Registry, green: Server, port: int | None, outcome: Outcome | None
) -> Router:
    """Switch, alias, audit line; undone in reverse when one fails. Then the old server is stopped.

    The caller holds the project and the endpoint.
    """
    name, version, environment = release.launch.endpoint, release.version, release.environment
    blue = _cleared_state(name)
    champion = registry.champion(version.model, environment)
    with ExitStack() as undo:
        undo.callback(endpoint.stop_idle, name)  # with it a router that stands before nothing
        undo.callback(endpoint.switch, name, blue)
        router = endpoint.front(name, port) if blue else None
        endpoint.switch(name, Live(green, release.launch))
        router = router or endpoint.front(name, port)
        undo.callback(_restore, registry, version, environment, champion)
        registry.promote(version, environment)
        record_applied(release, champion, outcome)
        undo.pop_all()
    endpoint.drained(router)
    endpoint.stop_idle(name)
    return router


def tidy(name: str) -> None:
    """Take away what a killed rollout left; an experiment goes on."""
    with endpoint.locked(name):
        if not ((state := endpoint.live(name)) and state.canary and state.canary.experiment):
            cleared(name)


def cleared(name: str) -> Live | None:
    """What is live, once nothing of a killed rollout is left; the caller holds the endpoint."""
    state = _cleared_state(name)
    if state is not None:
        if state != endpoint.live(name):
            endpoint.switch(name, state)
            drained(name)
        endpoint.stop_idle(name)
    return state


def swept(name: str) -> None:
    """Stop what has no part in the state. Where a full disk kept the state from being undone, that
    is not what was started last: whatever requests are sent to goes on, and the next apply ends it.
    """
    with endpoint.locked(name):
        endpoint.stop_idle(name)


def drained(name: str) -> None:
    """Return once nothing is under way to a server that gets no more; gives up without a router."""
    with suppress(Refused):  # a router that is gone has nothing under way
        if (router := endpoint.router(name)) is not None:
            endpoint.drained(router)


def _cleared_state(name: str) -> Live | None:
    state = endpoint.live(name)
    return replace(state, canary=None) if state else None


def smoke(green: Server, launch: Launch, samples: Sequence[Mapping[str, object]]) -> None:
    """Every sample request is answered, by the model that was declared."""
    for sample in samples:
        try:
            answer = client.score(green.port, sample)
        except (OSError, http.client.HTTPException) as error:
            raise _failed(green, f"no answer to {sample}: {error}") from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise _failed(green, f"status {answer.status} to {sample}: {answer.said}")
        if answer.body.get("model_digest") != launch.digest:
            raise _failed(green, f"no answer of the declared model to {sample}: {answer.said}")


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
            f"version {blue.launch.version} serves; this one is not tried again unless proposed",
        ),
        exit_code=Exit.GATE_SAID_NO,
    )


def _why(error: Refused) -> str:
    """What a server failed by, without its log."""
    return error.problems[0].found.splitlines()[0].removesuffix("; its log ends:")


def _failed(green: Server, why: str) -> Refused:
    return Refused(
        Problem(
            "smoke-failed",
            f"{why}; its log ends:\n{slots.last_lines(green.slot)}",
            "an answer from the declared model to every sample request",
            f"nothing was switched; the whole log: {slots.log(green.slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
