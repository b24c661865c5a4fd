"""MLflow's own servers on the local store, as processes that end with their block.

One serves MLflow's pages to a person, the other the store to an MLflow that cannot open it.
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

# MLflow imports for seconds before it answers; this is for a machine that is busy.
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
        # A session of its own: Ctrl-C reaches this process alone, which then ends all of MLflow's.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_SETTINGS, **settings},
            cwd=home.home(),  # its web server imports from there
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it answers; False when it has ended, or has not begun in `START_S` seconds."""
    deadline = time.monotonic() + START_S
    while not processes.is_healthy(port, 2, "/health"):
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


def serve_pages(port: int | None, ready: Callable[[str], None]) -> None:
    """MLflow's pages: see `ml.backends.base.Backend`."""
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
    """SIGTERM and a closed terminal end the server like Ctrl-C; later signals are ignored."""
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
    """Return the address of MLflow's server in front of the store, for an MLflow that cannot open
    it: one of another version, or mlflow-skinny, which azureml-mlflow brings. On Azure ML both
    reach the workspace over HTTP.

    It ends with this block, or with this program if that is killed.
    """
    Tracking()  # makes the tables: the server must not
    port = processes.free_port()
    log = home.home() / "tracking-server.log"
    name = f"server-{os.getpid()}-{port}"
    words = ["server", "--no-serve-artifacts", "--default-artifact-root", str(home.artifacts())]
    reaper.tell("+", name)
    try:
        # The reaper's mark: whatever it starts is ended with it.
        with running(words, port, log, {"MLFLOW_RUN_ID": name}) as process:
            reaper.tell("+", name, process.pid)
            if not answers(process, port):
                raise _failure("no-tracking-server", log, "did not start")
            yield f"http://{HOST}:{port}"
    finally:
        reaper.tell("-", name)
