"""MLflow's own pages on the local store, as a child process that never outlives this one's end."""

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
    with (
        _interruptible(),
        mlflow_server.running(["ui"], port, log, {}) as process,
        suppress(KeyboardInterrupt),
    ):
        if not mlflow_server.answers(process, port):
            raise _ended(log, "did not start")
        ready(f"http://{mlflow_server.HOST}:{port}")
        process.wait()
        raise _ended(log, f"ended by itself with {process.returncode}")


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


def _ended(log: Path, how: str) -> Refused:
    said = "".join(f"\n    | {line}" for line in outcome.last_lines(log))
    return Refused(
        Problem("ui-ended", f"MLflow's server {how}; its log ends:{said}", hint=f"less {log}"),
        exit_code=Exit.RUN_FAILED,
    )
