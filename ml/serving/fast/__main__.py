"""Serve a scoring script: `python -m ml.serving.fast --entry-script score.py --port 5001`.

Without arguments it takes what Azure ML sets from a deployment's `code_configuration`:
AML_APP_ROOT and AZUREML_ENTRY_SCRIPT. The same score.py, with Azure ML's `init()` and `run(body)`,
runs under azureml-inference-server-http. The differences: one request at a time (a small model has
answered before a thread would have started), no Flask, no access log, JSON by orjson. A custom
container may listen where its `inference_config` says:
learn.microsoft.com/azure/machine-learning/how-to-deploy-custom-container.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import orjson
import uvloop

from ml.serving.fast.connection import Answer, Connection, Headers

PORT = 5001
PATIENCE_S = 8.0
STALE_CHECK_S = 5.0
SCORE, ALIVE, READY = b"/score", b"/", b"/ready"
_JSON = [(b"content-type", b"application/json")]
_REQUEST_ID = b"x-ms-request-id"
_FAILED = (b"x-ms-run-function-failed", b"True")  # as Azure ML's server marks a score.py's error

log = logging.getLogger("ml.serving.fast")


def load(script: Path) -> ModuleType:
    """Import a scoring script and call its init(); raises the exceptions of both."""
    spec = importlib.util.spec_from_file_location("score", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["score"] = module
    spec.loader.exec_module(module)
    module.init()
    return module


class Spinner:
    """Keeps the event loop awake for a moment after an answer, in case the caller asks again.

    Waking a process that sleeps costs more than a small model does, on a virtual machine above all.
    At most `seconds` of one core are spent for a request.
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

    def __init__(self, run: Callable[[bytes], object], spinner: Spinner) -> None:
        self._run = run
        self._spinner = spinner

    def handle(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> Answer:
        """The answer to one request."""
        path = target.partition(b"?")[0]
        if path == SCORE and method == b"POST":
            status, more, content = self._score(body)
        elif path in (ALIVE, READY) and method in (b"GET", b"HEAD"):
            status, more, content = 200, [], b'"Healthy"'
        elif path in (SCORE, ALIVE, READY):
            status, more, content = 405, [], b'{"message": "this route has another method"}'
        else:
            status, more, content = 404, [], b'{"message": "no such route"}'
        ids = [header for header in headers if header[0] == _REQUEST_ID]
        self._spinner.touch()
        return status, [*_JSON, *more, *ids], content

    def _score(self, body: bytes) -> Answer:
        try:
            result: Any = self._run(body)
            if hasattr(result, "status_code"):  # an AMLResponse
                return int(result.status_code), [], bytes(result.get_data())
            return 200, [], orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
        except Exception:
            log.exception("the scoring script failed")
            message = b'{"message": "An unexpected error occurred in scoring script."}'
            return 500, [_FAILED], message


async def serve(run: Callable[[bytes], object], host: str, port: int, spin_us: int) -> None:
    """Answer until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    spin_s = spin_us / 1e6
    app = App(run, Spinner(loop, spin_s))
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(app.handle, connections, spin_s), host, port, backlog=2048
    )
    print(f"listening on {host}:{port}", file=sys.stderr, flush=True)
    while not ended.is_set():
        try:
            await asyncio.wait_for(ended.wait(), STALE_CHECK_S)
        except TimeoutError:
            for connection in list(connections):
                connection.close_if_stale()
    server.close()
    for connection in list(connections):
        connection.close()
    deadline = loop.time() + PATIENCE_S
    while connections and loop.time() < deadline:
        await asyncio.sleep(0.01)


def main() -> None:
    """Load the script, then listen: a container that answers is ready."""
    parser = argparse.ArgumentParser(prog="python -m ml.serving.fast", description=__doc__)
    parser.add_argument("--entry-script", default=os.environ.get("AZUREML_ENTRY_SCRIPT", ""))
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument(
        "--spin-us", type=int, default=200, help="stay awake so long after an answer; 0: do not"
    )
    options = parser.parse_args()
    if not options.entry_script:
        parser.error("no scoring script: --entry-script, or AZUREML_ENTRY_SCRIPT")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    root = Path(os.environ.get("AML_APP_ROOT", "."))
    script = (root / options.entry_script).resolve()
    sys.path.insert(0, str(root.resolve()))
    sys.path.insert(0, str(script.parent))
    module = load(script)
    # The loaded modules stay: excluded from garbage collection, they never slow one down.
    gc.collect()
    gc.freeze()
    uvloop.run(serve(module.run, options.host, options.port, options.spin_us))


if __name__ == "__main__":
    main()
