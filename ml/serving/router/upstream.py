"""Connections to one deployment: kept alive where the server allows it, one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol

import httptools

HOST = "127.0.0.1"
MOST_IDLE = 32
# Shorter than any server's keep-alive, so that a connection is seldom closed under a request.
IDLE_S = 1.0
LARGEST_ANSWER = 64 * 2**20
Headers = list[tuple[bytes, bytes]]


class Waiting(Protocol):
    """Whoever sent a request: told once, of the answer or that there is none."""

    payload: bytes

    def answered(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer has come."""

    def failed(self, why: str) -> None:
        """There will be none."""


class Upstream:
    """The pool of one deployment.

    A kept connection that the server closes without one byte of an answer is the race between its
    keep-alive and our request: that request, and no other, is sent once more on a new connection to
    the same deployment. Nothing is ever retried on another deployment.
    """

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self._loop = loop
        self._idle: deque[_Connection] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False

    def send(self, waiting: Waiting) -> _Sending:
        """Send the request of `waiting`; the handle gives it up."""
        sending = _Sending(waiting)
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and now - connection.since < IDLE_S:
                connection.send(sending, fresh=False)
                return sending
            connection.close()
        self.connect(sending)
        return sending

    def connect(self, sending: _Sending) -> None:
        """Send on a new connection."""
        task = self._loop.create_task(self._connect(sending))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def keep(self, connection: _Connection) -> None:
        """Take back a connection that may be used again."""
        if self._closed:
            connection.close()
            return
        connection.since = self._loop.time()
        self._idle.append(connection)
        if len(self._idle) > MOST_IDLE:
            self._idle.popleft().close()

    def close(self) -> None:
        """Close what is idle; requests under way end as they would."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connect(self, sending: _Sending) -> None:
        try:
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self), HOST, self.port
            )
        except OSError as error:
            sending.failed(f"no connection: {error.strerror or error}")
            return
        connection.send(sending, fresh=True)


class _Sending:
    """One request on its way; what comes after it was given up is dropped."""

    __slots__ = ("connection", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        self.waiting: Waiting | None = waiting
        self.connection: _Connection | None = None

    def give_up(self) -> None:
        """Nobody waits any more: the connection cannot be used for anything else."""
        self.waiting = None
        if self.connection is not None:
            self.connection.close()

    def answered(self, status: int, headers: Headers, body: bytes) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.answered(status, headers, body)

    def failed(self, why: str) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.failed(why)


class _Connection(asyncio.Protocol):
    """One connection; the parser's callbacks gather an answer."""

    def __init__(self, pool: Upstream) -> None:
        self.since = 0.0
        self.lost = False
        self._pool = pool
        self._transport: Any = None
        self._sending: _Sending | None = None
        self._fresh = True
        self._begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, sending: _Sending, fresh: bool) -> None:
        """Write the request; `fresh` when the connection was never used before."""
        if sending.waiting is None:  # given up while the connection was made
            self._pool.keep(self)
            return
        self._sending, self._fresh = sending, fresh
        sending.connection = self
        self._begin()
        self._transport.write(sending.waiting.payload)

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._sending is None:  # nobody asked: nothing that follows could be trusted
            self.close()
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"no HTTP: {error}")
        if self._size > LARGEST_ANSWER:
            self._fail("an answer too large")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self._sending is None:
            return
        if self._open_ended:  # neither a length nor chunks: the end of the connection ends it
            self._finish(reuse=False)
        elif not self._heard and not self._fresh and self._sending.waiting is not None:
            sending, self._sending = self._sending, None
            self._pool.connect(sending)
        else:
            self._fail("the connection was closed before the answer's end")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._open_ended = not self._framed and self._status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status >= 200:  # not a `100 Continue`
            self._finish(reuse=self._parser.should_keep_alive())
        else:
            self._clear()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._clear()

    def _clear(self) -> None:
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._size = self._status = 0
        self._heard = self._framed = self._open_ended = False

    def _finish(self, reuse: bool) -> None:
        sending, self._sending = self._sending, None
        if sending is None:  # a second answer to one request: whose is the next?
            self.close()
            return
        if reuse and not self.lost:
            self._pool.keep(self)
        else:
            self.close()
        sending.answered(self._status, self._headers, b"".join(self._body))

    def _fail(self, why: str) -> None:
        sending, self._sending = self._sending, None
        self.close()
        if sending is not None:
            sending.failed(why)
