"""Azure ML's scoring contract, `init()` and `run(body)`, answered with as little between as can be.

The same score.py runs under azureml-inference-server-http. What is different: one request at a time
(a small model is done before a thread would have begun), no Flask, no access log, JSON by orjson.
A custom container may listen where and on what its `inference_config` says:
learn.microsoft.com/azure/machine-learning/how-to-deploy-custom-container.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import orjson

from ml.serving.router.exchange import Respond
from ml.serving.router.upstream import Headers

log = logging.getLogger("ml.serving.fast")

SCORE, ALIVE, READY = b"/score", b"/", b"/ready"
_JSON = [(b"content-type", b"application/json")]
_REQUEST_ID = b"x-ms-request-id"
_FAILED = (b"x-ms-run-function-failed", b"True")  # as Azure ML's server marks a score.py's error


def load(script: Path) -> ModuleType:
    """Import a scoring script and call its init(); raises whatever they raise."""
    spec = importlib.util.spec_from_file_location("score", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["score"] = module
    spec.loader.exec_module(module)
    module.init()
    return module


class Spinner:
    """Keeps the event loop awake for a moment after an answer, in case the caller asks again.

    Waking a process that sleeps costs more than a small model does, on a virtual machine above all.
    No more than `seconds` of one core are spent for a request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._until = 0.0
        self._spins = False

    def touch(self) -> None:
        """A request was answered."""
        self._until = perf_counter() + self._seconds
        if not self._spins and self._seconds > 0:
            self._spins = True
            self._loop.call_soon(self._spin)

    def _spin(self) -> None:
        if perf_counter() < self._until:
            self._loop.call_soon(self._spin)
        else:
            self._spins = False


class App:
    """POST /score runs the script; GET / says that the process lives, /ready that init() ran."""

    def __init__(
        self, run: Callable[[bytes], object], answered: Callable[[], None] = lambda: None
    ) -> None:
        self._run = run
        self._answered = answered

    def handle(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, respond: Respond
    ) -> None:
        """Answer at once."""
        path = target.partition(b"?")[0]
        if path == SCORE and method == b"POST":
            status, more, content = self._score(body)
        elif path in (ALIVE, READY) and method in (b"GET", b"HEAD"):
            status, more, content = 200, [], b'"Healthy"'
        elif path in (SCORE, ALIVE, READY):
            status, more, content = 405, [], b'{"message": "another method"}'
        else:
            status, more, content = 404, [], b'{"message": "no such route"}'
        for name, value in headers:
            if name == _REQUEST_ID:
                more = [*more, (name, value)]
        respond(status, [*_JSON, *more], content)
        self._answered()

    def _score(self, body: bytes) -> tuple[int, Headers, bytes]:
        try:
            found: Any = self._run(body)
            if hasattr(found, "status_code"):  # an AMLResponse
                return int(found.status_code), [], bytes(found.get_data())
            return 200, [], orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
        except Exception:
            log.exception("the scoring script failed")
            message = b'{"message": "An unexpected error occurred in scoring script."}'
            return 500, [_FAILED], message
