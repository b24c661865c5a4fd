"""Processes forked from a server that has imported what takes seconds to import."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from typing import Any
from unittest import mock

from tests.shared import ROOT

_CONTEXT = multiprocessing.get_context("forkserver")
_MODULES: list[str] = []


def preload(*modules: str) -> None:
    """Have the server import these, too; there is one for all of a worker's tests."""
    _MODULES.extend(modules)
    _CONTEXT.set_forkserver_preload(_MODULES)


def start(function: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Start `function(*arguments)`, a function of a module, in a process of its own."""
    # The server has its own sys.path, and says nothing of a module that it does not find. The
    # folder that it begins in may be a test's, with an `ml` that is not ours.
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
