"""A slot of an endpoint: a folder with a log, and the processes that belong to it.

The process table is the only record of what runs: a server carries its slot's folder in its command
line, so a command that was killed half way leaves nothing that the next one does not find.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ml.core.errors import Exit, Problem, Refused

LAUNCHER = Path(__file__).with_name("launch.py")
ROUTER_LAUNCHER = Path(__file__).parent / "router" / "__main__.py"
_LAUNCHERS = (str(LAUNCHER), str(ROUTER_LAUNCHER))
STOP_S = 10.0
POLL_S = 0.05


def running(slot: Path) -> psutil.Process | None:
    """The server of the slot, or None: the first process that carries the slot and is alive."""
    found = _processes(slot)
    return found[0] if found else None


def stop(slot: Path, patience_s: float = STOP_S) -> bool:
    """End every process of the slot: time to finish what it is answering, then for good.

    Returns whether there was one. Raises Refused when one outlives SIGKILL.
    """
    found = set(_processes(slot))
    if not found:
        return False
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, STOP_S)):
        found |= set(_processes(slot))  # a worker may have been forked meanwhile
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if _gone(slot, found, wait_s):
            return True
    left = ", ".join(str(process.pid) for process in found if _lives(process))
    problem = Problem("server-not-stopped", f"process {left} outlived SIGKILL")
    raise Refused(problem, exit_code=Exit.RUN_FAILED)


def log(slot: Path) -> Path:
    """What the server of the slot prints."""
    return slot / "server.log"


def last_lines(slot: Path, count: int = 15) -> str:
    """The end of the slot's log, indented for an error message."""
    return "\n".join(f"    {line}" for line in _lines(slot)[-count:])


def cause(slot: Path) -> str:
    """The scoring script's own exception, which the server buries in tracebacks of its own."""
    lines = _lines(slot)
    logged = [number for number, line in enumerate(lines) if "Encountered Exception" in line]
    # A traceback's frames are indented; the first line that is not is the exception.
    for line in lines[logged[-1] + 1 :] if logged else ():
        if re.match(r"[\w.]+(:|$)", line):
            return line
    return "no exception in its log"


def carries(process: psutil.Process, slot: Path) -> bool:
    """Whether the process is alive and a server, or the router, of the slot."""
    try:
        arguments = process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return alive and len(arguments) > 3 and arguments[2] in _LAUNCHERS and arguments[3] == str(slot)


def _lines(slot: Path) -> list[str]:
    try:
        return log(slot).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _processes(slot: Path) -> list[psutil.Process]:
    """Every living process that carries the slot, the oldest first."""
    found = [process for process in psutil.process_iter() if carries(process, slot)]
    return sorted(found, key=lambda process: process.pid)


def _gone(slot: Path, found: set[psutil.Process], timeout_s: float) -> bool:
    """Whether all of them, and whatever else carries the slot, have ended before the timeout.

    A process that is ending loses its command line before it lets go of its port: it is waited for
    by its number. One that was ours leaves no zombie behind.
    """
    deadline = time.monotonic() + timeout_s
    while any(map(_lives, found)) or _processes(slot):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    for process in found:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return True


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
