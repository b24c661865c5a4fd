"""A run's processes: start them in a separate process group, and end them together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ml.backends.local.processes import reaper as reaper_script

# Prefix of `RunProcess.start_method` for a process that no forkserver forked; the reason follows.
ALONE = "started by itself: "


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
        """Stop the reaper; it first ends the processes that are still registered."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


@dataclass(frozen=True)
class Job:
    """A process to start: a resolved command, its run, working copy, variables and log."""

    command: str
    run_id: str
    cwd: Path
    environment: Mapping[str, str]
    log: Path


class RunProcess(ABC):
    """A run's first process and its descendants (see `Shell` and `pool.Forked`).

    Call `poll` regularly: it detects the end, and sends SIGKILL after the grace period. Background
    processes end with the command, as on a node.
    """

    def __init__(self, run_id: str, reaper: Reaper) -> None:
        self._run_id = run_id
        self._reaper = reaper
        self._kill_at: float | None = None
        self._returncode: int | None = None
        reaper.tell("+", run_id)

    @property
    @abstractmethod
    def start_method(self) -> str:
        """How the process was started, for the run's record: forked, or alone with the reason."""

    @property
    @abstractmethod
    def group(self) -> int | None:
        """The process group: the first process's id; None until it is known."""

    @abstractmethod
    def _first(self) -> int | None:
        """Return the exit code of the first process; None while it is running."""

    def poll(self) -> int | None:
        """Return the exit code (−N: ended by signal N); None while the command is running.

        If the shell ends first after `terminate`, its children get the rest of the grace period.
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
        # Kill background processes.
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
        """Kill every process of the run without a grace period."""
        self._kill_at = time.monotonic()
        reaper_script.send(signal.SIGKILL, self._run_id, self.group)


class Shell(RunProcess):
    """`bash -c COMMAND` for one run, with its output in the job's `log`."""

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
    def start_method(self) -> str:
        """See RunProcess."""
        return f"{ALONE}{self._why}"

    @property
    def group(self) -> int:
        """See RunProcess."""
        return self._process.pid

    def _first(self) -> int | None:
        return self._process.poll()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
