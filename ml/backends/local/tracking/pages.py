"""MLflow's own pages on the local store, served by a child process that ends with this one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from ml.backends.local import outcome
from ml.backends.local.tracking import mlflow_server
from ml.core import home
from ml.core.errors import Exit, Problem, Refused


def serve(port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; `ready` is called with the address.

    Raises Refused when there is no store, and with the end of MLflow's log when MLflow exits.
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
    with (
        _interruptible(),
        mlflow_server.running(["ui"], port, log, {}) as process,
        suppress(KeyboardInterrupt),
    ):
        if not mlflow_server.answers(process, port):
            raise _failure(log, "did not start")
        ready(f"http://{mlflow_server.HOST}:{port}")
        process.wait()
        raise _failure(log, f"exited with {process.returncode}")


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


def _failure(log: Path, how: str) -> Refused:
    lines = "".join(f"\n    | {line}" for line in outcome.last_lines(log))
    return Refused(
        Problem("ui-ended", f"MLflow's server {how}; its log ends:{lines}", hint=f"less {log}"),
        exit_code=Exit.RUN_FAILED,
    )
