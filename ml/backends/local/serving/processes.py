"""The processes of an endpoint and their ports.

A slot is a folder with a log, and the processes that belong to it. Processes are found only by the
process table: the command line of a server contains its slot's folder. So the next command finds
the processes of a killed one.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil

from ml.core.errors import Exit, Problem, UserError

HOST = "127.0.0.1"  # reachable only from this machine
MAX_PORT = 65535
LAUNCHER = Path(__file__).with_name("launch.py")
ROUTER = Path(__file__).parent / "router" / "__main__.py"
_SCRIPTS = (str(LAUNCHER), str(ROUTER))
# The only inherited environment variables, so that no secret reaches an endpoint's process.
_PASSED = ("LANG", "TZ", "LD_LIBRARY_PATH")
STOP_S = 10.0
POLL_S = 0.05
_listeners: dict[tuple[int, int], Listener | None] = {}


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on the port, or a free one for 0; OSError if it is in use.

    A process that inherits it has a port that no other process can take before its start.
    """
    return socket.create_server((HOST, port))


def spawn(
    slot: Path,
    script: Path,
    listener: socket.socket,
    *arguments: object,
    folder: Path,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start the script detached in `folder`: `script SLOT LISTENER *arguments`.

    It inherits `listener`, and LISTENER is the file descriptor. Its output replaces the slot's log.
    -I keeps the script's folder and PYTHONPATH off sys.path.
    """
    descriptor = listener.fileno()
    slot.mkdir(parents=True, exist_ok=True)
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    with log(slot).open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-IBu", *map(str, (script, slot, descriptor, *arguments))],
            cwd=folder,
            env={**passed, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(descriptor,),
        )
    # Popen may return before /proc shows the new command line: until then `stop` would not find the
    # process.
    with suppress(psutil.Error):
        while process.poll() is None and not psutil.Process(process.pid).cmdline():
            time.sleep(0.001)
    return process


def stop(slot: Path, patience_s: float = STOP_S) -> bool:
    """End every process of the slot: SIGTERM, and SIGKILL after `patience_s` seconds.

    Return whether there was one. Raise UserError if one survives SIGKILL.
    """
    processes = set(_processes(slot))
    if not processes:
        return False
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, STOP_S)):
        processes |= set(_processes(slot))  # a worker may have been forked meanwhile
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if _wait_until_gone(slot, processes, wait_s):
            return True
    alive = ", ".join(str(process.pid) for process in processes if _alive(process))
    actual = f"process {alive} survived SIGKILL"
    problem = Problem("server-not-stopped", actual, "an ended process", f"ps -o stat,wchan {alive}")
    raise UserError(problem, exit_code=Exit.RUN_FAILED)


def belongs(process: psutil.Process, slot: Path) -> bool:
    """Return whether the process is alive and is the server or the router of the slot."""
    try:
        arguments = process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return alive and len(arguments) > 3 and arguments[2] in _SCRIPTS and arguments[3] == str(slot)


def log(slot: Path) -> Path:
    """Return the log file of the slot's server."""
    return slot / "server.log"


def last_lines(slot: Path, count: int = 15) -> str:
    """Return the last `count` lines of the slot's log, indented for an error message."""
    return "\n".join(f"    {line}" for line in _lines(slot)[-count:])


def failure(slot: Path, code: str, what: str, expected: str = "", hint: str = "") -> UserError:
    """Return the error for a process of the slot that failed, with the end of its log."""
    actual = f"{what}; its log ends:\n{last_lines(slot)}"
    hint = f"{hint}; the whole log: {log(slot)}" if hint else f"the whole log: {log(slot)}"
    return UserError(Problem(code, actual, expected, hint), exit_code=Exit.RUN_FAILED)


def port_in_use(port: int, hint: str, exit_code: Exit = Exit.WRONG_CALL) -> UserError:
    """Return the error for a requested port that another process holds."""
    actual = f"port {port} is held by {port_holder(port)}"
    return UserError(Problem("port-in-use", actual, "a free port", hint), exit_code=exit_code)


def script_error(slot: Path) -> str:
    """Return the line of the scoring script's exception in the server's log."""
    lines = _lines(slot)
    logged = [number for number, line in enumerate(lines) if "Encountered Exception" in line]
    # The frames of a traceback are indented; the first unindented line is the exception.
    for line in lines[logged[-1] + 1 :] if logged else ():
        if re.match(r"[\w.]+(:|$)", line):
            return line
    return "its log has no exception"


def is_healthy(port: int, timeout_s: float, path: str = "/") -> bool:
    """Return whether the server responds to a liveness probe with 200 before the timeout."""
    with closing(HTTPConnection(HOST, port, timeout=max(timeout_s, 0.001))) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False


def free_port() -> int:
    """Return a free port, for a program that needs a number; another process may take it."""
    with listen() as probe:
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket() as probe:
        # As servers do: then a connection that has just closed does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def port_holder(port: int) -> str:
    """Return the process that listens on the port, as `NAME (process 123, of USER)`, for errors."""
    try:
        for connection in psutil.net_connections("inet"):
            if connection.pid and _listens(connection, port):
                process = psutil.Process(connection.pid)
                return f"{process.name()} (process {process.pid}, of {process.username()})"
    except psutil.Error:
        pass
    return "a process that this user may not see"


@dataclass(frozen=True)
class Listener:
    """The socket on which a process listens.

    While it is open, no other process can bind its port.
    """

    pid: int
    port: int
    path: Path  # of the file descriptor in /proc
    # The socket's; None without /proc: each check then searches the process's connections.
    inode: int | None

    def is_open(self) -> bool:
        """Return whether the process still has this socket open."""
        try:
            if self.inode is None:
                return listener(self.pid, self.port) is not None
            return self.path.stat().st_ino == self.inode
        except (psutil.Error, OSError):
            return False


def listens(pid: int, port: int) -> bool:
    """Return whether this process listens on the port.

    Only the first check reads the process's connections, since a canary opens thousands.
    """
    seen = _listeners.get((pid, port))
    if seen is None or not seen.is_open():
        seen = _listeners[pid, port] = listener(pid, port)
    return seen is not None


def listener(pid: int, port: int) -> Listener | None:
    """Return the socket on which the process listens on the port; None if it does not."""
    try:
        # HOST is IPv4: "tcp4" reads one table, "inet" four.
        for connection in psutil.Process(pid).net_connections("tcp4"):
            if _listens(connection, port):
                path = Path(f"/proc/{pid}/fd/{connection.fd}")
                inode = path.stat().st_ino if sys.platform == "linux" else None
                return Listener(pid, port, path, inode)
    except (psutil.Error, OSError):
        pass
    return None


def _listens(connection: Any, port: int) -> bool:
    address = connection.laddr
    return bool(address) and address.port == port and connection.status == psutil.CONN_LISTEN


def _lines(slot: Path) -> list[str]:
    try:
        return log(slot).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _processes(slot: Path) -> list[psutil.Process]:
    """Return every live process of the slot and of their sessions.

    Programs that a scoring script started have another command line, but the same session.
    """
    processes = [*psutil.process_iter()]
    members = {process.pid for process in processes if belongs(process, slot)}
    return [
        process
        for process in processes
        if process.pid in members or (_session(process.pid) in members and _alive(process))
    ]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _wait_until_gone(slot: Path, processes: set[psutil.Process], timeout_s: float) -> bool:
    """Wait for all processes of the slot to end; return whether they did before the timeout.

    An exiting process loses its command line before it releases its port, so `processes` are also
    checked by their ids. Children of this process are reaped.
    """
    deadline = time.monotonic() + timeout_s
    while any(map(_alive, processes)) or _processes(slot):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return True


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
