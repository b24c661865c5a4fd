"""A run's processes: started in a group of their own, ended together."""

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

# The record of a process that was not forked by a forkserver; the reason follows.
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
