"""The endpoints of a backend: the live deployment, the canary, and the traffic split."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from ml.core import home, trees
from ml.core.errors import Exit, Problem, UserError
from ml.serving.scoring.manifest import ManifestError, verify

SLOTS = ("blue", "green")
BASELINE = "baseline"
MAX_EXCERPT = 300
# Fields that name a deployment without changing how it serves.
NAMES = frozenset(
    {"$schema", "name", "endpoint_name", "model", "description", "tags", "properties"}
)


def _in_home(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise ValueError("a path")
    return home.home() / path


def _to_home(path: Path) -> str:
    for root in (home.home(), home.home().resolve()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


# A path in a file of the home, relative to it where it lies inside, so that the home can be moved.
HomePath = Annotated[Path, PlainValidator(_in_home), PlainSerializer(_to_home)]


@dataclass(frozen=True)
class DeploymentSpec:
    """The serving code and the settings of deployment.yml, without a model version."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    # The project's folder, or a snapshot of it that is named by the digest of its content.
    code: HomePath
    # A path relative to `code`.
    scoring_script: str
    environment_variables: Mapping[str, str]
    # The share of requests that the `data_collector` records.
    collect: float = 0.0
    # The content of deployment.yml.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The content of the environment, one item per line.
    environment: tuple[str, ...] = ()
    # The server module; "" for Azure ML's inference server.
    server: str = ""

    @property
    def endpoint_name(self) -> str:
        """The endpoint that it is deployed to. The model has the same name."""
        return str(self.settings["endpoint_name"])

    @property
    def instance_type(self) -> str:
        """The machine size that Azure ML serves it on; "" if deployment.yml names none."""
        return str(self.settings.get("instance_type") or "")

    @property
    def snapshot_digest(self) -> str:
        """The deployment digest, if `code` is a snapshot."""
        return self.digest_with(self.code.name)

    def digest_with(self, code: str) -> str:
        """Return the deployment digest: the sha256 of code and settings, in hex.

        `code` is the digest of the code's files. Names of the deployment do not count.
        """
        content = {
            "code": code,
            "scoring_script": self.scoring_script,
            "environment_variables": self.environment_variables,
            "collect": self.collect,
            "settings": {key: value for key, value in self.settings.items() if key not in NAMES},
            # Without one, so is a release from before it was recorded.
            **({"environment": self.environment} if self.environment else {}),
            **({"server": self.server} if self.server else {}),
        }
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ModelDeployment(DeploymentSpec):
    """A deployment spec with a model version: everything needed to start a server."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    endpoint: str
    model: str
    # "" for a candidate that is not registered yet.
    version: str
    # The digest of the model folder.
    digest: str
    model_folder: HomePath
    # The digest of the code and settings that were released; "" if there was no release.
    deployment_digest: str = ""

    def is_as_released(self) -> bool:
        """Return whether the present code and settings have the digest that was released."""
        try:
            code = trees.digest(trees.files(self.code)).removeprefix(trees.DIGEST_PREFIX)
        except OSError:
            return False
        return self.deployment_digest == self.digest_with(code)


def check_deployment(deployment: ModelDeployment) -> None:
    """Refuse a model that is not, to the bit, the registered one, or serving code that is not the
    released one; both are hashed again.
    """
    try:
        verify(deployment.model_folder, deployment.digest)
    except (ManifestError, OSError) as error:
        problem = Problem(
            "model-corrupt",
            str(error),
            f"{deployment.model} {deployment.version} with the digest {deployment.digest}",
            "propose and apply a version with intact files; nothing was loaded",
        )
        raise UserError(problem, exit_code=Exit.RUN_FAILED) from None
    if not deployment.is_as_released():
        problem = Problem(
            "serving-code-changed",
            f"the serving code of {deployment.model} {deployment.version} was changed: "
            f"{deployment.code}, or its settings in the state of the endpoint "
            f"`{deployment.endpoint}`",
            f"code and settings with the digest {deployment.deployment_digest or 'of a release'}",
            f"check who changed them, remove {deployment.code} and that state, "
            "propose the version again and apply it",
        )
        raise UserError(problem, exit_code=Exit.GATE_SAID_NO)


@dataclass(frozen=True)
class Server:
    """A server that answered."""

    __pydantic_config__ = ConfigDict(strict=True)

    # Its folder on this machine; ENDPOINT/NAME on Azure.
    slot: Annotated[HomePath, AfterValidator(Path.resolve)]
    pid: Annotated[int, Field(gt=0)]  # 0 on Azure
    port: Annotated[int, Field(gt=0)]  # 0 on Azure


@dataclass(frozen=True)
class Answer:
    """A server's response."""

    status: int
    body: object  # parsed JSON, or the text if it is not JSON
    deployment: str = ""  # that responded; "" without a router
    by_model: bool = True  # False: something before the model responded

    @property
    def excerpt(self) -> str:
        """The beginning of the body on one line, for a message."""
        if isinstance(self.body, str):
            text, complete = repr(self.body[:MAX_EXCERPT])[1:-1], len(self.body) <= MAX_EXCERPT
            return text if complete else f"{text}…"
        text = repr(self.body)
        return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…"


@dataclass(frozen=True)
class Canary:
    """A server beside the live one, and its share of the requests."""

    __pydantic_config__ = ConfigDict(strict=True)

    server: Server
    deployment: ModelDeployment
    weight: int  # percentage of the requests
    mirror: int = 0  # percentage of the requests that are copied to it
    # A second server of the live version for comparison, started at the same time; gets as many
    # requests and copies, but no requests if `weight` is above 50.
    baseline: Server | None = None
    # Name of the A/B experiment (`ml.release.ab`), which has no baseline and no lease; "" for a
    # release.
    experiment: str = ""
    # Secret that decides which routing keys lead to the canary.
    salt: str = field(default_factory=secrets.token_hex)


def idle_slot(live: Live | None) -> str:
    """Return the slot that is not live, for the next version."""
    occupied = live.server.slot.name if live else SLOTS[1]
    return next(name for name in SLOTS if name != occupied)


@dataclass(frozen=True)
class Live:
    """The live server of an endpoint, and the canary beside it."""

    server: Server
    deployment: ModelDeployment  # to restart the live server
    canary: Canary | None = None

    @property
    def canary_servers(self) -> tuple[Server, ...]:
        """Green and its baseline, if there is a canary."""
        if self.canary is None:
            return ()
        baseline = self.canary.baseline
        return (self.canary.server, *([baseline] if baseline else []))

    def in_slot(self, slot: str) -> tuple[Server, ModelDeployment]:
        """Return the server in the slot and its deployment; the live ones for any other name."""
        if self.canary is not None:
            if slot == self.canary.server.slot.name:
                return self.canary.server, self.canary.deployment
            if self.canary.baseline and slot == self.canary.baseline.slot.name:
                return self.canary.baseline, self.deployment
        return self.server, self.deployment

    @property
    def traffic(self) -> Mapping[str, int]:
        """Each server's share of the requests, in percent.

        The canary comes first, so that its sticky keys stay while its share grows.
        """
        weight = self.canary.weight if self.canary else 0
        # The baseline gets the canary's share, as long as blue keeps some.
        weights = (weight, weight if weight <= 50 else 0)
        shares = {
            server.slot.name: share
            for server, share in zip(self.canary_servers, weights, strict=False)
        }
        return {**shares, self.server.slot.name: 100 - sum(shares.values())}

    @property
    def mirror(self) -> Mapping[str, int]:
        """The share of the requests that each server of the canary gets a copy of, in percent."""
        if self.canary is None or not self.canary.mirror:
            return {}
        return {server.slot.name: self.canary.mirror for server in self.canary_servers}


# The requests that a candidate answers before its latency is measured.
WARM_UP = 20
# The problem code for an endpoint that someone else changed since the last release.
CHANGED = "endpoint-changed"


Reserve = Callable[[str, Callable[[str], None]], AbstractContextManager[object]]


class Router(Protocol):
    """Splits an endpoint's requests between its deployments, and counts them."""

    @property
    def url(self) -> str:
        """The address that requests are posted to."""

    def renew(self) -> Mapping[str, Any]:
        """Renew a canary's lease, if the backend has leases, and return the counts.

        They are in `tallies`: by deployment, then by kind of request.
        """

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the recorded answers after that number, the oldest first."""

    def sampling(self) -> AbstractContextManager[Callable[[str], None]]:
        """Open a connection; each call of the result sends a body as a sample request and waits.

        Raise OSError or HTTPException without a response, and UserError if the endpoint rejects the
        caller; the next call connects again.
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

    def failure(self, code: str, what: str, expected: str = "", hint: str = "") -> UserError:
        """Return the error for a candidate that failed, with the end of its log."""


class Servers(Protocol):
    """The servers of endpoints, where they are processes of this machine."""

    def names(self) -> Sequence[str]:
        """Return the endpoints that ever had a process, even if no version was ever live."""

    def stop(self, endpoint: str) -> bool:
        """Stop every process of the endpoint, and keep its state; whether one ran."""

    def log(self, slot: Path) -> Path:
        """Return the log file of the server in the slot."""


class Endpoints(Protocol):
    """Endpoints by name, each with up to three servers: blue and green, and a canary's baseline.

    `Server.slot` names a server within its endpoint. Every method raises UserError.
    """

    def name_of(self, model: str, environment: str) -> str:
        """Return the name of the model's endpoint in the environment, without a request to it."""

    def live(self, endpoint: str, *, as_released: bool = True) -> Live | None:
        """Return the live state, running or not; None if no version was ever live.

        With `as_released=False` the state is returned even if somebody changed it.
        """

    def url(self, endpoint: str) -> str | None:
        """Return the address that requests are posted to; None when they would not be answered."""

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
        """Yields the routing keys that an endpoint has split for an experiment, as tickets in `id`.

        None if callers name the deployment themselves.
        """

    def check_deployment(self, deployment: ModelDeployment) -> None:
        """Refuse a model or serving code that is not, to the bit, what was released."""

    def ensure(self, endpoint: str, port: int | None = None) -> tuple[Live, bool]:
        """Start the live deployment if it is down; return it and whether anything was started."""

    def router(self, endpoint: str) -> Router | None:
        """Return the endpoint's router, if it runs."""

    def start_router(self, endpoint: str, port: int | None = None) -> Router:
        """Return the endpoint's router, running; the caller holds the endpoint."""

    def begin(self, deployment: ModelDeployment, slot: str = "") -> Callable[[], Server]:
        """Start a server without traffic in the slot, and replace the one that was there.

        The default slot is the one that is not live. The returned function waits until the server
        answers; if it raises, no process is left running.
        """

    def switch(self, endpoint: str, to: Live | None) -> None:
        """Make `to` the state, in one step; requests follow it when this returns."""

    def drain(self, endpoint: str) -> None:
        """Wait until no request is in flight to a server that the state does not name."""

    def stop_idle(self, endpoint: str) -> None:
        """Stop every server that has no part in the state; the caller holds the endpoint."""

    def is_up(self, server: Server) -> bool:
        """Return whether the server is running."""

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        """Post one request to this server; OSError or HTTPException without an answer."""

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """Post one request to the endpoint, as callers do; raises as `score`.

        `Answer.deployment` is the slot of the server that answered.
        """

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the recorded requests of deployments that have a `data_collector`.

        Each has `at` (epoch seconds), `id`, `request`, `answer`, `status` and the model's `digest`;
        a record that cannot be read is {}. Those from before `since` may be left out.
        """

    def nothing_served(self, endpoint: str) -> UserError:
        """Return the error for an endpoint that no model was promoted to."""

    def resident(self, server: Server) -> tuple[float, float] | None:
        """Return the latest measurement of the server's memory: when (epoch seconds), and the
        bytes.

        None when that is not known now.
        """

    @property
    def p95_ms(self) -> Callable[[Server, float, float], float | None] | None:
        """A function that returns a server's p95 latency in ms between two times (epoch seconds).

        The server's host measures the latency; the function returns None while it is unknown. The
        property is None if the gate `latency` already measured on the machine that serves.
        """

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> UserError:
        """Return the error for a server that failed, with the end of its log."""


def reserved(
    endpoints: Endpoints, name: str, waiting: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Reserve the endpoint against other machines, if the backend has any."""
    return nullcontext() if endpoints.reserve is None else endpoints.reserve(name, waiting)
