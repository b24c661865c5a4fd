"""Processes forked from a server that has imported what takes seconds to import."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any
from unittest import mock

from tests.shared import ROOT

_CONTEXT = multiprocessing.get_context("forkserver")
_MODULES: list[str] = []
_LOCK = Lock()


def preload(*modules: str) -> None:
    """Have the server import these, too; there is one for all of a worker's tests."""
    _MODULES.extend(modules)
    _CONTEXT.set_forkserver_preload(_MODULES)


def start(function: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start `function(*arguments)`, a function of a module, in a process of its own."""
    # The server has its own sys.path, and says nothing of a module that it does not find. The
    # folder that it begins in may be a test's, with an `ml` that is not ours.
    with _LOCK:
        with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}):
            forkserver.ensure_running()
        process = _CONTEXT.Process(target=_begin, args=(function, arguments))
        process.start()
    return process


def _begin(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The server's variables are not for what the process starts."""
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)
    function(*arguments)


_STREAMS = ("stdout", "stderr")
# What `ml run` imports before it does anything.
preload("ml.cli.app", "azure.ai.ml.entities", "mlflow.store.tracking.sqlalchemy_store")


class Program:
    """`ml …` in a process of its own, which has imported MLflow and azure-ai-ml before it starts.

    It offers what tests use of `subprocess.Popen`. Output is text in files, so nothing waits for
    descendants that still hold them; stdin is empty.
    """

    def __init__(self, *words: str, cwd: Path | None = None) -> None:
        self._folder = TemporaryDirectory()
        with _LOCK:  # while another thread starts the server, its variables are set here
            variables = {**os.environ, "NO_COLOR": "1"}
        self._process = start(_ml, words, cwd or Path.cwd(), variables, Path(self._folder.name))
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None and self.pid:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """By SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("ml", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to stdout and to stderr, once it has ended; raises TimeoutExpired."""
        self.wait(timeout)
        out, err = (Path(self._folder.name, name) for name in _STREAMS)
        return out.read_text(), err.read_text()


def ml(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`ml …`, as `subprocess.run` of it."""
    program = Program(*words, cwd=cwd)
    out, err = program.communicate()
    return subprocess.CompletedProcess(words, program.wait(), out, err)


def _ml(words: Sequence[str], cwd: Path, variables: Mapping[str, str], folder: Path) -> None:
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    for number, name in enumerate((os.devnull, *_STREAMS)):
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["ml", *words]
    from ml.cli.app import main

    try:
        main()
    finally:  # as at the end of a program; `multiprocessing` leaves it out
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
