"""Handle Ctrl-C, SIGTERM and `ml runs cancel`: the signals that make an executor close its run.

The executor checks for collected signals once per polling turn; a handler only records them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType

from ml.backends.local.processes.reaper import GRACE_S
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core import home
from ml.core.errors import Exit, Problem, UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Timeout of a cancellation: the command's grace period, and the time to close the run.
PATIENCE_S = GRACE_S + 60.0
POLL_S = 0.05


class Interruption:
    """A context manager that collects `SIGNALS` sent to this process.

    `name` is the first signal's name ("SIGINT"), "" before it; `impatient` is True after a second
    signal. Outside of the main thread Python cannot handle signals, so nothing is collected.
    """

    def __init__(self) -> None:
        self.name = ""
        self.impatient = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.impatient = bool(self.name)
        self.name = self.name or signal.Signals(number).name


def cancel(wanted: str, patience_s: float = PATIENCE_S) -> Run:
    """Cancel the run with that name or id and all its processes; return the ended run.

    Raise UserError if it is not active, if it is a child of another run, or if its executor does
    not end within `patience_s` seconds.
    """
    run = LocalRuns().find(wanted)
    jobs.check_is_root(run, "cancel", "ends")
    number = jobs.executor(run.name)
    if number is None or not _signalled(number, run.name):
        raise UserError(_not_running(LocalRuns().find(run.id)))
    deadline = time.monotonic() + patience_s
    while jobs.is_alive(run.name):
        if time.monotonic() > deadline:
            actual = f"process {number} of {run.name} is still running"
            expected = f"its end within {patience_s:g} s of SIGTERM"
            hint = f"kill -9 {number} ends it and all that it has started"
            problem = Problem("cancel-timeout", actual, expected, hint)
            raise UserError(problem, exit_code=Exit.RUN_FAILED)
        time.sleep(POLL_S)
    return LocalRuns().find(run.id)


def _signalled(number: int, name: str) -> bool:
    """Send SIGTERM to the process if it holds the lock of the run; return whether it did.

    The lock file may contain a process id of another container: check that it has the file open.
    """
    import psutil

    lock = os.path.realpath(home.run_locks() / name)
    try:
        process = psutil.Process(number)
        if all(file.path != lock for file in process.open_files()):
            return False
        process.terminate()
    except psutil.Error:
        return False
    return True


def _not_running(run: Run) -> Problem:
    actual = f"{run.name} is {run.status}" + (f" ({run.ended_by})" if run.ended_by else "")
    return Problem("not-running", actual, "an active run", "ml runs list --status Running")
