"""An endpoint of this machine: two slots, blue and green, behind a router, and a file of the state.

`live.json` (`ml.serving.state`) is replaced in one step, and then the router is told. While a
canary is on, a third slot holds its baseline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from ml.core import files, home
from ml.core.errors import Exit, Problem, Refused
from ml.serving import ports, server, slots, state
from ml.serving.router import process
from ml.serving.router.process import Router
from ml.serving.router.routes import TIMEOUT_MS
from ml.serving.scoring.manifest import ManifestError, verify
from ml.serving.server import Launch
from ml.serving.state import Canary, Live

SLOTS = ("blue", "green")
ROUTER = "router"
BASELINE = "baseline"
POLL_S = 0.02


def folder(endpoint: str) -> Path:
    """`endpoints/<endpoint>/` of the local home: the state, the lock, and a folder a slot.

    Resolved, since servers are found by it whichever way the home was spelled.
    """
    return home.home().resolve() / "endpoints" / endpoint


def every() -> Sequence[str]:
    """The endpoints that something was ever served on, by name."""
    return sorted(path.parent.name for path in (home.home() / "endpoints").glob("*/live.json"))


def folders() -> Sequence[str]:
    """The endpoints that have a folder: a first candidate is measured before anything is live."""
    return sorted(path.name for path in (home.home() / "endpoints").glob("*") if path.is_dir())


def live(endpoint: str) -> Live | None:
    """What is live by the state file, whether or not it runs now; None when nothing ever was.

    Raises Refused when the file cannot be read.
    """
    path = folder(endpoint) / "live.json"
    try:
        return state.parsed(folder(endpoint), json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = Problem(
            "endpoint-state",
            f"{path} cannot be read: {error}",
            "the state that a release wrote",
            f"remove it and apply again: ml release apply PROJECT --to local (endpoint {endpoint})",
        )
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def switch(endpoint: str, to: Live | None) -> None:
    """Make `to` the state, in one step, and tell the router; None says that nothing is served.

    When this returns, a router that runs follows it. Raises Refused when the router cannot.
    """
    path = folder(endpoint) / "live.json"
    if to is None:
        path.unlink(missing_ok=True)
    else:
        files.replace(path, json.dumps(state.document(to), indent=1) + "\n")
    if (running := router(endpoint)) is not None:
        running.refresh()


def other_slot(endpoint: str) -> Path:
    """The slot that is not live, for the next version."""
    current = live(endpoint)
    taken = current.server.slot.name if current else SLOTS[1]
    return folder(endpoint) / next(name for name in SLOTS if name != taken)


def locked(endpoint: str) -> AbstractContextManager[None]:
    """Hold the endpoint: starting, stopping and switching happen one at a time."""
    return files.locked(folder(endpoint) / "lock")


def router(endpoint: str) -> Router | None:
    """The endpoint's router, if it runs."""
    return process.find(folder(endpoint) / ROUTER)


def url(endpoint: str) -> str | None:
    """Where requests are posted now; None when they would not be answered."""
    found, current = router(endpoint), live(endpoint)
    return found.url if found and current and server.is_up(current.server) else None


def front(endpoint: str, port: int | None = None) -> Router:
    """The endpoint's router, running, on that port if one is named; the caller holds the endpoint.

    Without one it keeps the port that it had. Raises Refused (port-in-use, router-failed); a router
    that ran goes on then.
    """
    where = folder(endpoint) / ROUTER
    running = process.find(where)
    if running is not None and port in (None, running.port):
        return running
    if port is not None and not ports.is_free(port):
        raise server.port_in_use(endpoint, port)
    before = process.last_port(where)
    kept = before if before is not None and ports.is_free(before) else ports.free()
    routes = folder(endpoint) / "live.json"
    try:
        return process.start(where, routes, port or kept)
    except Refused:
        if running is not None:
            process.start(where, routes, running.port)
        raise


def drained(router: Router) -> None:
    """Wait until nothing is under way to a deployment that was taken out of the routes.

    No longer than the router itself would wait for an answer; raises as `Router.state`.
    """
    now = router.state()
    routes = now["routes"] or {"timeout_ms": TIMEOUT_MS}
    deadline = time.monotonic() + routes["timeout_ms"] / 1000 + 1
    while now["draining"] and time.monotonic() < deadline:
        time.sleep(POLL_S)
        now = router.state()


def ensure(endpoint: str, port: int | None = None) -> tuple[Live, bool]:
    """What is live, running behind its router; and whether anything had to be started.

    Raises Refused: nothing-served, model-corrupt, and what `server.start` and `front` raise.
    """
    current = live(endpoint)
    if current is not None and _serves(endpoint, current, port):
        return current, False
    with locked(endpoint):
        current = live(endpoint)
        if current is None:
            raise nothing_served(endpoint)
        if _serves(endpoint, current, port):
            return current, False
        if not server.is_up(current.server):
            check_model(current.launch)
            current = replace(current, server=server.start(current.server.slot, current.launch))
        if not all(server.is_up(one) for one in current.beside):
            # An apply starts its canary anew; an experiment goes on.
            current = replace(current, canary=_again(current.canary))
        switch(endpoint, current)
        front(endpoint, port)
        stop_idle(endpoint)
        return current, True


def stop(endpoint: str) -> bool:
    """Stop every server of the endpoint; what is declared stays declared. Whether one ran."""
    with locked(endpoint):
        found = [path for path in folder(endpoint).iterdir() if path.is_dir()]
        # The router first: what stands behind it then answers what is under way.
        found.sort(key=lambda path: path.name != ROUTER)
        return bool([path for path in found if slots.stop(path)])


def stop_idle(endpoint: str) -> None:
    """Stop every server that has no part in the state; the caller holds the endpoint.

    The router goes with the last of them.
    """
    current = live(endpoint)
    needed = {folder(endpoint) / ROUTER} if current else set()
    if current:
        needed |= {one.slot for one in (current.server, *current.beside)}
    for path in folder(endpoint).iterdir():
        if path.is_dir() and path not in needed:
            slots.stop(path)


def check_model(launch: Launch) -> None:
    """Refuse a model folder that is not, to the bit, the one that was registered."""
    try:
        verify(launch.model_folder, launch.digest)
    except (ManifestError, OSError) as error:
        problem = Problem(
            "model-corrupt",
            str(error),
            f"{launch.model} {launch.version} with the digest {launch.digest}",
            "nothing was loaded; propose and apply a version whose files are sound",
        )
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def nothing_served(endpoint: str) -> Refused:
    """What a person is told who asks an endpoint that nothing was promoted to."""
    return Refused(
        Problem(
            "nothing-served",
            f"no model has been promoted to the endpoint `{endpoint}` on this machine",
            f"one of: {', '.join(every())}" if every() else "a promoted model",
            "`make demo` goes the whole way; step by step: ml run JOB, ml release propose PROJECT, "
            "ml release apply PROJECT --approved-by NAME",
        )
    )


def _again(beside: Canary | None) -> Canary | None:
    """The experiment's version, running; None when it cannot be: what is live goes before."""
    if beside is None or not beside.experiment:
        return None
    try:
        check_model(beside.launch)
        return replace(beside, server=server.start(beside.server.slot, beside.launch))
    except Refused:
        return None


def _serves(endpoint: str, current: Live, port: int | None) -> bool:
    found = router(endpoint)
    beside = current.beside if current.canary and current.canary.experiment else ()
    up = all(server.is_up(one) for one in (current.server, *beside))
    return found is not None and port in (None, found.port) and up
