"""The forkserver of a pool, and what a process of it does to be like one that was just started.

Runs in the interpreter of the trials: it imports the standard library alone, and the trial's code
finds nothing of it in `sys.modules`. What still differs from a fresh start is listed in
tests/backends/test_pool_faithful.py.
"""

from __future__ import annotations

import _io
import atexit
import builtins
import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing import forkserver, resource_tracker
from types import ModuleType, TracebackType
from typing import Any

_MARK = b"MLFLOW_RUN_ID="
_FRAMEWORK = {"infra", "ml", "policies"}


def serve(listener: int, alive: int, modules: list[str]) -> None:
    """Import the modules, then fork on request (`multiprocessing.forkserver.main`) until the other
    end of the pipe `alive` is closed.

    Ends with a sentence when an import does what a fork cannot share.
    """
    # Else an import would find the rest of the work tree in the framework's packages. `Start` is
    # unpickled by the name of this module, and of the package that it begins with.
    own = sys.modules[__name__]
    _forget_framework()
    sys.modules.update({"ml": ModuleType("ml"), __name__: own})
    state = _state()
    gc.disable()  # what is imported stays
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit):  # the script will meet it as well
            continue
        if state != (state := _state()):
            sys.exit(f"importing `{name}` prints something, starts a thread or opens a connection")
    sys.stdin = None  # else it is replaced
    gc.enable()
    gc.collect()
    gc.freeze()
    forkserver.main(listener, alive, [])


def _forget_framework() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in _FRAMEWORK]:
        del sys.modules[name]


def _state() -> tuple[int, int, int]:
    """What an import may not change: bytes printed, threads, sockets and devices."""
    links = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - in every interpreter of a trial
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
        except OSError:
            continue
    opened = [link for link in links if link.startswith(("/dev/nvidia", "/dev/dri", "socket:"))]
    return os.fstat(1).st_size, threading.active_count(), len(opened)


@dataclass(frozen=True)
class Start:
    """A process to start: `multiprocessing.spawn` unpickles it after the fork and calls it.

    It has set `sys.argv` and the working folder before (see `multiprocessing.spawn.prepare`).
    """

    target: str
    is_module: bool
    orig_argv: list[str]
    environment: dict[str, str]
    log: str

    def _bootstrap(self, parent_sentinel: int) -> int:
        os.close(parent_sentinel)
        server: Any = forkserver._forkserver
        tracker: Any = resource_tracker._resource_tracker
        os.close(server._forkserver_alive_fd)
        os.close(tracker._fd)
        tracker._fd = None  # it starts one of its own when it needs one
        os.setsid()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate((nothing, log, log)):
            os.dup2(stream, number)
        os.close(log)
        os.close(nothing)
        sys.stdin = sys.__stdin__
        _show(self.environment["MLFLOW_RUN_ID"])
        os.environ.clear()
        os.environ.update(self.environment)
        _forget_framework()
        sys.path.insert(0, self.environment["PYTHONPATH"])
        sys.orig_argv[:] = self.orig_argv
        if numpy := sys.modules.get("numpy.random"):
            numpy.seed()  # `random` does it after every fork
        return _ended(self._run())

    def _run(self) -> int:
        """What Python does with `python FILE` and `python -m MODULE`; the exit code."""
        main = sys.modules["__main__"] = ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, __annotations__={})
        try:
            if self.is_module:
                sys.path.insert(0, os.getcwd())  # noqa: PTH109
                sys.argv[0] = "-m"
                runpy._run_module_as_main(self.target)  # type: ignore[attr-defined]
            else:
                path = os.path.join(os.getcwd(), self.target)  # noqa: PTH109, PTH118
                sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
                main.__dict__.update(__file__=path, __cached__=None)
                main.__loader__ = SourceFileLoader("__main__", path)
                with open(path, "rb") as file:  # noqa: PTH123
                    code = compile(file.read(), path, "exec", dont_inherit=True)
                exec(code, main.__dict__)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return (end.code or 0) & 0xFF
            print(end.code, file=sys.stderr)
            return 1
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            _report(error, trace)
            return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        return 0


def _show(run_id: str) -> None:
    """Write the run's id over the server's in /proc/PID/environ, by which a run's processes are
    found: the kernel shows the memory that the process was started with (proc(5), env_start)."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        start = int(file.read().rpartition(b")")[2].split()[47])
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        start += file.read().index(_MARK) + len(_MARK)
    ctypes.memmove(start, run_id.encode(), len(run_id))


def _report(error: BaseException, trace: TracebackType | None) -> None:
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:  # a hook of the script's own
        sys.__excepthook__(*sys.exc_info())


def _ended(code: int) -> int:
    """Join threads, call what atexit has, and flush every file: `os._exit` follows.

    Of the modules only `__main__` is emptied, and not while a thread may still use it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.last_type = sys.last_value = sys.last_traceback = None
    if threading.active_count() == 1:
        main = vars(sys.modules["__main__"])
        main.update({name: None for name in main if name != "__builtins__"})
    gc.collect()
    for item in (sys.stdout, sys.stderr, *gc.get_objects()):
        # By the type in C: to ask io.IOBase, an abstract class, takes milliseconds.
        if issubclass(type(item), _io._IOBase):
            try:
                if not item.closed:
                    item.flush()
            except Exception:  # Python ignores it at its end, too
                pass
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
