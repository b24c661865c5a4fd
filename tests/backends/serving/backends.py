"""Stand-ins for a deployment's server, each with one defect of a real one."""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ml.backends.local.serving import processes
from ml.backends.local.serving.router import process
from ml.backends.local.serving.router.process import RouterProcess
from ml.core import files


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@dataclass
class Backend:
    """Answers `{"by": name, "echo": …}` and records the requests."""

    name: str
    port: int
    asked: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    status: int = 200
    hold: threading.Event | None = None  # answers wait for it
    drop: int = 0  # so many requests are met by closing the connection
    chunked: bool = False
    arrived: threading.Event = field(default_factory=threading.Event)


@contextmanager
def backend(name: str) -> Iterator[Backend]:
    """A server that runs as long as the block."""
    made = Backend(name, 0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.connections.add(self.client_address)
            made.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            made.arrived.set()
            if made.hold is not None:
                made.hold.wait(30)
            if made.drop:
                made.drop -= 1
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            answer = json.dumps({"by": made.name, "echo": body.decode("latin-1")}).encode()
            self.send_response(made.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Own", "kept")
            if made.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for start in range(0, len(answer), 7):
                    part = answer[start : start + 7]
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.write(b"0\r\n\r\n")
                return
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_HEAD = do_POST

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = _Server((processes.HOST, 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        if made.hold is not None:
            made.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def scripted(*answers: bytes, closing: bool = False, reset: bool = False) -> Iterator[int]:
    """The port of a server that sends these bytes, unchanged, to one request after another.

    A connection stays open after an answer, unless it is `closing` or ends with a `reset`.
    """
    left, lock = list(answers), threading.Lock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(65536):
                with lock:
                    answer = left.pop(0) if left else b""
                self.request.sendall(answer)
                if reset:
                    self.request.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                    self.request.close()
                    return
                if closing or not answer:
                    return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server((processes.HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d"
POST = b"POST /score HTTP/1.1\r\nhost: h\r\n"


@dataclass(frozen=True)
class Routed:
    """A router and the file that it follows."""

    router: RouterProcess
    file: Path

    def put(self, refresh: bool = True, **changes: object) -> None:
        """Replace the routes, and make the router read them."""
        write(self.file, **changes)
        if refresh:
            self.router.refresh()


def write(file: Path, **changes: object) -> None:
    """Routes with all traffic to `blue`, with these changes."""
    routes = {
        "live": "blue",
        "ports": {},
        "traffic": {"blue": 100},
        "mirror": {},
        "timeout_ms": 5000,
        "lease_s": None,
        **changes,
    }
    files.replace(file, json.dumps({"routes": routes}))


@contextmanager
def routed(folder: Path, **changes: object) -> Iterator[Routed]:
    """A router process that follows such routes as long as the block."""
    file = folder / "live.json"
    write(file, **changes)
    try:
        yield Routed(process.start(folder / "router", file, 0), file)
    finally:
        processes.stop(folder / "router")


def ask(
    at: Routed, body: bytes = b'{"q": 1}', path: str = "/score", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own: status, headers, content."""
    connection = http.client.HTTPConnection(processes.HOST, at.router.port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, named)
        response = connection.getresponse()
        content = response.read()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, content
    finally:
        connection.close()


def raw(at: Routed, *parts: bytes, until: bytes = b"") -> bytes:
    """The bytes that come back until the connection is closed, or `until` is among them."""
    with socket.create_connection((processes.HOST, at.router.port), timeout=20) as stream:
        for part in parts:
            stream.sendall(part)
        found = b""
        while data := stream.recv(65536):
            found += data
            if until and until in found:
                break
        return found


def tally(at: Routed, name: str) -> dict[str, object]:
    """What callers sent to a deployment that the router chose for them."""
    found: dict[str, object] = at.router.state()["tallies"][name]["client"]
    return found
