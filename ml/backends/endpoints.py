"""The endpoints of a backend: what serves, the canary beside it, and who gets which requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ml.core.errors import Refused

if TYPE_CHECKING:
    from ml.serving.endpoint import Live
    from ml.serving.server import Answer, Launch, Server


# The code of a refusal: the endpoint is not as the release left it.
CHANGED = "endpoint-changed"


class Router(Protocol):
    """What splits an endpoint's requests between its deployments, and counts them."""

    @property
    def url(self) -> str:
        """The address that requests are posted to."""
        ...

    def renew(self) -> Mapping[str, Any]:
        """What was counted (`tallies`: by deployment, then by kind of request).

        A canary's lease starts anew, where the backend has leases.
        """
        ...

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """The recorded answers after that number, the oldest first."""
        ...

    def sampling(self) -> AbstractContextManager[Callable[[str], None]]:
        """A connection: each call sends a body as one of the project's samples and waits for it.

        Raises OSError or HTTPException without an answer, and Refused where the endpoint refuses
        the caller; the next call connects again.
        """
        ...


class Endpoints(Protocol):
    """Endpoints by name, each with up to three servers: blue and green, and a canary's baseline.

    `Server.slot` names a server within its endpoint. Every method raises Refused.
    """

    def name_of(self, model: str, environment: str) -> str:
        """The endpoint that serves the model in the environment; nothing is asked of it."""
        ...

    def live(self, endpoint: str) -> Live | None:
        """What is live, whether or not it runs now; None when nothing ever was."""
        ...

    def served(self, endpoint: str) -> Live | None:
        """As `live`, for who only looks: also where somebody changed what a release left."""
        ...

    def url(self, endpoint: str) -> str | None:
        """The address that requests are posted to; None when they would not be answered."""
        ...

    def locked(self, endpoint: str) -> AbstractContextManager[None]:
        """Hold the endpoint: starting, stopping and switching happen one at a time."""
        ...

    def reserve(
        self, endpoint: str, waiting: Callable[[str], None]
    ) -> AbstractContextManager[object]:
        """Keep other machines from releasing to the endpoint meanwhile.

        Where another one does, `waiting` is told which, and this one waits.
        """
        ...

    def check_launch(self, launch: Launch) -> None:
        """Refuse a model or serving code that is not, to the bit, what was released."""
        ...

    def ensure(self, endpoint: str, port: int | None = None) -> tuple[Live, bool]:
        """What is live, running; and whether anything had to be started."""
        ...

    def router(self, endpoint: str) -> Router | None:
        """The endpoint's router, if it runs."""
        ...

    def start_router(self, endpoint: str, port: int | None = None) -> Router:
        """The endpoint's router, running; the caller holds the endpoint."""
        ...

    def other_slot(self, endpoint: str) -> Path:
        """The slot that is not live, for the next version."""
        ...

    def begin(self, slot: Path, launch: Launch) -> Callable[[], Server]:
        """Start a server in the slot, in place of what was there; it gets no requests yet.

        The returned function waits until it answers, and leaves nothing running when it raises.
        """
        ...

    def switch(self, endpoint: str, to: Live | None) -> None:
        """Make `to` the state, in one step; requests follow it when this returns."""
        ...

    def drain(self, endpoint: str) -> None:
        """Wait until no request is in flight to a server that the state does not name."""
        ...

    def stop_idle(self, endpoint: str) -> None:
        """Stop every server that has no part in the state; the caller holds the endpoint."""
        ...

    def is_up(self, server: Server) -> bool:
        """Whether the server still runs."""
        ...

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        """Post one request to this server; OSError or HTTPException without an answer."""
        ...

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """Post one request to the endpoint, as callers do; raises as `score`.

        `Answer.deployment` is the slot of the server that answered.
        """
        ...

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        """What was recorded of requests, where a deployment has a `data_collector`.

        Each has `at` (epoch seconds), `id`, `request`, `answer`, `status` and the model's `digest`;
        {} for what cannot be read. Those before `since` may be left out.
        """
        ...

    def nothing_served(self, endpoint: str) -> Refused:
        """The error for an endpoint that no model was promoted to."""
        ...

    def resident(self, server: Server) -> tuple[float, float] | None:
        """The latest measurement of the server's memory: when (epoch seconds), and the bytes.

        None when that is not known now.
        """
        ...

    def p95_ms(self, server: Server, since: float, until: float) -> float | None:
        """The 95th percentile of the server's latency between these times (epoch seconds), in ms.

        As it is measured where the server runs; None while that is not known.
        """
        ...

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> Refused:
        """The error for a server that failed, with the end of its log."""
        ...
