"""One request through the router: picked, sent, timed, counted, answered."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from ml.serving.router import routes as routing
from ml.serving.router.collector import FOLDER, Collector
from ml.serving.router.routes import DEPLOYMENT_HEADER, KEY_HEADER, Routes, RoutesError
from ml.serving.router.tally import NO_ANSWER, TOO_LATE, TOO_MANY, Recent, Tally
from ml.serving.router.upstream import Headers, Upstream

# Requests that a deployment may have in hand; more are answered 429, as a managed endpoint does.
MOST_IN_FLIGHT = 512
MOST_MIRRORS_IN_FLIGHT = 32
SCORE = b"/score"
_DEPLOYMENT, _KEY = DEPLOYMENT_HEADER.encode(), KEY_HEADER.encode()
# RFC 9110, 7.6.1: headers about one connection; the length is written anew.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding te trailer upgrade content-length "
    b"expect".split()
)
Respond = Callable[[int, Headers, bytes], None]


class Switchboard:
    """The routes in force and what is known of each deployment.

    A deployment's error is answered as the error it is and counted as that deployment's: the
    request is not sent to another. A managed endpoint does not either; a retry would hide from the
    canary what a caller of the cloud would see, and would score a request twice.
    """

    def __init__(self, file: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.routes: Routes | None = None
        self.problem = ""
        self.generation = 0
        self.tallies: dict[str, Tally] = {}
        # Taken out of the routes with requests still under way, by name and port.
        self.draining: dict[tuple[str, int], Tally] = {}
        self.recent = Recent()
        self.collector = Collector(file.parent / FOLDER, loop)
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._upstreams: dict[str, Upstream] = {}
        self._draw = random.Random()
        self._renewed = loop.time()

    @property
    def leased(self) -> bool:
        """Whether somebody still watches what is not live."""
        lease = self.routes.lease_s if self.routes else None
        return lease is None or self.loop.time() - self._renewed <= lease

    @property
    def in_flight(self) -> int:
        """Requests that wait for an answer, mirrored ones too."""
        every = [*self.tallies.values(), *self.draining.values()]
        return sum(tally.in_flight for tally in every)

    def renew(self) -> None:
        """Somebody watches: the lease starts anew."""
        self._renewed = self.loop.time()

    def refresh(self) -> None:
        """Read the routes again if the file is another than the one read last.

        A file that cannot be followed changes nothing: the routes in force stand, `problem` says
        why. A file that is gone means that nothing is served. What was collected is written out.
        """
        self.collector.flush()
        try:
            state = self._file.stat()
            seen = (state.st_mtime_ns, state.st_ino)
        except FileNotFoundError:
            if self.routes is not None:
                self._put(None)
            self._seen, self.problem = None, ""
            return
        if seen == self._seen:
            return
        self._seen = seen
        try:
            found = routing.read(self._file)
        except RoutesError as error:
            self.problem = str(error)
            return
        self.problem = ""
        self.renew()
        if found != self.routes:
            self._put(found)

    def _put(self, routes: Routes | None) -> None:
        ports = dict(routes.ports) if routes else {}
        for name, upstream in list(self._upstreams.items()):
            if ports.get(name) != upstream.port:
                # No new request goes there; those under way end as they would.
                self._upstreams.pop(name).close()
                self.draining[name, upstream.port] = self.tallies.pop(name)
        for name, port in ports.items():
            if name not in self._upstreams:
                self._upstreams[name] = Upstream(port, self.loop)
                self.tallies[name] = Tally()
        self.draining = {key: tally for key, tally in self.draining.items() if tally.in_flight}
        self.routes = routes
        self.generation += 1

    def handle(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, respond: Respond
    ) -> None:
        """Route one request and call `respond` once."""
        routes = self.routes
        asked = key = None
        for name, value in headers:
            if name == _DEPLOYMENT:
                asked = value.decode("latin-1")
            elif name == _KEY:
                key = value.decode("latin-1")
        if routes is None:
            _say(respond, 404, "no deployment has a positive weight")
            return
        if asked is not None and asked not in routes.ports:
            _say(respond, 404, f"no deployment `{asked[:80]}`; one of: {', '.join(routes.ports)}")
            return
        chosen = asked or routes.pick(key, self._draw, self.leased)
        payload = _request(method, target, headers, body, routes.ports[chosen])
        scored = method == b"POST" and target.partition(b"?")[0] == SCORE
        if scored and asked is None and self._collects(routes, chosen, key):
            digest = routes.digests.get(chosen, "")
            respond = self.collector.around(respond, chosen, digest, body)
        self._send(chosen, payload, respond, scored, routes)
        if scored and asked is None and routes.mirror and self.leased:
            shadow = routes.shadow(chosen, self._draw)
            if shadow is not None:
                self._mirror(shadow, payload, routes)

    def _collects(self, routes: Routes, chosen: str, key: str | None) -> bool:
        """Whether this request is written down; nothing is while a canary is led, since much of its
        traffic is made of the project's samples.
        """
        if routes.lease_s is not None:
            return False
        if routes.experiment and key is not None:
            self.collector.expose(routes.experiment, routing.ticket(key, routes.salt), chosen)
        share = routes.collect.get(chosen, 0.0)
        return share > 0 and self._draw.random() < share

    def _send(
        self, name: str, payload: bytes, respond: Respond | None, scored: bool, routes: Routes
    ) -> None:
        tally = self.tallies[name]
        if tally.in_flight >= MOST_IN_FLIGHT:
            if scored:
                tally.add(TOO_MANY, 0.0, own=False)
            if respond:
                _say(respond, TOO_MANY, f"deployment `{name}` has too many pending requests", name)
            return
        recent = self.recent if scored and len(routes.ports) > 1 else None
        exchange = Exchange(name, payload, respond, tally, recent, scored, self.loop)
        exchange.start(self._upstreams[name], routes.timeout_ms / 1000)

    def _mirror(self, name: str, payload: bytes, routes: Routes) -> None:
        tally = self.tallies[name]
        if tally.in_flight >= MOST_MIRRORS_IN_FLIGHT:
            return  # a slow shadow is not let to pile up
        tally.mirrored += 1
        self._send(name, payload, None, True, routes)


class Exchange:
    """A request that was sent; ends once, with an answer, a failure or the timeout."""

    def __init__(
        self,
        name: str,
        payload: bytes,
        respond: Respond | None,
        tally: Tally,
        recent: Recent | None,
        scored: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.payload = payload
        self._name = name
        self._respond = respond
        self._tally = tally
        self._recent = recent
        self._scored = scored
        self._loop = loop

    def start(self, upstream: Upstream, timeout_s: float) -> None:
        """Send it; the clock starts."""
        self._tally.in_flight += 1
        self._begun = perf_counter()
        self._timer = self._loop.call_later(timeout_s, self._late, timeout_s)
        self._sending = upstream.send(self)

    def answered(self, status: int, headers: Headers, body: bytes) -> None:
        """The deployment's own answer."""
        self._end(status, body, own=True)
        if self._respond is not None:
            headers = [one for one in headers if one[0] not in _HOP_BY_HOP]
            headers.append((_DEPLOYMENT, self._name.encode()))
            self._respond(status, headers, body)

    def failed(self, why: str) -> None:
        """The deployment gave none."""
        self._end(NO_ANSWER, b"", own=False)
        if self._respond is not None:
            _say(self._respond, NO_ANSWER, f"deployment `{self._name}`: {why}", self._name)

    def _late(self, timeout_s: float) -> None:
        self._sending.give_up()
        self._end(TOO_LATE, b"", own=False)
        if self._respond is not None:
            text = f"deployment `{self._name}` took longer than {timeout_s:g} s"
            _say(self._respond, TOO_LATE, text, self._name)

    def _end(self, status: int, body: bytes, own: bool) -> None:
        self._timer.cancel()
        self._tally.in_flight -= 1
        if self._scored:
            self._tally.add(status, perf_counter() - self._begun, own)
        if self._recent is not None:
            self._recent.add(self._name, status, body)


def _request(method: bytes, target: bytes, headers: Headers, body: bytes, port: int) -> bytes:
    """The request as a deployment gets it: written anew, so that its length is beyond doubt.

    HEAD is asked as GET, and the body left out of the answer.
    """
    method = b"GET" if method == b"HEAD" else method
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % one for one in headers if one[0] not in _HOP_BY_HOP and one[0] != b"host"]
    lines.append(b"host: 127.0.0.1:%d" % port)
    if body or method in (b"POST", b"PUT", b"PATCH"):
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _say(respond: Respond, status: int, message: str, deployment: str | None = None) -> None:
    """Answer in the router's own words."""
    headers = [(b"content-type", b"application/json")]
    if deployment is not None:
        headers.append((_DEPLOYMENT, deployment.encode()))
    respond(status, headers, json.dumps({"error": {"message": message}}).encode())
