"""Cleaning up after a rollout that was killed or undone: canaries and unused servers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ml.core.errors import Refused
from ml.serving import endpoint
from ml.serving.endpoint import Live


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
            drain_router(name)
        endpoint.stop_idle(name)
    return state


def stop_unused(name: str) -> None:
    """Stop servers that the endpoint's state does not name.

    Where a full disk kept the state from being restored, the server in it keeps running; the next
    apply ends it.
    """
    with endpoint.locked(name):
        endpoint.stop_idle(name)


def drain_router(name: str) -> None:
    """Wait for open requests to servers without a route; returns at once without a router."""
    with suppress(Refused):  # a router that is gone has no open requests
        if (router := endpoint.router(name)) is not None:
            endpoint.drain(router)


def without_canary(name: str) -> Live | None:
    """The endpoint's state without its canary; nothing is changed."""
    state = endpoint.live(name)
    return replace(state, canary=None) if state else None
