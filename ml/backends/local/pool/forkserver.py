"""A forkserver: import modules once, then fork a process for every requested run.

It runs as a script in the runs' interpreter and imports only the standard library. A forked process
executes its script by `runpy` and exits normally: with `multiprocessing` it would skip atexit
handlers and lose unflushed files. tests/backends/test_pool_faithful.py lists the differences from a
fresh start.
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
    """Import the modules, then fork a process for each socket that `control` receives.

    Return only in the forked process, with its socket; the server sends the exit code there. The
    server exits when its client closes `control`, or if an import has side effects.
    """
    before = _state()
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):  # the script will raise it too
            importlib.import_module(name)
        if _state() != before:
            sys.exit(f"importing `{name}` prints something, starts a thread or leaves a file open")
    gc.collect()
    gc.freeze()  # else each forked process spends 0.7 s on its garbage collection
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
    """Return (printed bytes, threads, open files), which an import must not change."""
    sys.stdout.flush()
    return os.fstat(1).st_size, threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def execute(connection: socket.socket) -> dict[str, Any]:
    """Send the process id, receive the run, execute its script, return the script's globals."""
    os.setsid()
    try:
        with connection, connection.makefile() as file:
            connection.sendall(b"%d" % os.getpid())
            run = json.load(file)
    except (OSError, ValueError):  # the client canceled the run or exited
        sys.exit()
    log = os.open(run["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(run["cwd"])
    os.environ.clear()
    os.environ.update(run["environment"])
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()  # Python seeds `random` after every fork
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
    del sys.path[0]  # this file's folder: hide its modules from the script
    names = execute(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
    atexit.register(len, names)  # keep the script's globals until its atexit handlers have run
    del names
