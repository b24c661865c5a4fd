"""The endpoints of a backend: what serves, the canary beside it, and who gets which requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ml.core.errors import Refused

if TYPE_CHECKING:
    from ml.backends.deployments import Answer, Launch, Live, Server

# The requests that a candidate answers before its latency is measured.
WARM_UP = 20
# The code of a refusal: the endpoint is not as the release left it.
CHANGED = "endpoint-changed"


Reserve = Callable[[str, Callable[[str], None]], AbstractContextManager[object]]


class Router(Protocol):
    """What splits an endpoint's requests between its deployments, and counts them."""

    @property
    def url(self) -> str:
        """The address that requests are posted to."""

    def renew(self) -> Mapping[str, Any]:
        """Renew a canary's lease, if the backend has leases, and return the counts.

        They are in `tallies`: by deployment, then by kind of request.
        """

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """The recorded answers after that number, the oldest first."""

    def sampling(self) -> AbstractContextManager[Callable[[str], None]]:
        """A connection: each call sends a body as one of the project's samples and waits for it.

        Raises OSError or HTTPException without an answer, and Refused where the endpoint refuses
        the caller; the next call connects again.
        """


class Candidate(Protocol):
    """A server on this machine that only its starter sends requests to."""

    def score(self, body: Mapping[str, object]) -> Answer:
        """Post one request; OSError or HTTPException without an answer."""

    def measure(self, bodies: Sequence[Mapping[str, object]], requests: int) -> list[float]:
        """Return the milliseconds of each request; they are sent one by one, cycling the bodies.

        `WARM_UP` requests come first and do not count. Raises ValueError at the first response
        other than 200: the time of an error is not a latency.
        """

    def failure(self, code: str, what: str, expected: str = "", hint: str = "") -> Refused:
        """The error for a candidate that failed, with the end of its log."""


class Servers(Protocol):
    """The servers of endpoints, where they are processes of this machine."""

    def names(self) -> Sequence[str]:
        """The endpoints that ever had a process: a first candidate comes before what is live."""

    def stop(self, endpoint: str) -> bool:
        """Stop every process of the endpoint, and keep its state; whether one ran."""

    def log(self, slot: Path) -> Path:
        """The output of the server in the slot."""


class Endpoints(Protocol):
    """Endpoints by name, each with up to three servers: blue and green, and a canary's baseline.

    `Server.slot` names a server within its endpoint. Every method raises Refused.
    """

    def name_of(self, model: str, environment: str) -> str:
        """The endpoint that serves the model in the environment; nothing is asked of it."""

    def live(self, endpoint: str, *, as_released: bool = True) -> Live | None:
        """Return what is live, running or not; None if nothing ever was.

        With `as_released=False` the state is returned even if somebody changed it.
        """

    def url(self, endpoint: str) -> str | None:
        """The address that requests are posted to; None when they would not be answered."""

    def locked(self, endpoint: str) -> AbstractContextManager[None]:
        """Hold the endpoint: starting, stopping and switching happen one at a time."""

    @property
    def reserve(self) -> Reserve | None:
        """Return the lock that keeps other machines from releasing to the named endpoint.

        If another machine holds it, the function receives which one, and this machine waits. None
        if no other machine can release.
        """

    @property
    def exposed(self) -> Callable[[str, str], Iterator[Mapping[str, Any]]] | None:
        """The routing keys that an endpoint has split for an experiment, `id` the ticket of each.

        None where callers name the deployment themselves.
        """

    def check_launch(self, launch: Launch) -> None:
        """Refuse a model or serving code that is not, to the bit, what was released."""

    def ensure(self, endpoint: str, port: int | None = None) -> tuple[Live, bool]:
        """What is live, running; and whether anything had to be started."""

    def router(self, endpoint: str) -> Router | None:
        """The endpoint's router, if it runs."""

    def start_router(self, endpoint: str, port: int | None = None) -> Router:
        """The endpoint's router, running; the caller holds the endpoint."""

    def begin(self, launch: Launch, slot: str = "") -> Callable[[], Server]:
        """Start a server in the slot of that name, in place of what was there; it gets no requests.

        Without a name it is the slot that is not live, for the next version. The returned function
        waits until the server answers, and leaves nothing running when it raises.
        """

    def switch(self, endpoint: str, to: Live | None) -> None:
        """Make `to` the state, in one step; requests follow it when this returns."""

    def drain(self, endpoint: str) -> None:
        """Wait until no request is in flight to a server that the state does not name."""

    def stop_idle(self, endpoint: str) -> None:
        """Stop every server that has no part in the state; the caller holds the endpoint."""

    def is_up(self, server: Server) -> bool:
        """Whether the server still runs."""

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        """Post one request to this server; OSError or HTTPException without an answer."""

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """Post one request to the endpoint, as callers do; raises as `score`.

        `Answer.deployment` is the slot of the server that answered.
        """

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        """What was recorded of requests, where a deployment has a `data_collector`.

        Each has `at` (epoch seconds), `id`, `request`, `answer`, `status` and the model's `digest`;
        {} for what cannot be read. Those before `since` may be left out.
        """

    def nothing_served(self, endpoint: str) -> Refused:
        """The error for an endpoint that no model was promoted to."""

    def resident(self, server: Server) -> tuple[float, float] | None:
        """The latest measurement of the server's memory: when (epoch seconds), and the bytes.

        None when that is not known now.
        """

    @property
    def p95_ms(self) -> Callable[[Server, float, float], float | None] | None:
        """The 95th percentile of a server's latency between two times (epoch seconds), in ms.

        As it is measured where the server runs, None while that is not known; None where evidence
        is measured on the machine that serves.
        """

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> Refused:
        """The error for a server that failed, with the end of its log."""


def reserved(
    endpoints: Endpoints, name: str, waiting: Callable[[str], None]
) -> AbstractContextManager[object]:
    """The endpoint, kept from other machines where there are any."""
    return nullcontext() if endpoints.reserve is None else endpoints.reserve(name, waiting)
