"""An endpoint of this machine: two slots, blue and green, behind a router, and the file live.json.

live.json names the live server, the canary and the traffic split; the router uses its `routes`. It
is replaced atomically, and the router then reads it. A canary may have a third slot, its baseline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from ml.backends import endpoints
from ml.backends.endpoints import Answer, Canary, Live, ModelDeployment, Server
from ml.backends.local.serving import processes, server
from ml.backends.local.serving.router import process
from ml.backends.local.serving.router.process import RouterProcess
from ml.backends.local.serving.router.records import EXPOSED, FOLDER, numbered
from ml.backends.traffic import TIMEOUT_MS
from ml.core import faults, files, home
from ml.core import names as forms
from ml.core.errors import Exit, Problem, UserError

ROUTER = "router"
STATE = "live.json"
POLL_S = 0.02
# If a release does not renew the lease for this long, the live server gets all traffic.
LEASE_S = 15.0


_LIVE = TypeAdapter(Live)


def folder(endpoint: str) -> Path:
    """Return `endpoints/<endpoint>/` of the local home: the state, the lock, and the slots.

    The path is resolved, since processes are found by the path in their command line. Raise
    UserError for an invalid endpoint name.
    """
    return home.home().resolve() / "endpoints" / forms.check("endpoint", endpoint)


def names() -> Sequence[str]:
    return sorted(path.name for path in (home.home() / "endpoints").glob("*") if path.is_dir())


def name_of(model: str, environment: str) -> str:
    """Return the name of the model's endpoint: MODEL for `local`, else MODEL-ENVIRONMENT."""
    return model if environment == "local" else f"{model}-{environment}"


def live(endpoint: str, *, as_released: bool = True) -> Live | None:
    """Return the state in live.json, running or not; None if nothing was ever live.

    Only releases write that file. Raise UserError if it cannot be read.
    """
    path = folder(endpoint) / STATE
    try:
        with faults.as_user_errors():
            content = path.read_bytes() if path.exists() else None
    except FileNotFoundError:  # a release removed it meanwhile
        return None
    if content is None:
        return None
    try:
        return _LIVE.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        problem = Problem(
            "endpoint-state-unreadable",
            f"{path} cannot be read: {f'{field}: ' if field else ''}{first['msg']}",
            "the state that a release wrote",
            f"delete it and apply again:  ml release apply PROJECT (endpoint {endpoint})",
        )
        raise UserError(problem, exit_code=Exit.RUN_FAILED) from None


log, failure, check_deployment = processes.log, processes.failure, endpoints.check_deployment
is_up = server.is_up
reserve = p95_ms = None  # no other machine releases here, and the evidence is measured here


def switch(endpoint: str, to: Live | None) -> None:
    """Replace the state atomically and notify the router; None means that nothing is served.

    When this returns, a running router uses the new routes. Raise UserError if it cannot.
    """
    path = folder(endpoint) / STATE
    if to is None:
        path.unlink(missing_ok=True)
    else:
        files.replace(path, json.dumps(document(to), indent=1) + "\n")
    if (running := router(endpoint)) is not None:
        running.refresh()


def locked(endpoint: str) -> AbstractContextManager[None]:
    return files.locked(folder(endpoint) / "lock")


def router(endpoint: str) -> RouterProcess | None:
    return process.find(folder(endpoint) / ROUTER)


def collected(endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
    running = router(endpoint)
    if running is not None:
        running.refresh()  # flush its recorded requests
    for path in numbered(folder(endpoint) / FOLDER):
        with suppress(FileNotFoundError):  # the router deleted the oldest file
            yield from files.json_lines(path)


def exposed(endpoint: str, experiment: str) -> Iterator[Mapping[str, Any]]:
    path = folder(endpoint) / EXPOSED / f"{experiment}.jsonl"
    return files.json_lines(path) if path.is_file() else iter(())


def url(endpoint: str) -> str | None:
    running, current = router(endpoint), live(endpoint)
    return running.url if running and current and server.is_up(current.server) else None


def start_router(endpoint: str, port: int | None = None) -> RouterProcess:
    """Return the endpoint's router, started on `port` if necessary; the caller has the lock.

    If `port` is None, it keeps its last one. Raise UserError (port-in-use, router-failed); a
    previous router then keeps running.
    """
    slot = folder(endpoint) / ROUTER
    running = process.find(slot)
    if running is not None and port in (None, running.port):
        return running
    if port is not None and not processes.port_is_free(port):
        hint = f"`ml serve {endpoint}` picks a free one; or `--port N` with another"
        raise processes.port_in_use(port, hint)
    last = process.last_port(slot)
    if port is None:
        port = last if last and processes.port_is_free(last) else 0
    file = folder(endpoint) / STATE
    try:
        return process.start(slot, file, port)
    except UserError:
        if running is not None:
            process.start(slot, file, running.port)
        raise


def drain(endpoint: str) -> None:
    """Wait until no request is in flight to a deployment outside the current routes.

    Wait at most for the request timeout; return at once without a router. Raise as
    `RouterProcess.state`.
    """
    running = router(endpoint)
    if running is None:
        return
    state = running.state()
    timeout_ms = (state["routes"] or {"timeout_ms": TIMEOUT_MS})["timeout_ms"]
    deadline = time.monotonic() + timeout_ms / 1000 + 1
    while state["draining"] and time.monotonic() < deadline:
        time.sleep(POLL_S)
        state = running.state()


def ensure(endpoint: str, port: int | None = None) -> tuple[Live, bool]:
    """Start the live servers and their router if they are down.

    Return the state, and whether anything was started. Raise UserError: no-live-deployment,
    model-corrupt, and the errors of `server.start` and `start_router`.
    """
    current = live(endpoint)
    if current is None:  # check before locking, which would create the folder
        raise nothing_served(endpoint)
    if _runs(endpoint, current, port):
        return current, False
    with locked(endpoint):
        current = live(endpoint)
        if current is None:
            raise nothing_served(endpoint)
        if _runs(endpoint, current, port):
            return current, False
        if not server.is_up(current.server):
            check_deployment(current.deployment)
            current = replace(current, server=server.start(current.server.slot, current.deployment))
        if not all(map(server.is_up, current.canary_servers)):
            # A release starts its canary again itself; only an experiment's is restarted here.
            current = replace(current, canary=_restart(current.canary))
        switch(endpoint, current)
        start_router(endpoint, port)
        stop_idle(endpoint)
        return current, True


def stop(endpoint: str) -> bool:
    with locked(endpoint):
        slots = [path for path in folder(endpoint).iterdir() if path.is_dir()]
        # Stop the router first, while the servers can still respond to requests in flight.
        slots.sort(key=lambda slot: slot.name != ROUTER)
        return bool([slot for slot in slots if processes.stop(slot)])


def stop_idle(endpoint: str) -> None:
    current = live(endpoint)
    used = {folder(endpoint) / ROUTER} if current else set()
    if current:
        used |= {running.slot for running in (current.server, *current.canary_servers)}
    for slot in folder(endpoint).iterdir():
        if slot.is_dir() and slot not in used:
            processes.stop(slot)


def begin(deployment: ModelDeployment, slot: str = "") -> Callable[[], Server]:
    place = folder(deployment.endpoint) / (slot or endpoints.idle_slot(live(deployment.endpoint)))
    starting = server.begin(place, deployment)
    return lambda: server.wait_until_ready(starting)


@dataclass(frozen=True)
class LocalCandidate:
    """Implements `ml.backends.endpoints.Candidate`."""

    server: Server

    def score(self, body: Mapping[str, object]) -> Answer:
        return server.score(self.server.port, body)

    def measure(self, bodies: Sequence[Mapping[str, object]], requests: int) -> list[float]:
        return server.measure_alone(self.server.pid, self.server.port, bodies, requests)

    def failure(self, code: str, what: str, expected: str = "", hint: str = "") -> UserError:
        return processes.failure(self.server.slot, code, what, expected, hint)


@contextmanager
def candidate(deployment: ModelDeployment) -> Iterator[LocalCandidate]:
    """Run a server in the slot `candidate`, and lock the endpoint; raise as `server.start`."""
    slot = folder(deployment.endpoint) / "candidate"
    with locked(deployment.endpoint):
        started = server.start(slot, deployment)
        try:
            yield LocalCandidate(started)
        finally:
            processes.stop(slot)


def score(running: Server, body: Mapping[str, object]) -> Answer:
    return server.score(running.port, body)


def ask(endpoint: str, body: Mapping[str, object]) -> Answer:
    if (running := router(endpoint)) is None:
        raise nothing_served(endpoint)
    return server.score(running.port, body)


def resident(running: Server) -> tuple[float, float] | None:
    try:
        process = psutil.Process(running.pid)
        family = [process, *process.children(recursive=True)]
        return time.time(), float(sum(member.memory_info().rss for member in family))
    except psutil.Error:
        return None


def nothing_served(endpoint: str) -> UserError:
    return UserError(
        Problem(
            "no-live-deployment",
            f"no model has been promoted to the endpoint `{endpoint}` on this machine",
            f"one of: {', '.join(names())}" if names() else "a promoted model",
            "`make demo`, or step by step:  ml run JOB, ml release propose PROJECT, "
            "ml release apply PROJECT --approved-by NAME",
        )
    )


def document(state: Live) -> Mapping[str, object]:
    """Return the content of live.json: the state, and the routes derived from it."""
    return {**_LIVE.dump_python(state, mode="json"), "routes": routes(state)}


def routes(state: Live) -> Mapping[str, Any]:
    """Return the routes of the state as JSON, for the router (`RouteTable`)."""
    canary = state.canary
    timeout_ms = int(state.deployment.environment_variables.get("SCORING_TIMEOUT_MS", TIMEOUT_MS))
    name = state.server.slot.name
    servers = (*state.canary_servers, state.server)
    deployments = {running.slot.name: state.in_slot(running.slot.name)[1] for running in servers}
    return {
        "live": name,
        "ports": {running.slot.name: running.port for running in servers},
        "pids": {running.slot.name: running.pid for running in servers},
        "traffic": state.traffic,
        "mirror": state.mirror,
        "timeout_ms": timeout_ms,
        "lease_s": LEASE_S if canary and not canary.experiment else None,
        "experiment": canary.experiment if canary else "",
        "salt": canary.salt if canary else "",
        "collect": {slot: deployment.collect for slot, deployment in deployments.items()},
        "digests": {slot: deployment.digest for slot, deployment in deployments.items()},
    }


def _restart(canary: Canary | None) -> Canary | None:
    """Restart an experiment's canary; return None for a release's, or if the start fails."""
    if canary is None or not canary.experiment:
        return None
    try:
        check_deployment(canary.deployment)
        return replace(canary, server=server.start(canary.server.slot, canary.deployment))
    except UserError:
        return None


def _runs(endpoint: str, current: Live, port: int | None) -> bool:
    """Return whether the live server, the router (on `port`) and an experiment's servers run."""
    running = router(endpoint)
    others = current.canary_servers if current.canary and current.canary.experiment else ()
    up = all(map(server.is_up, (current.server, *others)))
    return running is not None and port in (None, running.port) and up
