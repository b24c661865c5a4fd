"""Serve a scoring script: `python -m ml.serving.fast --entry-script score.py --port 5001`.

Without arguments it takes what Azure ML sets from a deployment's `code_configuration`:
AML_APP_ROOT and AZUREML_ENTRY_SCRIPT. The same score.py, with Azure ML's `init()` and `run(body)`,
runs under azureml-inference-server-http. The differences: one request at a time (a small model has
answered before a thread would have started), no Flask, no access log, JSON by orjson. A custom
container may listen where its `inference_config` says:
learn.microsoft.com/azure/machine-learning/how-to-deploy-custom-container.

An event loop asks the kernel which sockets are readable, reads, and writes at the end of its
round. For a small model that takes as long as the model, so the socket of a single caller is read
directly.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, cast

import httptools
import orjson
import uvloop

PORT = 5001
MAX_BODY = 10 * 2**20  # what a managed online endpoint accepts
MAX_HEADERS = 64 * 2**10
HEADER_COST = 32  # what a header occupies beside its text, as HTTP/2 counts it
MAX_READ = 64 * 2**10
# A connection may be silent this long between requests, and take this long to send one.
IDLE_S, SLOW_S = 75.0, 30.0
STALE_CHECK_S = 5.0
# Another caller, or a signal, waits no longer than this for the event loop.
ALONE_S = 0.0005
PATIENCE_S = 8.0
SCORE, ALIVE, READY = b"/score", b"/", b"/ready"
_JSON = [(b"content-type", b"application/json")]
_REQUEST_ID = b"x-ms-request-id"
_FAILED = (b"x-ms-run-function-failed", b"True")  # as Azure ML's server marks a score.py's error
_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]
# Method, target, headers (names in lower case) and body.
Request = tuple[bytes, bytes, Headers, bytes]
Handler = Callable[[bytes, bytes, Headers, bytes], Answer]

_log = logging.getLogger("ml.serving.fast")


class Connection(asyncio.Protocol):
    """Gathers a request by the parser's callbacks and writes the handler's answer at once.

    After an answer it reads the socket again for up to `spin_s`, since waking a process that sleeps
    costs more than a small model does.
    """

    def __init__(self, handler: Handler, connections: set[Connection], spin_s: float) -> None:
        self._handler = handler
        self._connections = connections
        self._spin_s = spin_s
        self._closing = self._paused = self._receiving = False
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        self._touched = perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: somebody connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._file = transport.get_extra_info("socket").fileno()
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: the caller is gone."""
        self._closing = True
        self._connections.discard(self)

    def pause_writing(self) -> None:
        """asyncio: the caller does not read its answers, so answer and read no further request."""
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """asyncio: it reads them."""
        self._paused = False
        while self._waiting and not (self._paused or self._closing):
            self._answer(*self._waiting.popleft())
        if not (self._paused or self._closing):
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes; and those that follow soon."""
        self._feed(data)
        now = perf_counter()
        end, until = now + ALONE_S, now + self._spin_s
        while now < min(end, until) and not (self._closing or self._paused):
            if len(self._connections) > 1:
                return
            try:
                data = os.read(self._file, MAX_READ)
            except BlockingIOError:
                now = perf_counter()
                continue
            except OSError:
                return
            if not data:
                return  # the event loop reads the end again
            self._feed(data)
            now = perf_counter()
            until = now + self._spin_s

    def on_url(self, url: bytes) -> None:
        """Parser: a part of the target."""
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header."""
        if not self._has_head:  # a trailer after the last chunk steers nothing
            self._headers.append((name.lower(), value))
        self._count_header(len(name) + len(value) + HEADER_COST)

    def on_headers_complete(self) -> None:
        """Parser: a body comes next, if there is one."""
        self._has_head = True
        for name, value in self._headers:
            is_coded = name == b"transfer-encoding"
            if is_coded and value.strip().lower() != b"chunked":
                self._refuse(501, "a body with another coding than `chunked`")
            is_long = name == b"content-length" and value.strip(b"0")
            if (is_coded or is_long) and self._parser.should_upgrade():
                # The parser would take the body for that protocol's.
                self._refuse(501, "a request with a body that asks for another protocol")
            if name == b"content-length" and int(value) > MAX_BODY:
                self._refuse(413, f"the body is larger than {MAX_BODY} bytes")
            if name == b"expect" and value.lower() == b"100-continue" and not self._closing:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Parser: a part of the body, taken out of its chunks."""
        self._body.append(body)
        self._body_size += len(body)
        if self._body_size > MAX_BODY:
            self._refuse(413, f"the body is larger than {MAX_BODY} bytes")

    def on_message_complete(self) -> None:
        """Parser: a complete request; answer it."""
        if self._closing:
            return
        keep = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(501, "this server does not tunnel")
            return
        keep = keep and not self._parser.should_upgrade()
        request = (method, self._url, self._headers, b"".join(self._body))
        self._reset()
        if self._paused:
            self._waiting.append((request, keep))
        else:
            self._answer(request, keep)

    def close_if_stale(self) -> None:
        """Close the connection if it was silent, or slow, for too long."""
        silent_s = perf_counter() - self._touched
        if self._paused and silent_s > SLOW_S:
            self._transport.abort()  # the caller does not read
            return
        if self._receiving and silent_s > SLOW_S:
            self._refuse(408, f"the request did not arrive within {SLOW_S:g} s")
        elif silent_s > IDLE_S:
            self.close()

    def _answer(self, request: Request, keep: bool) -> None:
        self._write(*self._handler(*request), keep, head=request[0] == b"HEAD")

    def close(self) -> None:
        """Close it; what was written is sent."""
        self._closing = True
        self._transport.close()

    def _feed(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._receiving:
            self._receiving = True
            self._touched = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.close()  # answered as if it had not asked for another protocol, and the last
        except httptools.HttpParserError as error:
            self._refuse(400, f"not a valid HTTP request: {error}")

    def _write(
        self, status: int, headers: Headers, body: bytes, keep: bool, head: bool = False
    ) -> None:
        lines = [_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if status not in (204, 304):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n" if keep else b"connection: close\r\n\r\n")
        if not head:
            lines.append(body)
        data = b"".join(lines)
        if not self._transport.get_write_buffer_size():
            try:
                written = os.write(self._file, data)
            except OSError:  # full, or the caller is gone: the transport finds out
                written = 0
            data = data[written:]
        if data:
            self._transport.write(data)
        self._touched = perf_counter()
        if not keep:
            self.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that cannot be read, and close."""
        if not self._closing:
            content = json.dumps({"error": {"message": message}}).encode()
            self._write(status, [(b"content-type", b"application/json")], content, keep=False)

    def _count_header(self, length: int) -> None:
        self._headers_size += length
        if self._headers_size > MAX_HEADERS:
            self._refuse(431, f"the headers are larger than {MAX_HEADERS} bytes")

    def _reset(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._body_size = self._headers_size = 0
        self._receiving = self._has_head = False


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


class App:
    """POST /score runs the script; GET / says that the process lives, /ready that init() ran."""

    def __init__(self, run: Callable[[bytes], object]) -> None:
        # Of the deployment's code, which is on the path by now, and not of the image's.
        from ml.serving.scoring.messages import is_finite

        self._run, self._is_finite = run, is_finite

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
        return status, [*_JSON, *more, *ids], content

    def _score(self, body: bytes) -> Answer:
        try:
            result: Any = self._run(body)
            status, is_text = 200, True
            if hasattr(result, "status_code"):  # an AMLResponse
                status, content = int(result.status_code), bytes(result.get_data())
            else:
                # Of what is no text orjson has written each number itself: there is none to find.
                is_text = isinstance(result, str | orjson.Fragment)
                content = orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
                if b"null" in content:  # orjson writes NaN and infinite numbers so
                    json.dumps(result, default=_plain, allow_nan=False)
            if is_text and status < 300 and not self._is_finite(content):
                raise ValueError("the answer has an infinite number or NaN")
            return status, [], content
        except Exception:
            _log.exception("the scoring script failed")
            message = b'{"message": "An unexpected error occurred in scoring script."}'
            return 500, [_FAILED], message


def _plain(value: Any) -> object:
    """What orjson makes of an array, a number of numpy or a dataclass."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return vars(value) if hasattr(value, "__dict__") else None


async def serve(run: Callable[[bytes], object], listener: socket.socket, spin_us: int) -> None:
    """Answer who connects to the listener until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    app = App(run)
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(app.handle, connections, spin_us / 1e6), sock=listener, backlog=2048
    )
    print("listening on {}:{}".format(*listener.getsockname()), file=sys.stderr, flush=True)
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
    parser.add_argument("--listener", type=int, help="the descriptor of a socket that is inherited")
    parser.add_argument(
        "--spin-us", type=int, default=200, help="wait awake so long for a caller's next request"
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
    if options.listener is None:
        listener = socket.create_server((options.host, options.port))
    else:
        listener = socket.socket(fileno=options.listener)
    uvloop.run(serve(module.run, listener, options.spin_us))


if __name__ == "__main__":
    main()
