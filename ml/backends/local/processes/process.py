"""A run's processes: started in a group of their own, ended together, interrupted by signals.

Ctrl-C, SIGTERM and `ml runs cancel` ask an executor to close its run. It checks for them between
two steps, never in the middle of one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from ml.backends.local.processes import reaper as reaper_script
from ml.backends.local.processes.reaper import GRACE_S
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core import home
from ml.core.errors import Exit, Problem, Refused

# Recorded for a process that no forkserver has forked; the reason follows.
ALONE = "started by itself: "
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The grace that a stubborn command gets, and the time to close a run on a busy machine.
PATIENCE_S = GRACE_S + 60.0
POLL_S = 0.05


class Reaper:
    """The reaper of this executor's processes (see `ml.backends.local.processes.reaper`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper_script.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            cwd="/",
            env={},
        )

    def tell(self, *words: object) -> None:
        """Send one line to the reaper; a reaper that was killed does not stop the run."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the reaper; it ends what is still listed first."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True)
class Job:
    """What is to be started: a resolved command, its run, its working copy, and its output."""

    command: str
    run_id: str
    cwd: Path
    environment: Mapping[str, str]
    log: Path


class RunProcess(ABC):
    """A run's first process and its descendants (see `Shell` and `pool.Forked`).

    `poll` has to be called now and then: it sees the end and sends SIGKILL when SIGTERM was not
    enough. Whatever the command leaves running in the background ends with it, as a node would.
    """

    def __init__(self, run_id: str, reaper: Reaper) -> None:
        self._run_id = run_id
        self._reaper = reaper
        self._kill_at: float | None = None
        self._returncode: int | None = None
        reaper.tell("+", run_id)

    @property
    @abstractmethod
    def way(self) -> str:
        """How the process was started, for the run's record: for example by a shell or forked."""

    @property
    @abstractmethod
    def group(self) -> int | None:
        """The process group, which is the first process's id; None when it is not known yet."""

    @abstractmethod
    def _first(self) -> int | None:
        """Return the exit code of the first process, None while it goes on."""

    def poll(self) -> int | None:
        """Return the exit code (−N: ended by signal N); None while the command is running.

        After `terminate` the shell may end first: its children get the rest of the grace period.
        """
        if self._returncode is not None:
            return self._returncode
        code = self._first()
        terminated, late = self._kill_at is not None, time.monotonic() >= (self._kill_at or 0.0)
        if code is None or (
            terminated and not late and reaper_script.processes_of(self._run_id, self.group)
        ):
            if terminated and late:
                reaper_script.send(signal.SIGKILL, self._run_id, self.group)
            return None
        # What it left in the background.
        reaper_script.kill(self._run_id, self.group)
        self._reaper.tell("-", self._run_id)
        self._returncode = code
        return code

    def terminate(self, grace_s: float = reaper_script.GRACE_S) -> None:
        """Send SIGTERM to every process of the run; `poll` kills them after the grace period."""
        if self._returncode is not None:
            return
        kill_at = time.monotonic() + grace_s
        if self._kill_at is None:
            reaper_script.send(signal.SIGTERM, self._run_id, self.group)
        self._kill_at = min(kill_at, self._kill_at or kill_at)

    def kill(self) -> None:
        """End every process of the run at once."""
        self._kill_at = time.monotonic()
        reaper_script.send(signal.SIGKILL, self._run_id, self.group)


class Shell(RunProcess):
    """`bash -c COMMAND` for one run, its output in the job's `log`."""

    def __init__(self, job: Job, reaper: Reaper, why: str) -> None:
        super().__init__(job.run_id, reaper)
        self._why = why
        with job.log.open("ab") as sink:
            self._process = subprocess.Popen(
                ["bash", "-c", job.command],
                cwd=job.cwd,
                env=dict(job.environment),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        reaper.tell("+", job.run_id, self._process.pid)

    @property
    def way(self) -> str:
        """See RunProcess."""
        return f"{ALONE}{self._why}"

    @property
    def group(self) -> int:
        """See RunProcess."""
        return self._process.pid

    def _first(self) -> int | None:
        return self._process.poll()


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Interruption:
    """Collects the signals that ask this process to end, from entering to leaving the context.

    `name` is the first signal's ("SIGINT"), "" while there was none; `impatient` whether a second
    one followed. Outside of the main thread Python hands out no signals: nothing is collected.
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
    """End the run of that name or id, with all that it started; the run as it was closed.

    Raises Refused when it is not going on, when it is a part of another run, or when its executor
    does not end in time.
    """
    run = LocalRuns().find(wanted)
    jobs.demand_its_own(run, "cancel", "ends")
    number = jobs.executor(run.name)
    if number is None or not _signalled(number, run.name):
        raise Refused(_not_running(LocalRuns().find(run.id)))
    deadline = time.monotonic() + patience_s
    while jobs.is_alive(run.name):
        if time.monotonic() > deadline:
            actual = f"process {number} of {run.name} is still running"
            expected = f"its end within {patience_s:g} s of SIGTERM"
            hint = f"kill -9 {number} ends it and all that it has started"
            problem = Problem("cancel-timeout", actual, expected, hint)
            raise Refused(problem, exit_code=Exit.RUN_FAILED)
        time.sleep(POLL_S)
    return LocalRuns().find(run.id)


def _signalled(number: int, name: str) -> bool:
    """SIGTERM to the process, if it is the one that holds the lock of the run.

    In a container its number may be another's, so it has to have the lock file open.
    """
    import psutil

    lock = os.path.realpath(home.live() / name)
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
