"""Trials that start in milliseconds: forked from an interpreter that has their imports already.

`Pool.start` does that for commands that are a plain `python …` (`plain_python`),
on Linux; every other command gets a shell of its own, as it would without a pool, and the reason is
kept with the run. So is a trial whose warm interpreter turns out to be of no use, or ends: none is
lost. `MLOPS_POOL=off` turns the pool off. What a script sees is the same either way, but for what
tests/backends/test_pool_faithful.py lists.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ml.backends.local import environment
from ml.backends.local.pool import imports, plain_python
from ml.backends.local.pool.plain_python import Invocation
from ml.backends.local.pool.warm import Ask, Interpreter
from ml.backends.local.processes.process import RunProcess, Shell, Watchman
from ml.backends.local.snapshots.snapshot import Snapshot

SWITCH = "MLOPS_POOL"
# More of them than a pipeline has kinds of sweeps; each holds the memory of its packages.
MOST = 4
# Variables of Python that say nothing about where it looks for modules.
_HARMLESS = frozenset(
    {
        "HASHSEED",
        "UNBUFFERED",
        "WARNINGS",
        "IOENCODING",
        "UTF8",
        "FAULTHANDLER",
        "DONTWRITEBYTECODE",
    }
)
# Files of a working folder that Python or a package looks for when it starts or is imported.
_READ_WHERE_IT_RUNS = (environment.PACKAGES, "matplotlibrc", ".env")
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True)
class Job:
    """What is to be started: a resolved command, its run, its working copy, and its output."""

    command: str
    run_id: str
    cwd: Path
    environment: Mapping[str, str]
    log: Path


class Pool:
    """The warm interpreters of one executor. `close` it at the end.

    One that `lasts` is for runs to come as well: it warms for whatever logs, since importing MLflow
    and opening its store take 3 s.
    """

    def __init__(self, watchman: Watchman, lasts: bool = False) -> None:
        self._watchman, self._lasts = watchman, lasts
        self._interpreters: dict[object, Interpreter] = {}
        self._learned: dict[object, tuple[str, imports.Imports] | str] = {}
        self._why_not = _why_not()
        self._adopts = False

    def start(self, job: Job, snapshot: Snapshot | None, make: bool = True) -> RunProcess:
        """Start it warm if that is the same to the script, in a shell otherwise.

        Without `make` no interpreter is warmed for it; one that fits is used.
        """
        ask = self._why_not or self._ask(job, snapshot)
        if isinstance(ask, str):
            return self.shell(job, ask)
        interpreter = self._warmed(ask, make or (self._lasts and ask.imports.has("mlflow")))
        if isinstance(interpreter, str):
            return self.shell(job, interpreter)
        if interpreter.failure:
            return self.shell(job, interpreter.failure)
        return Forked(job, ask, interpreter, self)

    def warm(self, job: Job, snapshot: Snapshot | None) -> None:
        """Begin to warm an interpreter for such jobs: it takes seconds in which others can work."""
        ask = self._why_not or self._ask(job, snapshot)
        if not isinstance(ask, str):
            self._warmed(ask, make=True)

    def _warmed(self, ask: Ask, make: bool) -> Interpreter | str:
        """The interpreter for it, or why there is none."""
        if ask.key not in self._interpreters:
            if not make or len(self._interpreters) >= MOST:
                return "no interpreter is warm for it"
            self._adopt_orphans(True)
            try:
                self._interpreters[ask.key] = Interpreter(ask, self._watchman)
            except OSError as error:
                return f"no interpreter could be warmed ({error.strerror})"
        return self._interpreters[ask.key]

    def shell(self, job: Job, why: str) -> RunProcess:
        """Start it as if there were no pool."""
        command = (job.command, job.run_id, job.cwd, job.environment, job.log)
        return Shell(*command, self._watchman, why)

    def wait(self, seconds: float) -> None:
        """Sleep, but not longer than until an interpreter has something to say."""
        poll = select.poll()
        for interpreter in self._interpreters.values():
            if not interpreter.failure:
                poll.register(interpreter.socket, select.POLLIN)
        poll.poll(seconds * 1000)
        for interpreter in self._interpreters.values():
            interpreter.listen()  # also to the end of one that nobody waits for

    def resumed(self) -> Pool:
        """This pool, for another run."""
        self._adopt_orphans(bool(self._interpreters))
        return self

    def rest(self) -> None:
        """Between two runs."""
        self._adopt_orphans(False)

    def close(self) -> None:
        """End the interpreters; runs have ended before."""
        for interpreter in self._interpreters.values():
            interpreter.close()
        self._adopt_orphans(False)

    def _adopt_orphans(self, wanted: bool) -> None:
        """While an interpreter is warm, and no longer: orphans of others are not for this process.

        When one is killed, its trials become children of this process, which then sees how they
        end (prctl(2), PR_SET_CHILD_SUBREAPER).
        """
        if wanted and not _adopting():
            self._adopts = _adopting(True)
        elif not wanted and self._adopts:
            self._adopts = _adopting(False)

    def _ask(self, job: Job, snapshot: Snapshot | None) -> Ask | str:
        """What a warm interpreter is to do for the job, or why none can do it."""
        called = plain_python.read(job.command)
        if isinstance(called, str):
            return called
        if snapshot is None:
            return "the job has no code"
        found = self._known(called, snapshot, job.environment["PATH"])
        if isinstance(found, str):
            return found
        for name, value in job.environment.items():
            if (python := name.removeprefix("PYTHON")) != name and python not in _HARMLESS:
                if name != "PYTHONPATH" or value != str(job.cwd / environment.PACKAGES):
                    return f"{name} is set"
            elif str(job.cwd.parent) in value and name not in environment.OF_A_RUN:
                return f"{name} is another for every trial"
        program, needs = found
        return needs.obstacle or Ask.of(called, program, needs, job.environment)

    def _known(
        self, called: Invocation, snapshot: Snapshot, path: str
    ) -> tuple[str, imports.Imports] | str:
        """The program, and what the script imports; or why none can do it. The same every time."""
        key = (snapshot.digest, called.program, called.target, called.is_module, path)
        if key not in self._learned:
            self._learned[key] = _learn(called, snapshot, path)
        return self._learned[key]


class Forked(RunProcess):
    """A run whose process an interpreter forks, or a shell starts if the interpreter cannot."""

    def __init__(self, job: Job, ask: Ask, interpreter: Interpreter, pool: Pool) -> None:
        super().__init__(job.run_id, interpreter.watchman)
        self._job, self._interpreter, self._pool = job, interpreter, pool
        self._instead: RunProcess | None = None
        request = ask.request(str(job.log), str(job.cwd), job.environment)
        self._child = interpreter.fork(job.run_id, request)

    @property
    def group(self) -> int | None:
        """See RunProcess."""
        return self._instead.group if self._instead else self._child.pid

    def _may_have_left_something(self) -> bool:
        return self._child.left if self._instead is None else True

    @property
    def is_heard(self) -> bool:
        """Whether the interpreter says when it ends."""
        return self._instead is None and not self._interpreter.failure

    def _first(self) -> int | None:
        if self._instead is not None:
            return self._instead._first()
        self._interpreter.listen()
        if self._child.code is None and self._child.pid is None:
            if self._kill_at is not None:
                return self._interpreter.drop(self._child)
            if self._interpreter.failure:
                self._instead = self._pool.shell(self._job, self._interpreter.failure)
                return self._instead._first()
        return self._child.code

    @property
    def way(self) -> str:
        """See RunProcess."""
        return self._instead.way if self._instead else self._interpreter.way

    def terminate(self) -> None:
        """See RunProcess."""
        self._interpreter.listen()
        super().terminate()


def _learn(called: Invocation, snapshot: Snapshot, path: str) -> tuple[str, imports.Imports] | str:
    if not called.is_module and not _is_inside(snapshot.folder / called.target, snapshot):
        return f"`{called.target}` is not a file of the code"
    for name in _READ_WHERE_IT_RUNS:
        if (snapshot.folder / name).exists():
            return f"the code has {name}, which is read before the script"
    program = shutil.which(called.program, path=path)
    # Environments that were built have links to the same Python: the folder tells them apart.
    here = Path(sys.executable).parent
    if program is None or not Path(program).parent.samefile(here):
        return f"`{called.program}` is another interpreter"
    return program, imports.of(snapshot.folder, called.target, called.is_module)


def _is_inside(path: Path, snapshot: Snapshot) -> bool:
    return path.is_file() and path.resolve().is_relative_to(snapshot.folder.resolve())


def _why_not() -> str:
    """Why nothing can be forked here, "" if it can."""
    if os.environ.get(SWITCH, "").lower() in {"off", "0", "no", "false"}:
        return f"{SWITCH} turns the pool off"
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return "this system is not Linux"
    try:
        os.close(os.pidfd_open(os.getpid()))
        Path("/proc/thread-self/children").read_text()
    except OSError:
        return "this system does not say which processes a process has"
    return ""


def _adopting(wanted: bool | None = None) -> bool:
    """Whether orphans among its descendants become children of this process; `wanted` sets it."""
    with suppress(OSError, AttributeError):
        libc, found = ctypes.CDLL(None), ctypes.c_int()
        if wanted is not None:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
        libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
        return bool(found.value)
    return False
