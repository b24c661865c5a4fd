"""The router process of one endpoint; `process.start` runs this file.

    python -IBu __main__.py FOLDER LISTENER ROUTES_FILE PART…

LISTENER is the descriptor of an inherited socket, and each PART a folder with a part of `ml`.

A second port, the control port, requires the token in FOLDER/router.json, which only the
endpoint's owner can read. It cannot change the routes, which are only in the routes file.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import uvloop
from aiohttp import hdrs, web

# Import only `ml` from the PART folders, then remove them from sys.path (see ml/core/imports.py).
sys.path.extend(sys.argv[4:])
import ml  # noqa: F401

del sys.path[-len(sys.argv[4:]) :]

from ml.backends.local.serving.processes import HOST  # noqa: E402
from ml.backends.local.serving.router.front import MAX_CONNECTIONS, BoundedServer, Load, error  # noqa: E402
from ml.backends.local.serving.router.proxy import Proxy  # noqa: E402

# Polling interval of the routes file, in case its writer could not call /refresh.
CHECK_S = 0.5
# Time for requests in flight at the end; shorter than the ten seconds of `ml serve --stop`.
PATIENCE_S = 8.0
BACKLOG = 2048
# Limit of file descriptors: each client, and each request to a deployment, has a connection.
DESCRIPTORS = 4 * MAX_CONNECTIONS


class Control:
    """The control port's handler.

    POST /refresh, POST /renew and GET /state return the state; GET /answers?since=N returns the
    recent responses.
    """

    def __init__(self, proxy: Proxy, token: str) -> None:
        self._proxy = proxy
        self._expected = f"Bearer {token}".encode()
        self._routes = {
            ("POST", "/refresh"): self._refresh,
            ("POST", "/renew"): self._renew,
            ("GET", "/state"): self._state,
            ("GET", "/answers"): self._answers,
        }

    async def handle(self, request: web.BaseRequest, _: bytes, __: Load) -> web.Response:
        """Return the response to a request: 401 without the token, 404 for an unknown route."""
        header = request.headers.get(hdrs.AUTHORIZATION, "")
        if not hmac.compare_digest(header.encode("utf-8", "surrogateescape"), self._expected):
            return error(401, "the token is missing or wrong")
        route = self._routes.get((request.method, request.rel_url.path))
        return web.json_response(route(request)) if route else error(404, "no such route")

    def _refresh(self, request: web.BaseRequest) -> object:
        self._proxy.refresh()
        return self._state(request)

    def _renew(self, request: web.BaseRequest) -> object:
        self._proxy.renew()
        return self._state(request)

    def _state(self, _: web.BaseRequest) -> object:
        proxy = self._proxy
        return {
            "generation": proxy.generation,
            "problem": proxy.problem,
            "leased": proxy.leased,
            "routes": asdict(proxy.routes) if proxy.routes else None,
            "tallies": {
                name: asdict(target.counters) for name, target in proxy.deployments.items()
            },
            "in_flight": {name: target.in_flight for name, target in proxy.deployments.items()},
            "draining": [
                {"deployment": target.name, "port": target.port, "in_flight": target.in_flight}
                for target in proxy.draining
                if target.in_flight
            ],
            "last_answer": proxy.recent.last,
            "collected": {
                "written": proxy.collector.written,
                "lost": proxy.collector.lost,
                "problem": proxy.collector.problem,
            },
        }

    def _answers(self, request: web.BaseRequest) -> object:
        since = request.query.get("since", "0")
        recent = self._proxy.recent.since(int(since) if since.isdecimal() else 0)
        return [answer.to_json() for answer in recent]


async def serve(folder: Path, listener: socket.socket, file: Path) -> None:
    """Serve until SIGTERM; then accept no new connection and finish the requests in flight."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    token, sample = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    proxy = Proxy(file, sample)
    proxy.refresh()
    control = web.ServerRunner(BoundedServer(Control(proxy, token).handle), shutdown_timeout=1.0)
    front = web.ServerRunner(BoundedServer(proxy.handle), shutdown_timeout=PATIENCE_S)
    await control.setup()
    await front.setup()
    await web.TCPSite(control, HOST, 0).start()
    await web.SockSite(front, listener, backlog=BACKLOG).start()
    ports = {"port": listener.getsockname()[1], "control": control.addresses[0][1]}
    _announce(folder, {"pid": os.getpid(), **ports, "token": token, "sample": sample})
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), CHECK_S)
        except TimeoutError:
            proxy.refresh()
    await front.cleanup()
    await proxy.close(PATIENCE_S)
    await control.cleanup()


def _announce(folder: Path, router: Mapping[str, int | str]) -> None:
    """Write router.json (ports and secrets) atomically, readable only for its owner."""
    unfinished = folder / f".router.json.{os.getpid()}.tmp"
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(router))
    unfinished.replace(folder / "router.json")


def main() -> None:
    """Serve until a signal ends it."""
    folder, listener, file = sys.argv[1:4]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    gc.freeze()  # imported modules are never collected: do not scan them
    uvloop.run(serve(Path(folder), socket.socket(fileno=int(listener)), Path(file)))


if __name__ == "__main__":
    main()
