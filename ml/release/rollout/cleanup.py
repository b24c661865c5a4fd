"""What a rollout leaves when it is killed or undone: servers that have no part in what serves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ml.core.errors import Refused
from ml.serving import endpoint
from ml.serving.endpoint import Live


def tidy(name: str) -> None:
    """Take away what a killed rollout left; an experiment goes on."""
    with endpoint.locked(name):
        if not ((state := endpoint.live(name)) and state.canary and state.canary.experiment):
            cleared(name)


def cleared(name: str) -> Live | None:
    """What is live, once nothing of a killed rollout is left; the caller holds the endpoint."""
    state = without_green(name)
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
            endpoint.drain(router)


def without_green(name: str) -> Live | None:
    """What would be live with no green beside it; nothing is changed."""
    state = endpoint.live(name)
    return replace(state, canary=None) if state else None
