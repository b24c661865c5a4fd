"""The stand-in's HTTPS server: reads requests, injects faults, records requests, responds."""

from __future__ import annotations

import json
import re
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """A request to a route; `query` has the last value of each key."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any


# Header with the polling interval of operations. The service sends `Retry-After: 1` or more;
# azure-core also reads this header, so that fast operations do not take a second.
AGAIN = {"retry-after-ms": "250"}


@dataclass(frozen=True)
class Answer:
    """A response: status, JSON body (None: empty; bytes: sent unchanged), and headers."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """An error response in the service's form: `{"error": {"code", "message", …}}`.

    Source: issue Azure/azure-cli-extensions#6662.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def answer(self) -> Answer:
        component = {"type": "ComponentName", "info": {"value": "managementfrontend"}}
        error = {"code": self.code, "message": self.message, "details": []}
        return Answer(self.status, {"error": {**error, "additionalInfo": [component]}})


@dataclass
class Fault:
    """A fault of the next `times` requests whose `METHOD path` matches `pattern`.

    `drop` closes the connection without a response; `drop_after` does so after the request was
    processed, which the client cannot know. `slow_s` delays the response. `body` replaces the
    response with status 200: JSON of an operation, or text as of a gateway. The first `after`
    requests are not affected; until then, later faults wait.
    """

    pattern: str
    times: int = 1
    after: int = 0
    status: int = 0
    code: str = "InternalServerError"
    message: str = "a fault that was asked for"
    body: dict[str, Any] | str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    drop_after: bool = False
    slow_s: float = 0.0


class Dropped(Exception):
    """The connection must be closed without a response."""


class Server(ThreadingHTTPServer):
    """An HTTPS server that responds by `respond`; tests control it by `/stand-in/…`."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        respond: Callable[[Request], Answer],
        copy: Callable[..., None],
        certificate: Path,
        key: Path,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.respond, self.copy = respond, copy
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self._lock = Lock()
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(certificate, key)
        # Do the handshake in the connection's thread: a stalled client must not block others.
        self.socket = secure.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"https://127.0.0.1:{self.server_port}"

    def answer(self, request: Request) -> Answer:
        """Return the response to a request, changed by a fault if one matches; raise Dropped."""
        if request.path.startswith("/stand-in/"):
            return self._control(request)
        fault = self._fault(f"{request.method} {request.path}")
        if fault is None:
            return self.respond(request)
        time.sleep(fault.slow_s)
        if fault.drop:
            raise Dropped
        if fault.body is not None:
            body = fault.body.encode() if isinstance(fault.body, str) else fault.body
            return Answer(200, body, fault.headers)
        if fault.status:
            refusal = Refusal(fault.status, fault.code, fault.message).answer()
            return Answer(refusal.status, refusal.body, fault.headers)
        answer = self.respond(request)
        if fault.drop_after:
            raise Dropped
        return answer

    def _fault(self, line: str) -> Fault | None:
        with self._lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    if fault.after > 0:
                        fault.after -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None

    def _control(self, request: Request) -> Answer:
        with self._lock:
            if request.path == "/stand-in/faults":
                self.faults = [Fault(**each) for each in request.body]
                return Answer(200, {})
            if request.path == "/stand-in/left":
                return Answer(200, sum(fault.times for fault in self.faults))
            if request.path == "/stand-in/copies":
                self.copy(**request.body)
                return Answer(200, {})
            if request.path == "/stand-in/requests":
                requests, self.requests = self.requests, []
                return Answer(200, requests)
        return Answer(404)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Nagle's algorithm delays a body by 40 ms, until the client acknowledges the headers.
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        self.request.do_handshake()
        super().setup()

    def _respond(self) -> None:
        parts = urlsplit(self.path)
        path = re.sub("/{2,}", "/", unquote(parts.path))
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = json.loads(text) if text else None
        request = Request(self.command, path, query, dict(self.headers.items()), body)
        try:
            answer = self.server.answer(request)
        except Refusal as refusal:
            answer = refusal.answer()
        except Dropped:
            self.close_connection = True
            return
        except Exception as error:
            answer = Refusal(500, "StandInBug", f"{type(error).__name__}: {error}").answer()
            self.log_error("%s %s: %r", self.command, path, error)
        self._send(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _respond

    def _send(self, answer: Answer) -> None:
        content = answer.body if isinstance(answer.body, bytes) else b""
        if answer.body is not None and not isinstance(answer.body, bytes):
            content = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(content)), "x-ms-request-id": str(uuid.uuid4())}
        if content:
            headers["Content-Type"] = "application/json; charset=utf-8"
        for name, value in {**headers, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Log no requests; `log_error` logs errors."""

    def log_error(self, format: str, *arguments: object) -> None:
        print(format % arguments, flush=True)
