"""A forkserver: it imports modules once, then forks a process for every run that is requested.

Runs as a script in the interpreter of the runs and imports the standard library alone. A forked
process executes its script by `runpy` and ends as every Python process does: a process of
`multiprocessing` would skip atexit handlers and lose what open files have not written yet.
tests/backends/test_pool_faithful.py lists what differs from a fresh start.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import threading
from typing import Any


def serve(control: socket.socket, modules: list[str]) -> socket.socket:
    """Import the modules and fork for each socket received; the server ends with its client.

    Returns in the forked process, with the socket. The server sends the exit code there.
    """
    before = _state()
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # the script will meet it as well
            importlib.import_module(name)
        if _state() != before:
            sys.exit(f"importing `{name}` prints something, starts a thread or leaves a file open")
    gc.collect()
    gc.freeze()  # forked processes do not collect what was imported: 0.7 s each
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        sources: list[Any] = [control, *children]
        for ready in select.select(sources, [], [])[0]:
            if ready is not control:
                pid, connection = children.pop(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection, contextlib.suppress(OSError):  # the client has ended
                    connection.sendall(b"%d" % code)
                continue
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:
                sys.exit()
            connection = socket.socket(fileno=descriptors[0])
            if (pid := os.fork()) == 0:
                control.close()
                for descriptor, (_, sibling) in children.items():
                    os.close(descriptor)
                    sibling.close()
                return connection
            children[os.pidfd_open(pid)] = pid, connection


def _state() -> tuple[int, int, int]:
    """Return the state that an import must not change: bytes printed, threads, open files."""
    sys.stdout.flush()
    return os.fstat(1).st_size, threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def execute(connection: socket.socket) -> dict[str, Any]:
    """Send the process id, receive the run, and execute its script; the globals of the script."""
    os.setsid()
    try:
        with connection, connection.makefile() as file:
            connection.sendall(b"%d" % os.getpid())
            run = json.load(file)
    except (OSError, ValueError):  # the client has cancelled the run, or has ended
        sys.exit()
    log = os.open(run["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(run["cwd"])
    os.environ.clear()
    os.environ.update(run["environment"])
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # `random` does it after every fork
    path = os.path.join(run["cwd"], run["target"])  # noqa: PTH118
    folder = run["cwd"] if run["is_module"] else os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    sys.path[:0] = [folder, run["environment"]["PYTHONPATH"]]
    sys.argv[:] = [path, *run["arguments"]]
    try:
        if run["is_module"]:
            return runpy.run_module(run["target"], run_name="__main__", alter_sys=True)
        return runpy.run_path(path, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file: its modules are none of the script's
    names = execute(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
    atexit.register(len, names)  # keeps the globals of the script until atexit handlers have run
    del names
