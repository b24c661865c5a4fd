"""One of MLflow's own servers on the local store, as a process that ends with its block."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ml.core import home

HOST = "127.0.0.1"
# MLflow imports for seconds before it answers; this is for a machine that is busy.
START_S = 120.0
GRACE_S = 10.0
_POLL_S = 0.1
_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextmanager
def running(
    words: Sequence[str], port: int, log: Path, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """`mlflow WORDS` on the store, with one worker; what it prints goes to `log`."""
    command = [sys.executable, "-m", "mlflow", *words, "--backend-store-uri", home.tracking_uri()]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    with log.open("wb") as stream:
        # A session of its own: Ctrl-C reaches this process alone, which then ends all of MLflow's.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_SETTINGS, **settings},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it answers; False when it has ended, or has not begun in `START_S` seconds."""
    deadline = time.monotonic() + START_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to MLflow and its workers, and SIGKILL to what is left of them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
