"""Connections to one deployment: kept alive where the server allows it, one request at a time."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from typing import Protocol

import httptools

HOST = "127.0.0.1"
MOST_IDLE = 32
# Shorter than any server's keep-alive, so that a connection is seldom closed under a request.
IDLE_S = 1.0
LARGEST_ANSWER = 64 * 2**20
READ = 64 * 2**10
# The system takes no bytes yet; ENOTCONN is what BSD says while it connects.
_LATER = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOTCONN})
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
        self.loop = loop
        self._idle: deque[_Connection] = deque()
        self._closed = False

    def send(self, waiting: Waiting) -> _Sending:
        """Send the request of `waiting`; the handle gives it up."""
        sending = _Sending(waiting)
        now = self.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and now - connection.since < IDLE_S:
                connection.send(sending)
                return sending
            connection.close()
        self.connect(sending)
        return sending

    def connect(self, sending: _Sending) -> None:
        """Send on a new connection."""
        try:
            connection = _Connection(self)
        except OSError as error:
            sending.failed(f"no connection: {error.strerror or error}")
            return
        connection.send(sending)

    def keep(self, connection: _Connection) -> None:
        """Take back a connection that may be used again."""
        if self._closed:
            connection.close()
            return
        connection.since = self.loop.time()
        self._idle.append(connection)
        if len(self._idle) > MOST_IDLE:
            self._idle.popleft().close()

    def close(self) -> None:
        """Close what is idle; requests under way end as they would."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


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


class _Connection:
    """One connection; the parser's callbacks gather an answer.

    It is a bare socket, since a transport is closed in a later turn of the loop: a server that
    answers one request a connection waits for ours to close before it takes the next (gunicorn's
    sync worker, `gunicorn.util.close_graceful`). On this machine it is connected at once, too.
    """

    def __init__(self, pool: Upstream) -> None:
        self.since = 0.0
        self.lost = False
        self._pool = pool
        self._loop = pool.loop
        self._sending: _Sending | None = None
        self._left = memoryview(b"")  # of the request
        self._writing = self._used = self._sent = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            problem = self._socket.connect_ex((HOST, pool.port))
            if problem not in (0, errno.EINPROGRESS):
                raise OSError(problem, os.strerror(problem))
        except OSError:
            self._socket.close()
            raise
        self._number = self._socket.fileno()
        self._loop.add_reader(self._number, self._read)

    def send(self, sending: _Sending) -> None:
        """Write the request."""
        assert sending.waiting is not None
        self._sending, sending.connection = sending, self
        self._parser = httptools.HttpResponseParser(self)
        self._clear()
        self._left, self._sent = memoryview(sending.waiting.payload), False
        self._heard = False
        self._write()

    def close(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._number)
        self._stop_writing()
        self._socket.close()

    def _write(self) -> None:
        """Send as much as the system takes; the rest once it takes more."""
        try:
            sent = self._socket.send(self._left)
        except OSError as error:
            if error.errno not in _LATER:
                self._stop_writing()
                if not self._sent:
                    self._end(error)
                return  # else there may be an answer, and whoever reads it finds the end
            sent = 0
        self._sent = self._sent or sent > 0
        self._left = self._left[sent:]
        if not self._left:
            self._stop_writing()
        elif not self._writing:
            self._writing = True
            self._loop.add_writer(self._number, self._write)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._number)

    def _read(self) -> None:
        """Read what has come: to the end, since uvloop tells of a broken connection only once."""
        while not self.lost:
            try:
                data = self._socket.recv(READ)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(error)
                return
            if not data:
                self._end(None)
                return
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
            if self._sending is None:
                return

    def _end(self, error: OSError | None) -> None:
        """The server closed the connection, or there never was one."""
        self.close()
        if self._sending is None:
            return
        # Neither a length nor chunks: the end of the connection ends the answer.
        if self._open_ended and error is None:
            self._finish(reuse=False)
        elif self._used and not self._heard:
            sending, self._sending = self._sending, None
            if sending.waiting is not None:
                self._pool.connect(sending)
        elif error is not None and not self._sent:
            self._fail(f"no connection: {error.strerror or error}")
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

    def _clear(self) -> None:
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._size = self._status = 0
        self._framed = self._open_ended = False

    def _finish(self, reuse: bool) -> None:
        sending, self._sending = self._sending, None
        if sending is None:  # a second answer to one request: whose is the next?
            self.close()
            return
        if reuse and not self.lost and not self._left:
            self._used = True
            self._pool.keep(self)
        else:
            self.close()
        sending.answered(self._status, self._headers, b"".join(self._body))

    def _fail(self, why: str) -> None:
        sending, self._sending = self._sending, None
        self.close()
        if sending is not None:
            sending.failed(why)
