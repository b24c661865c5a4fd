"""MLflow's own server in front of the store, for environments whose MLflow cannot open it.

The store has the tables of this interpreter's MLflow. Another version refuses them, and
mlflow-skinny, which azureml-mlflow brings, has nothing to open a database with; on Azure ML both
reach the workspace over HTTP, and so they do here.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ml.backends.local import home, outcome
from ml.backends.local.process import Watchman
from ml.backends.local.tracking import Tracking
from ml.specs.problems import Exit, Problem, Refused

HOST = "127.0.0.1"
START_S = 120.0
GRACE_S = 10.0
_POLL_S = 0.1


@contextmanager
def serving(watchman: Watchman) -> Iterator[str]:
    """The address of a server that ends with this block, or with this program if it is killed."""
    Tracking()  # the server must not be the one that makes the tables
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    log = home.home() / "tracking-server.log"
    name = f"server-{os.getpid()}-{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--no-serve-artifacts"]
    command += ["--backend-store-uri", home.tracking_uri(), "--host", HOST, "--port", str(port)]
    command += ["--default-artifact-root", str(home.artifacts()), "--workers", "1"]
    settings = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # The watchman's mark: whatever it starts is ended with it.
        "MLFLOW_RUN_ID": name,
    }
    watchman.tell("+", name)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    watchman.tell("+", name, process.pid)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                said = "".join(f"\n    | {line}" for line in outcome.last_lines(log))
                raise Refused(
                    Problem("no-tracking-server", f"MLflow's server did not start:{said}"),
                    exit_code=Exit.RUN_FAILED,
                )
            time.sleep(_POLL_S)
        yield f"http://{HOST}:{port}"
    finally:
        _end(process)
        watchman.tell("-", name)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
