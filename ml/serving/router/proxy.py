"""The reverse proxy: chooses a deployment for each request, forwards it, counts the answer."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from multidict import CIMultiDict
from yarl import URL

from ml.serving.router import routes as routing
from ml.serving.router.records import (
    FOLDER,
    NO_ANSWER,
    REQUEST_ID,
    TOO_LATE,
    TOO_MANY,
    Collector,
    Recent,
    Tally,
)
from ml.serving.router.routes import DEPLOYMENT_HEADER, KEY_HEADER, Routes, RoutesError

HOST = "127.0.0.1"
SCORE = "/score"
# A managed online endpoint accepts at most 10 MB.
MAX_BODY = 10 * 2**20
MAX_HEADERS = 64 * 2**10
MAX_ANSWER = 64 * 2**20
# A caller's connection may be silent this long between requests, and take this long to send one.
CALLER_IDLE_S, CALLER_SLOW_S = 75.0, 30.0
# How long a refused caller may go on sending before the connection is closed.
LINGER_S = 1.0
# Shorter than any server's keep-alive, so that a server seldom closes a connection under a request.
KEEP_S = 1.0
# Requests that a deployment may have in flight; more are answered 429, as a managed endpoint does.
MAX_IN_FLIGHT = 512
MAX_MIRRORED_IN_FLIGHT = 32
# RFC 9110, 7.6.1: headers about one connection, beside those that `Connection` names. Lengths are
# written anew.
_HOP_BY_HOP = (
    *(hdrs.CONNECTION, "Keep-Alive", "Proxy-Connection", hdrs.TRANSFER_ENCODING, hdrs.TE),
    *(hdrs.TRAILER, hdrs.UPGRADE, hdrs.CONTENT_LENGTH, hdrs.EXPECT),
)
_ADDED_BY_AIOHTTP = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
Headers = CIMultiDict[str]


def error(status: int, message: str, deployment: str = "") -> web.Response:
    """An answer of the router itself."""
    headers = {DEPLOYMENT_HEADER: deployment} if deployment else None
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


class Proxy:
    """The routes in force, the counters of each deployment, and the requests in flight.

    An error of a deployment is passed on and counted; the request is not sent to another one. A
    managed endpoint does not either: a retry would hide from the canary what a caller on Azure
    would see, and would score a request twice.
    """

    def __init__(self, file: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.routes: Routes | None = None
        self.problem = ""
        self.generation = 0
        self.tallies: dict[str, Tally] = {}
        # Deployments that the routes no longer name, with requests in flight; by name and port.
        self.draining: dict[tuple[str, int], Tally] = {}
        self.recent = Recent()
        self.collector = Collector(file.parent / FOLDER, self.loop)
        self._file = file
        self._file_id: tuple[int, int] | None = None
        self._random = random.Random()
        self._renewed = self.loop.time()
        self._copies: set[asyncio.Task[web.Response]] = set()
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            trace_configs=[trace],
            max_line_size=MAX_HEADERS,
            max_field_size=MAX_HEADERS,
        )

    @property
    def leased(self) -> bool:
        """Whether somebody still watches the deployments that are not live."""
        lease = self.routes.lease_s if self.routes else None
        return lease is None or self.loop.time() - self._renewed <= lease

    def renew(self) -> None:
        """Start the lease anew."""
        self._renewed = self.loop.time()

    def refresh(self) -> None:
        """Read the routes file if it changed, and flush the collector.

        A file that is not valid changes nothing: the routes in force stay and `problem` says why.
        A missing file means that nothing is served.
        """
        self.collector.flush()
        try:
            status = self._file.stat()
        except FileNotFoundError:
            if self.routes is not None:
                self._follow(None)
            self._file_id, self.problem = None, ""
            return
        file_id = (status.st_mtime_ns, status.st_ino)
        if file_id == self._file_id:
            return
        self._file_id = file_id
        try:
            routes = routing.read(self._file)
        except RoutesError as failure:
            self.problem = str(failure)
            return
        self.problem = ""
        self.renew()
        if routes != self.routes:
            self._follow(routes)

    async def close(self, timeout_s: float) -> None:
        """Wait for the mirrored requests in flight, then close every connection."""
        if self._copies:
            await asyncio.wait(self._copies, timeout=timeout_s)
        self.collector.flush()
        await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request of a caller."""
        if request.method == hdrs.METH_CONNECT or not request.rel_url.raw_path.startswith("/"):
            return _refuse(501, "the router does not tunnel")
        try:
            body = await _body(request)
        except web.HTTPRequestEntityTooLarge:
            return _refuse(413, f"the body is larger than {MAX_BODY} bytes")
        except TimeoutError:
            return _refuse(408, f"the request did not arrive within {CALLER_SLOW_S:g} s")
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError):
            return _refuse(400, "the body is malformed or incomplete")
        routes = self.routes
        if routes is None:
            return error(404, "no deployment has a positive weight")
        named = request.headers.get(DEPLOYMENT_HEADER)
        if named is not None and named not in routes.ports:
            names = ", ".join(routes.ports)
            return error(404, f"no deployment `{named[:80]}`; one of: {names}")
        key = _text(request.headers.get(KEY_HEADER))
        chosen = named or routes.pick(key, self._random, self.leased)
        scores = request.method == hdrs.METH_POST and request.rel_url.raw_path == SCORE
        if not scores or named is not None:
            return await self._send(chosen, self.tallies[chosen], request, body, routes, scores)
        collects = self._collects(routes, chosen, key)
        if routes.mirror and self.leased:
            mirror = routes.pick_mirror(chosen, self._random)
            if mirror is not None and self.tallies[mirror].in_flight < MAX_MIRRORED_IN_FLIGHT:
                tally = self.tallies[mirror]
                tally.mirrored += 1
                copy = asyncio.create_task(self._send(mirror, tally, request, body, routes))
                self._copies.add(copy)
                copy.add_done_callback(self._copies.discard)
        answer = await self._send(chosen, self.tallies[chosen], request, body, routes)
        if collects:
            digest = routes.digests.get(chosen, "")
            request_id = _text(answer.headers.get(REQUEST_ID)) or ""
            self.collector.add(chosen, digest, body, answer.status, answer.body, request_id)
        return answer

    def _follow(self, routes: Routes | None) -> None:
        before = self.routes.ports if self.routes else {}
        ports = routes.ports if routes else {}
        for name, port in before.items():
            if ports.get(name) != port:
                self.draining[name, port] = self.tallies.pop(name)
        for name in ports:
            self.tallies.setdefault(name, Tally())
        self.draining = {key: tally for key, tally in self.draining.items() if tally.in_flight}
        self.routes = routes
        self.generation += 1

    def _collects(self, routes: Routes, chosen: str, key: str | None) -> bool:
        """Whether this request is recorded. None is during a canary: much of its traffic are the
        project's samples.
        """
        if routes.lease_s is not None:
            return False
        if routes.experiment and key is not None:
            self.collector.expose(routes.experiment, routing.ticket(key, routes.salt), chosen)
        share = routes.collect.get(chosen, 0.0)
        return share > 0 and self._random.random() < share

    async def _send(
        self,
        name: str,
        tally: Tally,
        request: web.BaseRequest,
        body: bytes,
        routes: Routes,
        scores: bool = True,
    ) -> web.Response:
        """The answer of a deployment, counted if the request `scores`."""
        if tally.in_flight >= MAX_IN_FLIGHT:
            if scores:
                tally.add(TOO_MANY, 0.0, own=False)
            return error(TOO_MANY, f"deployment `{name}` has too many pending requests", name)
        tally.in_flight += 1
        start = perf_counter()
        own = False
        try:
            answer = await self._forward(request, body, routes.ports[name], routes.timeout_ms)
            own = True
            answer.headers[DEPLOYMENT_HEADER] = name
        except TimeoutError:
            text = f"deployment `{name}` took longer than {routes.timeout_ms / 1000:g} s"
            answer = error(TOO_LATE, text, name)
        except (aiohttp.ClientError, OSError) as failure:
            answer = error(NO_ANSWER, f"deployment `{name}`: {_reason(failure)}", name)
        finally:
            tally.in_flight -= 1
        if scores:
            tally.add(answer.status, perf_counter() - start, own)
            if len(routes.ports) > 1:
                content = answer.body if own and isinstance(answer.body, bytes) else b""
                self.recent.add(name, answer.status, content)
        return answer

    async def _forward(
        self, request: web.BaseRequest, body: bytes, port: int, timeout_ms: int
    ) -> web.Response:
        """Send the request to a port of this machine; the answer without hop-by-hop headers.

        A kept connection that the server closes before it answers is the race between its
        keep-alive timeout and our request: only then the request is sent again. HEAD is sent as
        GET. Raises TimeoutError, aiohttp.ClientError or OSError.
        """
        headers = _end_to_end(request.headers)
        headers[hdrs.HOST] = f"{HOST}:{port}"
        method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
        url = _url(port, request.rel_url.raw_path, request.rel_url.raw_query_string)
        timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000, ceil_threshold=3600)
        while True:
            connection = {"reused": False}
            try:
                async with self._session.request(
                    method,
                    url,
                    data=body or None,
                    headers=headers,
                    allow_redirects=False,
                    timeout=timeout,
                    trace_request_ctx=connection,
                ) as response:
                    return web.Response(
                        status=response.status,
                        reason=response.reason,
                        headers=_end_to_end(response.headers),
                        body=await _content(response),
                    )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection["reused"]:
                    raise


class Server(web.Server):
    """aiohttp's server, with errors as JSON; a malformed request is not logged."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy.handle, request_factory=_request)

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            auto_decompress=False,
            keepalive_timeout=CALLER_IDLE_S,
            lingering_time=LINGER_S,
            max_line_size=MAX_HEADERS,
            max_field_size=MAX_HEADERS,
        )


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp: the answer to a request that cannot be parsed, or to a defect of the router."""
        if isinstance(exc, LineTooLong):
            return _refuse(431, f"a header is larger than {MAX_HEADERS} bytes")
        if status >= 500:
            self.log_exception("unexpected error", exc_info=exc)
            return _refuse(status, HTTPStatus(status).description)
        return _refuse(status, f"not a valid HTTP request: {message}")


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)


async def _body(request: web.BaseRequest) -> bytes:
    """The body; raises HTTPRequestEntityTooLarge or TimeoutError."""
    length = request.content_length
    if length is not None and length > MAX_BODY:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY, length)
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # aiohttp: the answer itself has not begun
    if request.content.is_eof():
        return await request.read()
    async with asyncio.timeout(CALLER_SLOW_S):
        return await request.read()


async def _content(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer; raises ClientPayloadError when it is cut off or too large."""
    protocol = response.connection.protocol if response.connection else None
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise aiohttp.ClientPayloadError("an answer too large")
    # Without a length the end of the connection ends the answer; a reset is not such an end.
    if protocol is not None and isinstance(protocol.exception(), aiohttp.ClientOSError):
        raise aiohttp.ClientPayloadError("the connection broke before the end of the answer")
    return b"".join(parts)


@functools.lru_cache(maxsize=256)
def _url(port: int, path: str, query: str) -> URL:
    return URL.build(
        scheme="http", host=HOST, port=port, path=path, query_string=query, encoded=True
    )


def _end_to_end(headers: Mapping[str, str]) -> Headers:
    copy = CIMultiDict(headers)
    for name in (*_HOP_BY_HOP, *headers.get(hdrs.CONNECTION, "").split(",")):
        copy.popall(name.strip(), None)
    return copy


def _text(header: str | None) -> str | None:
    """A header as UTF-8, or as Latin-1 where it is not UTF-8; aiohttp leaves surrogates then."""
    if header is None or header.isascii():
        return header
    raw = header.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _refuse(status: int, message: str) -> web.Response:
    """An error that also ends the connection."""
    response = error(status, message)
    response.force_close()
    return response


def _reason(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientConnectorError):
        return f"no connection: {failure.os_error.strerror or failure.os_error}"
    if isinstance(failure, aiohttp.ClientResponseError):
        return f"not an HTTP answer: {failure.message}"
    return str(failure) or type(failure).__name__


async def _note_reuse(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx["reused"] = True
