"""The client side of the router: an HTTP server with limits on connections and memory.

A connection is not read while its request is handled, so a client with pipelined requests waits. If
a client does not read its response, the connection is closed. The number of connections is limited,
and so is the memory of all large requests and responses together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from ml.backends.traffic import DEPLOYMENT_HEADER

# A managed online endpoint accepts at most 10 MB.
MAX_BODY = 10 * 2**20
MAX_HEADERS = 64 * 2**10
MAX_CONNECTIONS = 1024
# Limit of all requests and responses in memory, in bytes. The first SMALL bytes of each request do
# not count, so that clients with large bodies cannot block those with small ones.
MAX_HELD = 64 * 2**20
SMALL = 64 * 2**10
# Timeouts: keep-alive of an idle connection; to send a request, and to read its response.
CALLER_IDLE_S, CALLER_SLOW_S = 75.0, 30.0
# How long a rejected client may continue to send before the connection is closed.
LINGER_S = 1.0
# Raw responses for connections on which aiohttp has no complete request.
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Full(Exception):
    """The memory limit MAX_HELD is reached."""


class Room:
    """The memory of all requests in progress, in bytes, without the first SMALL of each."""

    def __init__(self) -> None:
        self.held = 0


class Load:
    """The memory of one request: its body, and its response until the client has read it."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._size = self._counted = 0

    def add(self, size: int) -> None:
        """Add `size` bytes; raise Full if the limit of all requests would be exceeded."""
        more = max(self._size + size - SMALL - self._counted, 0)
        if more and self.room.held + more > MAX_HELD:
            raise Full
        self._size += size
        self._counted += more
        self.room.held += more

    def end(self) -> None:
        """Release all bytes of the request."""
        self.room.held -= self._counted
        self._size = self._counted = 0


Handler = Callable[[web.BaseRequest, bytes, Load], Awaitable[web.Response]]


def error(status: int, message: str, deployment: str = "") -> web.Response:
    """Return an error response of the router, as JSON."""
    headers = {DEPLOYMENT_HEADER: deployment} if deployment else None
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


def refuse(status: int, message: str) -> web.Response:
    """Return an error response that also closes the connection."""
    response = error(status, message)
    response.force_close()
    return response


class BoundedServer(web.Server):
    """aiohttp's server with limits, and with errors as JSON."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(self._serve, request_factory=cast(Any, _request))
        self._handler = handler
        self.room = Room()
        self.open = 0
        # The connections without a request, ordered by their waiting time, longest first.
        self.idle: dict[_Connection, None] = {}

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return _Connection(self)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Read the request, call the handler, and write the response."""
        connection = cast(_Connection, request.protocol)
        load = Load(self.room)
        answer = _refusal(request)
        try:
            if answer is None:
                answer = await self._answer(request, connection, load)
            try:
                async with asyncio.timeout(CALLER_SLOW_S):
                    await answer.prepare(request)
                    await answer.write_eof()
            except TimeoutError:
                connection.abort()
            except ConnectionError:
                pass  # the client is gone
        finally:
            load.end()
            connection.end(closes=answer is not None and answer.keep_alive is False)
        return answer

    async def _answer(
        self, request: web.BaseRequest, connection: _Connection, load: Load
    ) -> web.Response:
        try:
            body = await _body(request, load)
        except web.HTTPRequestEntityTooLarge:
            return refuse(413, f"the body is larger than {MAX_BODY} bytes")
        except Full:
            return refuse(503, "the router holds too many large requests; try again")
        except TimeoutError:
            return refuse(408, f"the request did not arrive within {CALLER_SLOW_S:g} s")
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError):
            return refuse(400, "the body is malformed or incomplete")
        connection.pause()
        answer = await self._handler(request, body, load)
        if hdrs.TRANSFER_ENCODING in request.headers or hdrs.UPGRADE in request.headers:
            # aiohttp adds trailers to the headers of the connection's next request, and drops data
            # after an upgrade request.
            answer.force_close()
        return answer


class _Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(self, server: BoundedServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,
            keepalive_timeout=CALLER_IDLE_S,
            lingering_time=LINGER_S,
            max_line_size=MAX_HEADERS,
            max_field_size=MAX_HEADERS,
        )
        self._server = server
        self._head = 0  # bytes of a request's head that is not complete yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by aiohttp for a new connection; above the limit, close the longest idle one."""
        super().connection_made(transport)
        server = self._server
        server.open += 1
        if server.open > MAX_CONNECTIONS:
            if not server.idle:
                self._end_with(_BUSY)
                return
            longest = next(iter(server.idle))
            del server.idle[longest]
            longest.force_close()
        server.idle[self] = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by aiohttp when the connection has closed."""
        self._server.open -= 1
        self._server.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by aiohttp for received bytes: limit all headers, since aiohttp limits each."""
        super().data_received(data)
        if self not in self._server.idle or self._messages:
            self._head = 0
            return
        self._head += len(data)
        if self._head > MAX_HEADERS:
            self._end_with(_TOO_LARGE)

    def begin(self) -> None:
        """Mark the connection as busy with a request."""
        self._server.idle.pop(self, None)

    def pause(self) -> None:
        """Stop reading from the client until `end`."""
        if self.transport is not None:
            with suppress(RuntimeError):  # it is closing
                self.transport.pause_reading()

    def end(self, closes: bool) -> None:
        """End a request; aiohttp first handles the requests that it has already read.

        After a response that closes the connection, the rest of the body is not read.
        """
        if self.transport is not None:
            if not closes:
                self._server.idle[self] = None
            if not self._messages:
                with suppress(RuntimeError):
                    self.transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once and drop unsent data."""
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called by aiohttp for the response to a malformed request or a bug of the router."""
        if isinstance(exc, LineTooLong):
            return refuse(431, f"a header is larger than {MAX_HEADERS} bytes")
        if status >= 500:
            self.log_exception("unexpected error", exc_info=exc)
            return refuse(status, HTTPStatus(status).description)
        return refuse(status, f"not a valid HTTP request: {message}")

    def log_exception(self, *args: Any, **keywords: Any) -> None:
        """Called by aiohttp: log a bug, unless the client disconnected while sending its body."""
        gone = self.transport is None and isinstance(keywords.get("exc_info"), RuntimeError)
        if not gone:
            super().log_exception(*args, **keywords)

    def _end_with(self, answer: bytes) -> None:
        if self.transport is not None:
            self.transport.write(answer)
        self.force_close()


def _request(
    message: Any, payload: Any, protocol: _Connection, writer: Any, task: Any
) -> web.BaseRequest:
    protocol.begin()
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)


def _refusal(request: web.BaseRequest) -> web.Response | None:
    """Return an error response if the router cannot forward the request; None otherwise."""
    headers = request.headers
    if request.method == hdrs.METH_CONNECT or not request.rel_url.raw_path.startswith("/"):
        return refuse(501, "the router does not tunnel")
    if sum(map(len, headers)) + sum(map(len, headers.values())) > MAX_HEADERS:
        return refuse(431, f"the headers are larger than {MAX_HEADERS} bytes")
    coding = headers.get(hdrs.TRANSFER_ENCODING, "chunked")
    if coding.strip().lower() != "chunked":
        return refuse(501, f"the router does not pass on a body with the coding `{coding[:80]}`")
    return None


async def _body(request: web.BaseRequest, load: Load) -> bytes:
    """Return the body; raise HTTPRequestEntityTooLarge, Full or TimeoutError."""
    length = request.content_length
    if length is not None and length > MAX_BODY:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY, length)
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # else aiohttp takes the response as begun
    parts: list[bytes] = []
    size = 0
    async with asyncio.timeout(CALLER_SLOW_S):
        async for part in request.content.iter_any():
            size += len(part)
            if size > MAX_BODY:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY, size)
            load.add(len(part))
            parts.append(part)
    return b"".join(parts)
