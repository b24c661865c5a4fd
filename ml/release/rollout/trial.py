"""Versions on trial: green and its baseline beside blue, the smoke test, and the cleaning up."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from ml.core.errors import Exit, Problem, Refused
from ml.release.canary import canary
from ml.serving import client, endpoint, processes, server
from ml.serving.endpoint import Canary, Live
from ml.serving.server import Launch, Server

Samples = Sequence[Mapping[str, object]]


def start_trial(
    name: str,
    blue: Live | None,
    launch: Launch,
    samples: Samples,
    undo: ExitStack,
    *,
    baseline: bool,
    smoke: bool = True,
) -> Canary:
    """Start green without traffic, and a baseline if asked for; `undo` stops both.

    Beside blue they are in the endpoint's state, so that no other command takes them for leftovers.
    The caller holds the endpoint. Raises Refused: what `server.start` raises, smoke-failed, and
    baseline-failed, which is not a verdict on green.
    """
    slot = endpoint.other_slot(name)
    undo.callback(_stop_unused, name)
    # The baseline loads in parallel with green.
    ready = _begin_baseline(blue, samples) if blue is not None and baseline else None
    trial = Canary(server.start(slot, launch), launch, 0)
    if smoke:
        smoke_test(trial.server, launch, samples)
    if blue is not None:
        if ready is not None:
            trial = replace(trial, baseline=ready())
        undo.callback(_drain_router, name)  # green answers its open requests
        undo.callback(canary.set_canary, name, None)
        endpoint.switch(name, replace(blue, canary=trial))
    return trial


def smoke_test(green: Server, launch: Launch, samples: Samples) -> None:
    """Send every sample request; Refused (smoke-failed) unless the launched model answers."""
    for sample in samples:
        try:
            answer = client.score(green.port, sample)
        except (OSError, http.client.HTTPException) as error:
            raise _smoke_failed(green, f"no answer to {sample}: {error}") from None
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise _smoke_failed(green, f"status {answer.status} to {sample}: {answer.excerpt}")
        if answer.body.get("model_digest") != launch.digest:
            raise _smoke_failed(
                green, f"no answer of the declared model to {sample}: {answer.excerpt}"
            )


def remove_leftovers(name: str) -> None:
    """Remove what a killed rollout left; a running experiment stays."""
    with endpoint.locked(name):
        if not ((state := endpoint.live(name)) and state.canary and state.canary.experiment):
            clear_canary(name)


def clear_canary(name: str) -> Live | None:
    """Remove a leftover canary and return the live state; the caller holds the endpoint's lock."""
    state = without_canary(name)
    if state is not None:
        if state != endpoint.live(name):
            endpoint.switch(name, state)
            _drain_router(name)
        endpoint.stop_idle(name)
    return state


def without_canary(name: str) -> Live | None:
    """The endpoint's state without its canary; nothing is changed."""
    state = endpoint.live(name)
    return replace(state, canary=None) if state else None


def _stop_unused(name: str) -> None:
    """Stop servers that the endpoint's state does not name.

    Where a full disk kept the state from being restored, the server in it keeps running; the next
    apply ends it.
    """
    with endpoint.locked(name):
        endpoint.stop_idle(name)


def _drain_router(name: str) -> None:
    """Wait for open requests to servers without a route; returns at once without a router."""
    with suppress(Refused):  # a router that is gone has no open requests
        if (router := endpoint.router(name)) is not None:
            endpoint.drain(router)


def _begin_baseline(blue: Live, samples: Samples) -> Callable[[], Server]:
    """Start a second server of the live version; the returned function waits until it answers."""
    slot = blue.server.slot.with_name(endpoint.BASELINE)
    with _as_baseline_failed(blue):
        endpoint.check_model(blue.launch)
        starting = server.begin(slot, blue.launch)

    def ready() -> Server:
        with _as_baseline_failed(blue):
            baseline = server.wait_until_ready(starting)
            smoke_test(baseline, blue.launch, samples)
        return baseline

    return ready


@contextmanager
def _as_baseline_failed(blue: Live) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(
            Problem(
                "baseline-failed",
                f"version {blue.launch.version} serves, but a second server of it for the canary "
                f"fails: {error.problems[0].found}",
                "memory for three servers during a canary",
                "free some memory and apply again; if the version can no longer be started, "
                f"stop it (`ml serve {blue.launch.endpoint} --stop`): apply then skips the canary",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None


def _smoke_failed(green: Server, why: str) -> Refused:
    return Refused(
        Problem(
            "smoke-failed",
            f"{why}; its log ends:\n{processes.last_lines(green.slot)}",
            "an answer from the declared model to every sample request",
            f"nothing was switched; the whole log: {processes.log(green.slot)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
