"""Starting an endpoint's router, finding the one that runs, and talking to it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ml.core.errors import Exit, Problem, Refused
from ml.serving import ports, slots

START_S = 30.0
CALL_S = 10.0
POLL_S = 0.02


@dataclass(frozen=True)
class Router:
    """A router that runs: its folder, process, the port of requests and the one that it obeys."""

    folder: Path
    pid: int
    port: int
    control: int
    token: str

    @property
    def url(self) -> str:
        """Where requests are posted."""
        return f"http://{ports.HOST}:{self.port}/score"

    def refresh(self) -> Mapping[str, Any]:
        """Have the routes file read now; the state once it is in force.

        Raises Refused (router-silent) when nobody answers, (routes-refused) when the router cannot
        follow the file.
        """
        state: Mapping[str, Any] = self._call("POST", "/refresh")
        if state["problem"]:
            problem = Problem("routes-refused", state["problem"], "routes that add up to 100 %")
            raise Refused(problem, exit_code=Exit.RUN_FAILED)
        return state

    def renew(self) -> Mapping[str, Any]:
        """Say that somebody watches the canary; returns the state. Raises as `refresh`."""
        found: Mapping[str, Any] = self._call("POST", "/renew")
        return found

    def state(self) -> Mapping[str, Any]:
        """Routes, counters and what still drains; raises as `refresh`."""
        found: Mapping[str, Any] = self._call("GET", "/state")
        return found

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """The recorded answers after that number, the oldest first; raises as `refresh`."""
        found: Sequence[Mapping[str, Any]] = self._call("GET", f"/answers?since={since}")
        return found

    def _call(self, method: str, path: str) -> Any:
        connection = http.client.HTTPConnection(ports.HOST, self.control, timeout=CALL_S)
        try:
            connection.request(method, path, headers={"authorization": f"Bearer {self.token}"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"status {response.status}")
            return json.loads(content)
        except (OSError, ValueError, http.client.HTTPException) as error:
            name = self.folder.parent.name
            raise Refused(
                Problem(
                    "router-silent",
                    f"the router (process {self.pid}) does not answer: {error}",
                    hint=f"`ml serve {name} --stop` and then `ml serve {name}` start it anew; "
                    f"its log: {slots.log(self.folder)}",
                ),
                exit_code=Exit.RUN_FAILED,
            ) from None
        finally:
            connection.close()


def find(folder: Path) -> Router | None:
    """The router of the folder, if it runs and listens."""
    try:
        document = json.loads((folder / "router.json").read_text(encoding="utf-8"))
        found = Router(folder, **document)
        process = psutil.Process(found.pid)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, psutil.Error):
        return None
    return found if slots.carries(process, folder) and ports.listens(process, found.port) else None


def last_port(folder: Path) -> int | None:
    """Where the folder's last router listened, so that the next one keeps the address."""
    try:
        port = int(json.loads((folder / "router.json").read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return port if 0 < port <= ports.LARGEST else None


def start(folder: Path, routes: Path, port: int) -> Router:
    """Start a router over the routes file, detached, and return it once it answers.

    One that runs in the folder is stopped first. Raises Refused (router-failed) with its log.
    """
    slots.stop(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "router.json").unlink(missing_ok=True)
    passed = ("HOME", "LANG", "PATH", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
    with slots.log(folder).open("wb") as stream:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", str(slots.ROUTER_LAUNCHER)),
                *(str(folder), str(port), str(routes)),
            ],
            cwd=folder,
            env={name: os.environ[name] for name in passed if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        found = find(folder)
        if found is not None and found.pid == process.pid:
            return found
        time.sleep(POLL_S)
    slots.stop(folder, patience_s=0.5)
    if not ports.is_free(port):
        raise Refused(ports.taken(port, "router"), exit_code=Exit.RUN_FAILED)
    raise Refused(
        Problem(
            "router-failed",
            f"the router did not start on port {port}; its log ends:\n{slots.last_lines(folder)}",
            hint=f"the whole log: {slots.log(folder)}",
        ),
        exit_code=Exit.RUN_FAILED,
    )
