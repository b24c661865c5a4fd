"""MLflow's own pages on the local store, as a child process that never outlives this one's end."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ml.backends.local import home, outcome
from ml.specs.problems import Exit, Problem, Refused

HOST = "127.0.0.1"
# MLflow imports for seconds before it answers; this is for a machine that is busy.
START_S = 120.0
GRACE_S = 10.0
_POLL_S = 0.1


def serve(port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, which is the way to end it; `ready` is told the address.

    Raises Refused when there is no store, and with the end of MLflow's log when it ends by itself.
    """
    if not home.database().exists():
        raise Refused(
            Problem(
                "no-runs",
                f"there is no tracking store at {home.database()}",
                "a run on this machine, or MLOPS_HOME that names the folder of one",
                "ml run SPEC",
            )
        )
    log = home.home() / "mlflow-ui.log"
    with _interruptible(), _server(port, log) as process, suppress(KeyboardInterrupt):
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise _ended(log, "did not start")
            time.sleep(_POLL_S)
        ready(f"http://{HOST}:{port}")
        process.wait()
        raise _ended(log, f"ended by itself with {process.returncode}")


@contextmanager
def _server(port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", home.tracking_uri()]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("wb") as stream:
        # A session of its own: Ctrl-C reaches this process alone, which then ends all of MLflow's.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to MLflow and its workers, and SIGKILL to what is left of them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the server as Ctrl-C does, and only the first counts."""
    names = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for name in names:
            signal.signal(name, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {name: signal.signal(name, interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _ended(log: Path, how: str) -> Refused:
    said = "".join(f"\n    | {line}" for line in outcome.last_lines(log))
    return Refused(
        Problem("ui-ended", f"MLflow's server {how}; its log ends:{said}", hint=f"less {log}"),
        exit_code=Exit.RUN_FAILED,
    )
