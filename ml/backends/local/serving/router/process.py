"""Start an endpoint's router, find the running one, and call its control port."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ml.backends.local.serving import processes
from ml.backends.local.serving.router.routes import SAMPLE_HEADER
from ml.core.errors import Exit, Problem, UserError
from ml.core.imports import PARTS

START_S = 30.0
CALL_S = 10.0
SAMPLE_S = 30.0
POLL_S = 0.02


@dataclass(frozen=True)
class RouterProcess:
    """A running router; methods call its control port."""

    folder: Path
    pid: int
    port: int  # for requests
    control: int  # port for commands to the router
    token: str  # secret for the control port
    sample: str  # secret that marks a release's own requests

    @property
    def url(self) -> str:
        """The URL that requests are posted to."""
        return f"http://{processes.HOST}:{self.port}/score"

    def refresh(self) -> Mapping[str, Any]:
        """Make the router read the routes file; return its state with the new routes.

        Raise UserError: router-unresponsive without a response, invalid-routes for an invalid file.
        """
        state: Mapping[str, Any] = self._call("POST", "/refresh")
        if state["problem"]:
            expected, hint = "routes that add up to 100 %", "apply the release again"
            problem = Problem("invalid-routes", state["problem"], expected, hint)
            raise UserError(problem, exit_code=Exit.RUN_FAILED)
        return state

    def renew(self) -> Mapping[str, Any]:
        """Renew the canary's lease; return the state. Raise UserError (router-unresponsive)."""
        return dict(self._call("POST", "/renew"))

    def state(self) -> Mapping[str, Any]:
        """Return routes, counters, draining requests …; raise UserError (router-unresponsive)."""
        return dict(self._call("GET", "/state"))

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the recent responses numbered above `since`, oldest first; raise as `state`."""
        return list(self._call("GET", f"/answers?since={since}"))

    @contextmanager
    def sampling(self) -> Iterator[Callable[[str], None]]:
        """Open a connection; each call of the result sends a body as a sample request.

        A call raises OSError or HTTPException without a response; the next one connects again.
        """
        connection = http.client.HTTPConnection(processes.HOST, self.port, timeout=SAMPLE_S)
        headers = {"Content-Type": "application/json", SAMPLE_HEADER: self.sample}

        def send(body: str) -> None:
            try:
                connection.request("POST", "/score", body, headers)
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
                raise

        with closing(connection):
            yield send

    def _call(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection(processes.HOST, self.control, timeout=CALL_S)
        try:
            connection.request(method, path, headers={"authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"status {response.status}")
            return json.loads(content)
        except (OSError, ValueError, http.client.HTTPException) as error:
            name = self.folder.parent.name
            raise UserError(
                Problem(
                    "router-unresponsive",
                    f"the router (process {self.pid}) does not respond: {error}",
                    hint=f"`ml serve {name} --stop` and then `ml serve {name}` restart it; "
                    f"its log: {processes.log(self.folder)}",
                ),
                exit_code=Exit.RUN_FAILED,
            ) from None
        finally:
            connection.close()


def find(folder: Path) -> RouterProcess | None:
    """Return the router of the folder; None if it does not run or does not listen."""
    try:
        document = json.loads((folder / "router.json").read_text(encoding="utf-8"))
        router = RouterProcess(folder, **document)
        process = psutil.Process(router.pid)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, psutil.Error):
        return None
    if processes.belongs(process, folder) and processes.listens(process.pid, router.port):
        return router
    return None


def last_port(folder: Path) -> int | None:
    """Return the port of the folder's last router, so that the next one keeps the address."""
    try:
        port = int(json.loads((folder / "router.json").read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return port if 0 < port <= processes.MAX_PORT else None


def start(folder: Path, routes: Path, port: int) -> RouterProcess:
    """Start a detached router with the routes file, and return it once it listens.

    Port 0 selects a free one. A running router of the folder is stopped first. Raise UserError:
    port-in-use, router-failed (with the log's last lines).
    """
    processes.stop(folder)
    (folder / "router.json").unlink(missing_ok=True)
    try:
        listener = processes.listen(port)
    except OSError:
        hint = "rerun the command, which picks another port"
        raise processes.port_in_use(port, hint, Exit.RUN_FAILED) from None
    with listener:
        process = processes.spawn(
            folder, processes.ROUTER, listener, routes, *PARTS, folder=folder, environment={}
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        router = find(folder)
        if router is not None and router.pid == process.pid:
            return router
        time.sleep(POLL_S)
    processes.stop(folder, patience_s=0.5)
    raise processes.failure(folder, "router-failed", "the router did not start")
