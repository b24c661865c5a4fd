"""Run MLflow's servers on the local store, as processes that end with their block.

One serves MLflow's UI; the other serves the store to jobs with another version of MLflow.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ml.backends.local import outcome
from ml.backends.local.processes.process import Reaper
from ml.backends.local.serving import processes
from ml.backends.local.serving.processes import HOST
from ml.backends.local.tracking.tracking import Tracking
from ml.core import home
from ml.core.errors import Exit, Problem, UserError

# Timeout of the start: MLflow's imports take seconds, on a busy machine much longer.
START_S = 120.0
GRACE_S = 10.0
_POLL_S = 0.1
_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextmanager
def running(
    words: Sequence[str], port: int, log: Path, settings: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `mlflow WORDS` on the store with one worker; its output goes to `log`."""
    command = [*(sys.executable, "-P", "-m", "mlflow"), *words]
    command += ["--backend-store-uri", home.tracking_uri()]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    with log.open("wb") as stream:
        # In a separate session Ctrl-C reaches only this process, which then ends MLflow's.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_SETTINGS, **settings},
            cwd=home.home(),  # its web server imports modules from the working directory
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server responds; return False if it ends, or after START_S seconds."""
    deadline = time.monotonic() + START_S
    while not processes.is_healthy(port, 2, "/health"):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to MLflow and its workers; after GRACE_S seconds or the end, SIGKILL."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def serve_pages(port: int | None, ready: Callable[[str], None]) -> None:
    """Serve MLflow's UI (see `ml.backends.base.Backend`); raise UserError if it fails."""
    if port is not None and not processes.port_is_free(port):
        raise processes.port_in_use(port, "omit --port to use a free one")
    port = port or processes.free_port()
    if not home.database().exists():
        actual = f"no tracking store at {home.database()}"
        expected = "a run on this machine, or MLOPS_HOME that names the folder of one"
        raise UserError(Problem("no-runs", actual, expected, "ml run SPEC"))
    log = home.home() / "mlflow-ui.log"
    with (
        _interruptible(),
        running(["ui"], port, log, {}) as process,
        suppress(KeyboardInterrupt),
    ):
        if not answers(process, port):
            raise _failure("ui-failed", log, "did not start")
        ready(f"http://{HOST}:{port}")
        process.wait()
        raise _failure("ui-failed", log, f"exited with {process.returncode}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block for SIGTERM and SIGHUP too; ignore later signals."""
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


def _failure(code: str, log: Path, how: str) -> UserError:
    text = f"MLflow's server {how}; its log ends:{outcome.log_end(log)}"
    return UserError(Problem(code, text, hint=f"less {log}"), exit_code=Exit.RUN_FAILED)


@contextmanager
def in_front_of_store(reaper: Reaper) -> Iterator[str]:
    """Run MLflow's tracking server on the store; yield its URL.

    It is for an MLflow that cannot open the store: another version, or mlflow-skinny, which
    azureml-mlflow installs. The server ends with the block, or if this process is killed.
    """
    Tracking()  # creates the tables: the server must not
    port = processes.free_port()
    log = home.home() / "tracking-server.log"
    name = f"server-{os.getpid()}-{port}"
    words = ["server", "--no-serve-artifacts", "--default-artifact-root", str(home.artifacts())]
    reaper.tell("+", name)
    try:
        # By MLFLOW_RUN_ID the reaper finds the server and its child processes.
        with running(words, port, log, {"MLFLOW_RUN_ID": name}) as process:
            reaper.tell("+", name, process.pid)
            if not answers(process, port):
                raise _failure("no-tracking-server", log, "did not start")
            yield f"http://{HOST}:{port}"
    finally:
        reaper.tell("-", name)
