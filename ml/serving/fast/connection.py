"""A caller's connection: HTTP/1.1 with keep-alive and pipelining, answered without an event loop
as long as it is the only one.

An event loop asks the kernel which sockets are readable, reads, and writes at the end of its round:
for a small model that takes as long as the model. The socket of a single caller is read directly.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from time import perf_counter
from typing import cast

import httptools

MAX_BODY = 10 * 2**20  # what a managed online endpoint accepts
MAX_HEADERS = 64 * 2**10
# A connection may be silent this long between requests, and take this long to send one.
IDLE_S, SLOW_S = 75.0, 30.0
# Another caller, or a signal, waits no longer than this for the event loop.
ALONE_S = 0.0005
MAX_READ = 64 * 2**10
_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]
# Method, target, headers (names in lower case) and body.
Handler = Callable[[bytes, bytes, Headers, bytes], Answer]


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
        """asyncio: the caller does not read its answers, so read no further request."""
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """asyncio: it reads them."""
        self._paused = False
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
        self._headers.append((name.lower(), value))
        self._count_header(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Parser: a body comes next, if there is one."""
        for name, value in self._headers:
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
        answer = self._handler(method, self._url, self._headers, b"".join(self._body))
        self._reset()
        self._write(*answer, keep, head=method == b"HEAD")

    def close_if_stale(self) -> None:
        """Close the connection if it was silent, or slow, for too long."""
        silent_s = perf_counter() - self._touched
        if self._receiving and silent_s > SLOW_S:
            self._refuse(408, f"the request did not arrive within {SLOW_S:g} s")
        elif silent_s > IDLE_S:
            self.close()

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
            with suppress(OSError):  # full, or the caller is gone: the transport finds out
                data = data[os.write(self._file, data) :]
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
        self._receiving = False
