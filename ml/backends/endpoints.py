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
# Fields of deployment.yml that do not change how it serves.
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


# A path that is stored relative to the home if it is inside, so that the home can be moved.
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
        """Return the deployment digest: the sha256 of code and settings, in hexadecimal.

        `code` is the digest of the code's files. The fields in `NAMES` are left out.
        """
        content = {
            "code": code,
            "scoring_script": self.scoring_script,
            "environment_variables": self.environment_variables,
            "collect": self.collect,
            "settings": {key: value for key, value in self.settings.items() if key not in NAMES},
            # Earlier releases did not record it: their digests must not change.
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
        """Return whether code and settings still have the released digest."""
        try:
            code = trees.digest(trees.files(self.code)).removeprefix(trees.DIGEST_PREFIX)
        except OSError:
            return False
        return self.deployment_digest == self.digest_with(code)


def check_deployment(deployment: ModelDeployment) -> None:
    """Hash the model and the serving code again.

    Raise UserError if the model is not the registered one (model-corrupt), or if the code is not
    the released one (serving-code-changed).
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
    """A running model server."""

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
        """The body's first `MAX_EXCERPT` characters on one line, for messages."""
        if isinstance(self.body, str):
            text, complete = repr(self.body[:MAX_EXCERPT])[1:-1], len(self.body) <= MAX_EXCERPT
            return text if complete else f"{text}…"
        text = repr(self.body)
        return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}…"


@dataclass(frozen=True)
class Canary:
    """The server of a new version, and its share of the live version's requests."""

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
    """Return the slot (blue or green) that is not live, for the next version."""
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
        """The canary's server and its baseline if there is one; () without a canary."""
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
        # The baseline gets as much as the canary, unless nothing would remain for the live server.
        weights = (weight, weight if weight <= 50 else 0)
        shares = {
            server.slot.name: share
            for server, share in zip(self.canary_servers, weights, strict=False)
        }
        return {**shares, self.server.slot.name: 100 - sum(shares.values())}

    @property
    def mirror(self) -> Mapping[str, int]:
        """The percentage of requests copied to each of the canary's servers; {} without copies."""
        if self.canary is None or not self.canary.mirror:
            return {}
        return {server.slot.name: self.canary.mirror for server in self.canary_servers}


# The number of warm-up requests before a candidate's latency is measured.
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
        """Renew a canary's lease, if the backend has leases, and return the request counts.

        They are in `tallies`, by deployment and then by kind (`Counters`).
        """

    def answers(self, since: int = 0) -> Sequence[Mapping[str, Any]]:
        """Return the recent responses with a number above `since`, the oldest first."""

    def sampling(self) -> AbstractContextManager[Callable[[str], None]]:
        """Open a connection; each call of the result sends a body as a sample request and waits.

        Raise OSError or HTTPException without a response, and UserError if the endpoint rejects the
        caller; the next call connects again.
        """


class Candidate(Protocol):
    """A temporary server on this machine, used only by the caller that started it."""

    def score(self, body: Mapping[str, object]) -> Answer:
        """Post one request; raise OSError or HTTPException without a response."""

    def measure(self, bodies: Sequence[Mapping[str, object]], requests: int) -> list[float]:
        """Return the milliseconds of each request; they are sent one by one, cycling the bodies.

        `WARM_UP` requests come first and do not count. Raise ValueError at the first status other
        than 200: the time of an error is not a latency.
        """

    def failure(self, code: str, what: str, expected: str = "", hint: str = "") -> UserError:
        """Return the error for a candidate that failed, with the end of its log."""


class Servers(Protocol):
    """The server processes of endpoints on this machine."""

    def names(self) -> Sequence[str]:
        """Return the endpoints that ever had a process, even if no version was ever live."""

    def stop(self, endpoint: str) -> bool:
        """Stop every process of the endpoint, keep its state; return whether one ran."""

    def log(self, slot: Path) -> Path:
        """Return the log file of the server in the slot."""


class Endpoints(Protocol):
    """Endpoints by name, each with up to three servers: blue and green, and a canary's baseline.

    `Server.slot` names a server within its endpoint. Every method raises UserError.
    """

    def name_of(self, model: str, environment: str) -> str:
        """Return the name of the model's endpoint in the environment, whether it exists or not."""

    def live(self, endpoint: str, *, as_released: bool = True) -> Live | None:
        """Return the live state, running or not; None if no version was ever live.

        If `as_released`, raise UserError if somebody changed it since the release.
        """

    def url(self, endpoint: str) -> str | None:
        """Return the URL that requests are posted to; None if nothing would respond."""

    def locked(self, endpoint: str) -> AbstractContextManager[None]:
        """Lock the endpoint in the block against other processes that start, stop or switch."""

    @property
    def reserve(self) -> Reserve | None:
        """Locks an endpoint against releases of other machines; None if no other can release.

        If another machine holds the lock, the callback receives its name, and the call waits.
        """

    @property
    def exposed(self) -> Callable[[str, str], Iterator[Mapping[str, Any]]] | None:
        """Yields a record per routing key that an experiment split; `id` is the key's ticket.

        Arguments: endpoint and experiment. None if callers choose the deployment themselves.
        """

    def check_deployment(self, deployment: ModelDeployment) -> None:
        """Raise UserError if the model or the serving code differs from the released one."""

    def ensure(self, endpoint: str, port: int | None = None) -> tuple[Live, bool]:
        """Start the live deployment if it is down; return it and whether anything was started."""

    def router(self, endpoint: str) -> Router | None:
        """Return the endpoint's router, if it runs."""

    def start_router(self, endpoint: str, port: int | None = None) -> Router:
        """Return the endpoint's router, started if necessary; the caller has the lock."""

    def begin(self, deployment: ModelDeployment, slot: str = "") -> Callable[[], Server]:
        """Start a server without traffic in the slot, and replace the slot's previous server.

        The default is the slot that is not live. The returned function waits until the server
        responds; if it raises, no process is left running.
        """

    def switch(self, endpoint: str, to: Live | None) -> None:
        """Set the endpoint's state to `to` atomically; None removes it.

        Requests are routed by the new state when this returns.
        """

    def drain(self, endpoint: str) -> None:
        """Wait until no request is in flight to a server that is not part of the state."""

    def stop_idle(self, endpoint: str) -> None:
        """Stop every server that is not part of the state; the caller has the lock."""

    def is_up(self, server: Server) -> bool:
        """Return whether the server is running."""

    def score(self, server: Server, body: Mapping[str, object]) -> Answer:
        """Post one request to this server; raise OSError or HTTPException without a response."""

    def ask(self, endpoint: str, body: Mapping[str, object]) -> Answer:
        """Post one request to the endpoint, as clients do; raise as `score`.

        `Answer.deployment` is the slot of the server that responded.
        """

    def collected(self, endpoint: str, since: float | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the recorded requests of deployments that have a `data_collector`.

        Each has `at` (epoch seconds), `id`, `request`, `answer`, `status` and the model's `digest`;
        an unreadable record is {}. Records from before `since` may be left out.
        """

    def nothing_served(self, endpoint: str) -> UserError:
        """Return the error for an endpoint that no model was promoted to."""

    def resident(self, server: Server) -> tuple[float, float] | None:
        """Return the latest memory usage of the server: (epoch seconds, bytes); None if unknown."""

    @property
    def p95_ms(self) -> Callable[[Server, float, float], float | None] | None:
        """Returns a server's p95 latency in ms between two times (epoch seconds), None if unknown.

        The serving host measures it. The property is None if the gate `latency` already measured
        on the serving machine.
        """

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> UserError:
        """Return the error for a server that failed, with the end of its log."""


def reserved(
    endpoints: Endpoints, name: str, waiting: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Return `Endpoints.reserve` of the endpoint; a no-op context manager if it is None."""
    return nullcontext() if endpoints.reserve is None else endpoints.reserve(name, waiting)
