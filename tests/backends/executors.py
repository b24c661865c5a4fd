"""Executors for the tests to kill: forks of the test process, so that nothing is imported twice."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ml.backends.local.backend import LocalBackend
from ml.backends.local.execution import resumption
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs import records
from ml.backends.runs import Run
from ml.core import home
from ml.specs.plan.plans import Plan

_FORK = multiprocessing.get_context("fork")
# What changes something outside of the process: files, and every statement of the store.
_CHANGES = frozenset(
    [
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.remove",
        "os.symlink",
        "os.link",
        "os.truncate",
        "os.utime",
        "subprocess.Popen",
        "shutil.copytree",
        "shutil.rmtree",
        "shutil.copyfile",
    ]
)


def start(work: Callable[[], object]) -> BaseProcess:
    """A process of its own that does the work and ends."""
    process = _FORK.Process(target=work)
    process.start()
    return process


def kill(process: BaseProcess) -> None:
    """SIGKILL, as the system sends it; one that has ended already is no error."""
    process.kill()
    process.join()


def begin(plan: Plan) -> Callable[[], object]:
    """Work: `ml run`."""
    return lambda: LocalBackend().run(plan)


def go_on() -> object:
    """Work: `ml runs resume` of the only run, or its beginning anew where none is."""
    return resumption.resume(only())


def only() -> Run:
    """The only run of the home."""
    (folder,) = home.jobs().iterdir()
    return resumption.find(folder.name)


def dying_at(change: int, work: Callable[[], object]) -> Callable[[], object]:
    """The work, until just before the change of that number (from 1) to anything outside."""

    def until() -> None:
        left = change

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _CHANGES or (event == "open" and _writes(arguments)):
                count()

        def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(lambda statement: count())
            return connection

        # This is a process of its own: nobody else sees the hook, or the other way to the store.
        connect, sqlite3.connect = sqlite3.connect, connected
        sys.addaudithook(heard)
        work()

    return until


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR)) or "w" in (mode or "")


def settled(run: Run) -> None:
    """Wait until no process is left of any run in the job folder, nor of the home itself."""
    ids = [one.id for one in records.within(run.folder) if one.id]
    deadline = time.monotonic() + 30
    while left := [one for one in ids if processes_of(one)] or _of_this_home():
        assert time.monotonic() < deadline, f"orphans of {left}"
        time.sleep(0.02)


def _of_this_home() -> list[int]:
    """Processes that were told of this home (no test has it in the environment it started with)."""
    found, mark = [], os.fsencode(home.home())
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def locks(home_folder: Path) -> list[str]:
    """The lock files that are left."""
    return [path.name for path in (home_folder / "live").glob("*")]


__all__ = ["begin", "dying_at", "go_on", "kill", "locks", "only", "settled", "start"]
