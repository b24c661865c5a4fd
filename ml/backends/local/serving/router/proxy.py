"""The reverse proxy: choose a deployment for each request, forward it, count the response."""

from __future__ import annotations

import asyncio
import functools
import hmac
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from ml.backends.local.serving import processes
from ml.backends.local.serving.processes import HOST
from ml.backends.local.serving.router import routes as routing
from ml.backends.local.serving.router.front import MAX_HEADERS, SMALL, Full, Load, error
from ml.backends.local.serving.router.records import (
    FOLDER,
    NO_ANSWER,
    TOO_FULL,
    TOO_LATE,
    TOO_MANY,
    Collector,
    Keys,
)
from ml.backends.local.serving.router.routes import SAMPLE_HEADER, RoutesError, RouteTable
from ml.backends.traffic import (
    CLIENT,
    DEPLOYMENT_HEADER,
    EXCLUDED,
    KEY_HEADER,
    REQUEST_ID,
    SAMPLE,
    TIMEOUT_MS,
    Counters,
    Recent,
    RequestKind,
    ticket,
)
from ml.serving.scoring.messages import is_finite

SCORE = "/score"
MAX_ANSWER = 64 * 2**20
# Keep-alive to deployments; shorter than a server's, which then seldom closes a used connection.
KEEP_S = 1.0
# Limit of a deployment's requests in flight; above it respond 429, as a managed endpoint does.
MAX_IN_FLIGHT = 512
# Limit of a deployment's randomly mirrored requests in flight.
MAX_MIRRORED_IN_FLIGHT = 32
# Charsets with numbers in ASCII, or that `is_finite` detects.
_CHARSETS = {"utf-8", "utf8", "us-ascii", "iso-8859-1", "windows-1252"} | {
    f"utf-{bits}{order}" for bits in (16, 32) for order in ("", "le", "be")
}
# Hop-by-hop headers (RFC 9110, 7.6.1), besides those that `Connection` lists, and the length, which
# is set again.
_HOP_BY_HOP = (
    *(hdrs.CONNECTION, "Keep-Alive", "Proxy-Connection", hdrs.TRANSFER_ENCODING, hdrs.TE),
    *(hdrs.TRAILER, hdrs.UPGRADE, hdrs.CONTENT_LENGTH, hdrs.EXPECT),
)
_ADDED_BY_AIOHTTP = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
Headers = CIMultiDict[str]


@dataclass
class Deployment:
    """A deployment of the route table."""

    name: str
    port: int
    pid: int | None  # of its server; None if the route table has none
    counters: Counters = field(default_factory=Counters)
    in_flight: int = 0
    mirrored: int = 0  # mirrored requests in flight that were drawn at random

    def __post_init__(self) -> None:
        self._listener = processes.listener(self.pid, self.port) if self.pid else None

    def check(self) -> None:
        """Raise ClientConnectionError if the process `pid` does not listen on the port."""
        if self.pid and (self._listener is None or not self._listener.is_open()):
            raise aiohttp.ClientConnectionError("its server does not run")


class Proxy:
    """The current routes, the counters of each deployment, and the requests in flight.

    A deployment's error is forwarded and counted. As on Azure, the request is not retried on
    another deployment: that would hide errors from the canary and score a request twice.
    """

    def __init__(self, file: Path, sample: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.routes: RouteTable | None = None
        self.problem = ""
        self.generation = 0
        self.deployments: dict[str, Deployment] = {}
        # Deployments outside the current routes, with requests in flight.
        self.draining: list[Deployment] = []
        self.recent = Recent()
        self.collector = Collector(file.parent / FOLDER, self.loop)
        self._file = file
        self._file_id: tuple[int, int] | None = None
        self._sample = sample.encode()
        # A client cannot predict the next deployment from earlier responses.
        self._random = random.SystemRandom()
        self._keys = Keys()
        self._renewed = self.loop.time()
        self._copies: set[asyncio.Task[None]] = set()
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_note_reuse)
        trace.on_connection_create_end.append(_note_connection)
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
        """Whether the canary's lease is valid; True without a lease."""
        lease = self.routes.lease_s if self.routes else None
        return lease is None or self.loop.time() - self._renewed <= lease

    def renew(self) -> None:
        """Renew the lease."""
        self._renewed = self.loop.time()

    def refresh(self) -> None:
        """Read the routes file if it changed, and flush the collector.

        If the file is invalid, keep the current routes and set `problem` to the reason. If it is
        missing, remove the routes.
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

    async def handle(self, request: web.BaseRequest, body: bytes, load: Load) -> web.Response:
        """Return the response to a client's request; send the copies for mirror and twin."""
        routes = self.routes
        if routes is None:
            return error(404, "no deployment has a positive weight")
        headers = request.headers
        for header in (DEPLOYMENT_HEADER, KEY_HEADER):
            if len(headers.getall(header, ())) > 1:
                return error(400, f"more than one header `{header}`")
        named = headers.get(DEPLOYMENT_HEADER)
        if named is not None and named not in routes.ports:
            names = ", ".join(routes.ports)
            return error(404, f"no deployment `{named[:80]}`; one of: {names}")
        key = _text(headers.get(KEY_HEADER))
        chosen = self.deployments[named or routes.pick(key, self._random, self.leased)]
        kind = self._kind(request, named, key, routes)
        # The server also runs the scoring script for GET.
        scores = request.rel_url.path == SCORE
        mirror = self._mirror(chosen, routes) if scores and kind != EXCLUDED else None
        if mirror is not None:
            self._copy(mirror, kind, scores, request, body, load)
        if self.leased and (kind == EXCLUDED or len(body) > SMALL):
            # Copy requests between a canary and its baseline if a client chose the deployment, or
            # if they are large, since a few would matter. Thus both have the same load, and their
            # latency and memory can be compared.
            for deployment in (chosen, mirror):
                if deployment is not None and (twin := routes.twin(deployment.name)) is not None:
                    self._copy(self.deployments[twin], EXCLUDED, scores, request, body, load)
        collects = (
            scores
            and named is None
            and request.method == hdrs.METH_POST
            and self._collects(routes, chosen.name, key)
        )
        answer = await self._send(chosen, kind, scores, request, body, load)
        if collects:
            digest = routes.digests.get(chosen.name, "")
            request_id = _text(answer.headers.get(REQUEST_ID)) or ""
            self.collector.add(chosen.name, digest, body, answer.status, answer.body, request_id)
        return answer

    def _kind(
        self, request: web.BaseRequest, named: str | None, key: str | None, routes: RouteTable
    ) -> RequestKind:
        """Return the kind by which a scoring request is counted.

        EXCLUDED: the client chose the deployment, by header or by a routing key that it sent
        before. The first response to a key shows its deployment.
        """
        if named is not None:
            return EXCLUDED
        if key is not None and routes.lease_s is not None:
            is_new = self._keys.add(ticket(key, routes.salt))
            return CLIENT if is_new else EXCLUDED
        sample = request.headers.get(SAMPLE_HEADER, "").encode("utf-8", "surrogateescape")
        return SAMPLE if sample and hmac.compare_digest(sample, self._sample) else CLIENT

    def _mirror(self, chosen: Deployment, routes: RouteTable) -> Deployment | None:
        """Return a randomly drawn deployment for a copy of the request; None for no copy."""
        name = routes.pick_mirror(chosen.name, self._random) if self.leased else None
        if name is None or self.deployments[name].mirrored >= MAX_MIRRORED_IN_FLIGHT:
            return None
        return self.deployments[name]

    def _copy(
        self,
        to: Deployment,
        kind: RequestKind,
        scores: bool,
        request: web.BaseRequest,
        body: bytes,
        load: Load,
    ) -> None:
        """Send a copy and discard its response; skip it if there is no memory for its body."""
        copy_load = Load(load.room)
        try:
            copy_load.add(len(body))
        except Full:
            return
        if scores:
            to.counters.tally(kind).mirrored += 1
        is_drawn = kind != EXCLUDED
        to.mirrored += is_drawn

        async def send() -> None:
            try:
                await self._send(to, kind, scores, request, body, copy_load)
            finally:
                to.mirrored -= is_drawn
                copy_load.end()

        copy = asyncio.create_task(send())
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)

    def _follow(self, routes: RouteTable | None) -> None:
        before, earlier = self.routes, self.deployments
        self.deployments = {}
        for name, port in (routes.ports if routes else {}).items():
            pid = routes.pids.get(name) if routes else None
            same = earlier.get(name)
            if same is None or (same.port, same.pid) != (port, pid):
                same = Deployment(name, port, pid)
            self.deployments[name] = same
        gone = [
            target for name, target in earlier.items() if self.deployments.get(name) is not target
        ]
        self.draining = [target for target in (*self.draining, *gone) if target.in_flight]
        if not (routes and before) or before.salt != routes.salt or before.is_whole:
            self._keys = Keys()
        self.routes = routes
        self.generation += 1

    def _collects(self, routes: RouteTable, chosen: str, key: str | None) -> bool:
        """Return whether to record this request; in an experiment, also record its routing key.

        Nothing is recorded during a canary, when much of the traffic is sample requests.
        """
        if routes.lease_s is not None:
            return False
        if routes.experiment and key is not None:
            self.collector.expose(routes.experiment, ticket(key, routes.salt), chosen)
        share = routes.collect.get(chosen, 0.0)
        return share > 0 and self._random.random() < share

    async def _send(
        self,
        to: Deployment,
        kind: RequestKind,
        scores: bool,
        request: web.BaseRequest,
        body: bytes,
        load: Load,
    ) -> web.Response:
        """Return the response of a deployment, and count it if the request `scores`.

        Requests that a busy router rejects count as EXCLUDED, because clients can cause them.
        """
        timeout_ms = self.routes.timeout_ms if self.routes else TIMEOUT_MS
        seconds = 0.0
        by_deployment = False
        if to.in_flight >= MAX_IN_FLIGHT:
            text = f"deployment `{to.name}` has too many pending requests"
            kind, answer = EXCLUDED, error(TOO_MANY, text, to.name)
        else:
            to.in_flight += 1
            start = perf_counter()
            try:
                answer = await self._forward(request, body, to, timeout_ms, load)
                by_deployment = not scores or answer.status >= 300 or is_finite(_decoded(answer))
                if not by_deployment:
                    answer = error(NO_ANSWER, f"deployment `{to.name}`: an infinite number or NaN")
                answer.headers[DEPLOYMENT_HEADER] = to.name
            except Full:
                text = f"deployment `{to.name}`: no room for its answer; try again"
                kind, answer = EXCLUDED, error(TOO_FULL, text, to.name)
            except TimeoutError:
                text = f"deployment `{to.name}` took longer than {timeout_ms / 1000:g} s"
                answer = error(TOO_LATE, text, to.name)
            except (aiohttp.ClientError, OSError) as failure:
                answer = error(NO_ANSWER, f"deployment `{to.name}`: {_reason(failure)}", to.name)
            finally:
                to.in_flight -= 1
            seconds = perf_counter() - start
        if scores:
            to.counters.tally(kind).add(answer.status, seconds, by_deployment)
            if kind != EXCLUDED and len(self.deployments) > 1:
                self.recent.add(
                    to.name, kind, answer.status, _bytes(answer) if by_deployment else b""
                )
        return answer

    async def _forward(
        self, request: web.BaseRequest, body: bytes, to: Deployment, timeout_ms: int, load: Load
    ) -> web.Response:
        """Send the request to the deployment; return its response without hop-by-hop headers.

        The request is retried only if the server closes a reused connection before responding: its
        keep-alive may have expired. HEAD is sent as GET. Raise TimeoutError, aiohttp.ClientError,
        OSError or Full.
        """
        headers = _end_to_end(request.headers)
        headers.popall(SAMPLE_HEADER, None)
        headers[hdrs.HOST] = f"{HOST}:{to.port}"
        method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
        url = _url(to.port, request.rel_url.raw_path, request.rel_url.raw_query_string)
        timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000, ceil_threshold=3600)
        to.check()
        while True:
            connection = {"reused": False, "to": to}
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
                        body=await _content(response, load),
                    )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection["reused"]:
                    raise


async def _content(response: aiohttp.ClientResponse, load: Load) -> bytes:
    """Return a response's body; raise ClientPayloadError if it cannot be forwarded, or Full."""
    coding = response.headers.get(hdrs.TRANSFER_ENCODING, "chunked")
    if coding.strip().lower() != "chunked":
        raise aiohttp.ClientPayloadError(f"an answer with the coding `{coding[:80]}`")
    protocol = response.connection.protocol if response.connection else None
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER:
            raise aiohttp.ClientPayloadError("an answer too large")
        load.add(len(part))
        parts.append(part)
    # Without a length, closing the connection ends the response; a reset is an error.
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
    """Decode a header as UTF-8, else as Latin-1; aiohttp leaves surrogates for invalid bytes."""
    if header is None or header.isascii():
        return header
    raw = header.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _bytes(answer: web.Response) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b""


def _decoded(answer: web.Response) -> bytes:
    """Return the decompressed body; raise ClientPayloadError for an unknown charset or coding."""
    charset = (answer.charset or "utf-8").lower()
    if charset not in _CHARSETS:
        raise aiohttp.ClientPayloadError(f"an answer in the charset `{charset[:80]}`")
    content = _bytes(answer)
    codings = ",".join(answer.headers.getall(hdrs.CONTENT_ENCODING, ())).lower().split(",")
    for coding in reversed(codings):
        content = _unpacked(content, coding.strip())
    return content


def _unpacked(content: bytes, coding: str) -> bytes:
    if coding in ("", "identity"):
        return content
    try:
        if coding == "deflate":
            return _inflated(content, zlib.MAX_WBITS)
        if coding in ("gzip", "x-gzip"):
            return _inflated(content, 16 + zlib.MAX_WBITS)
    except zlib.error:
        pass
    raise aiohttp.ClientPayloadError(f"an answer that is not in the coding `{coding[:80]}`")


def _inflated(content: bytes, bits: int) -> bytes:
    """Decompress all members of the content; raise zlib.error if incomplete or too large."""
    parts, size = [], 0
    while content:
        unpacker = zlib.decompressobj(bits)
        parts.append(unpacker.decompress(content, MAX_ANSWER - size))
        size += len(parts[-1])
        if not unpacker.eof:
            raise zlib.error("cut off, or too large")
        content = unpacker.unused_data
    return b"".join(parts)


def _reason(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientConnectorError):
        return f"no connection: {failure.os_error.strerror or failure.os_error}"
    if isinstance(failure, aiohttp.ClientResponseError):
        return f"not an HTTP answer: {failure.message}"
    return str(failure) or type(failure).__name__


async def _note_reuse(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx["reused"] = True


async def _note_connection(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx["to"].check()
