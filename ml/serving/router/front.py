"""A caller's connection: HTTP/1.1 with keep-alive and pipelining; one request at a time goes on."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from http import HTTPStatus
from typing import Any, Protocol

import httptools

from ml.serving.router.exchange import Respond
from ml.serving.router.upstream import Headers

# Managed online endpoints take at most 10 MB.
LARGEST_BODY = 10 * 2**20
LARGEST_HEADERS = 64 * 2**10
MOST_PIPELINED = 16
# A connection may be silent this long between requests, and take this long to send one.
IDLE_S, SLOW_S = 75.0, 30.0

_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Handler(Protocol):
    """Who answers requests."""

    def handle(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, respond: Respond
    ) -> None:
        """Call `respond` once, now or later."""


class Front(asyncio.Protocol):
    """The parser's callbacks gather a request; `respond` writes the answer and begins the next."""

    def __init__(self, handler: Handler, open_now: set[Front], clock: asyncio.AbstractEventLoop):
        self._handler = handler
        self._open = open_now
        self._clock = clock
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[bytes, bytes, Headers, bytes, bool]] = deque()
        self._busy = False
        self._closing = False
        self._touched = clock.time()
        self._begun = False
        self._reset()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: somebody connected."""
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: nobody listens any more; an answer under way is dropped."""
        self._closing = True
        self._waiting.clear()
        self._open.discard(self)

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes of one or more requests."""
        if self._closing:
            return
        if not self._begun:
            self._touched = self._clock.time()
            self._begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._closing = True  # the request is answered as if it had not asked, and is the last
            self.close()
        except httptools.HttpParserError as error:
            # What a callback raised is in the cause; the answer is written already then.
            if not self._closing:
                self._refuse(400, f"no HTTP request: {error}")

    def on_url(self, url: bytes) -> None:
        """Parser: a part of the target."""
        self._url += url
        self._weigh(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header."""
        self._headers.append((name.lower(), value))
        self._weigh(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Parser: a body comes next, if it may."""
        for name, value in self._headers:
            if name == b"content-length" and int(value) > LARGEST_BODY:
                self._too_large()
            if name == b"expect" and value.lower() == b"100-continue" and not self._closing:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Parser: a part of the body, taken out of its chunks."""
        self._body.append(body)
        self._size += len(body)
        if self._size > LARGEST_BODY and not self._closing:
            self._too_large()

    def on_message_complete(self) -> None:
        """Parser: a whole request; it goes on at once or waits its turn."""
        if self._closing:
            return
        keep = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(501, "no other protocol is spoken here")
            return
        self._waiting.append((method, self._url, self._headers, b"".join(self._body), keep))
        self._reset()
        if len(self._waiting) > MOST_PIPELINED:
            self._transport.pause_reading()
        if not self._busy:
            self._next()

    def stale(self, now: float) -> bool:
        """Close the connection if it was silent, or slow, for too long; whether it was."""
        if self._busy or now - self._touched < (SLOW_S if self._begun else IDLE_S):
            return False
        if self._begun:
            self._refuse(408, f"no whole request within {SLOW_S:g} s")
        else:
            self.close()
        return True

    def close(self) -> None:
        """Close it as soon as nothing is under way."""
        self._closing = True
        if not self._busy and self._transport is not None:
            self._transport.close()

    @property
    def idle(self) -> bool:
        """Whether it waits for the caller's next bytes and nothing else."""
        return not (self._busy or self._closing or self._waiting)

    def _next(self) -> None:
        method, target, headers, body, keep = self._waiting.popleft()
        self._busy = True

        def respond(status: int, answer: Headers, content: bytes) -> None:
            self._write(status, answer, content, keep, method == b"HEAD")

        self._handler.handle(method, target, headers, body, respond)

    def _write(
        self, status: int, headers: Headers, body: bytes, keep: bool, head: bool = False
    ) -> None:
        self._busy = False
        self._touched = self._clock.time()
        keep = keep and not self._closing
        if not self._transport.is_closing():
            lines = [_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status]
            lines += [b"%b: %b\r\n" % one for one in headers]
            if status not in (204, 304):
                lines.append(b"content-length: %d\r\n" % len(body))
            lines.append(b"\r\n" if keep else b"connection: close\r\n\r\n")
            if not head:
                lines.append(body)
            self._transport.write(b"".join(lines))
        if not keep:
            self._closing = True
            self._transport.close()
        elif self._waiting:
            if len(self._waiting) <= MOST_PIPELINED:
                self._transport.resume_reading()
            # Not from within the parser of an answer that came at once: the stack stays flat.
            self._clock.call_soon(self._next_if_open)

    def _next_if_open(self) -> None:
        if self._waiting and not self._busy and not self._closing:
            self._next()

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that cannot be read, and close."""
        content = json.dumps({"error": {"message": message}}).encode()
        self._waiting.clear()
        if self._busy:  # the answer under way would be taken for this one
            self._closing = True
            return
        self._write(status, [(b"content-type", b"application/json")], content, keep=False)

    def _too_large(self) -> None:
        self._refuse(413, f"the body is larger than {LARGEST_BODY} bytes")

    def _weigh(self, length: int) -> None:
        self._weight += length
        if self._weight > LARGEST_HEADERS and not self._closing:
            self._refuse(431, f"the headers are larger than {LARGEST_HEADERS} bytes")

    def _reset(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._size = self._weight = 0
        self._begun = False
