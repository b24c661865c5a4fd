"""What serves on an endpoint: how a server is started, which one is live, the canary beside it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from ml.core import home, trees
from ml.core.errors import Exit, Problem, Refused
from ml.serving.scoring.manifest import ManifestError, verify

SLOTS = ("blue", "green")
BASELINE = "baseline"
MAX_EXCERPT = 300


def _in_home(path: object) -> Path:
    if not isinstance(path, str | Path):
        raise ValueError("a path")
    return home.home() / path


def _to_home(path: Path) -> str:
    for root in (home.home(), home.home().resolve()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


# What names a deployment, and does not change how it serves.
NAMES = frozenset(
    {"$schema", "name", "endpoint_name", "model", "description", "tags", "properties"}
)
# A path in a file of the home, relative to it where it lies inside, so that the home can be moved.
HomePath = Annotated[Path, PlainValidator(_in_home), PlainSerializer(_to_home)]


@dataclass(frozen=True)
class ServingCode:
    """The serving code, and the deployment's settings as deployment.yml has them.

    `code` is the project's folder, or a snapshot of it; `scoring_script` is relative to it.
    `collect` is the share of requests that the `data_collector` records, `environment` the content
    of the environment, a line each. `server` is the module that answers, "" for Azure ML's own
    server.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    code: HomePath
    scoring_script: str
    environment_variables: Mapping[str, str]
    collect: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    server: str = ""

    def digest_with(self, code: str) -> str:
        """The sha256 of how a model is served, in hex; `code` is that of its files."""
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
class Launch(ServingCode):
    """Everything needed to start a server, today or after a reboot.

    `version` is "" for a candidate that is not registered yet, `model_folder` the model's own
    folder. `serving` is the digest of the serving code.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    endpoint: str
    model: str
    version: str
    digest: str
    model_folder: HomePath
    serving: str = ""

    def is_as_released(self) -> bool:
        """Whether the code as it is now and the settings have the digest that was released."""
        try:
            code = trees.digest(trees.files(self.code)).removeprefix(trees.DIGEST_PREFIX)
        except OSError:
            return False
        return self.serving == self.digest_with(code)


def check_launch(launch: Launch) -> None:
    """Refuse a model that is not, to the bit, the registered one, or serving code that is not the
    released one; both are hashed again.
    """
    try:
        verify(launch.model_folder, launch.digest)
    except (ManifestError, OSError) as error:
        problem = Problem(
            "model-corrupt",
            str(error),
            f"{launch.model} {launch.version} with the digest {launch.digest}",
            "propose and apply a version with intact files; nothing was loaded",
        )
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None
    if not launch.is_as_released():
        problem = Problem(
            "serving-code-changed",
            f"the serving code of {launch.model} {launch.version} was changed: {launch.code}, or "
            f"its settings in the state of the endpoint `{launch.endpoint}`",
            f"code and settings with the digest {launch.serving or 'of a release'}",
            f"check who changed them, remove {launch.code} and that state, "
            "propose the version again and apply it",
        )
        raise Refused(problem, exit_code=Exit.GATE_SAID_NO)


@dataclass(frozen=True)
class Server:
    """A server that answered: its slot's folder, its process and its port on this machine.

    A deployment on Azure has a slot alone, ENDPOINT/NAME; its process and port are 0.
    """

    __pydantic_config__ = ConfigDict(strict=True)

    slot: Annotated[HomePath, AfterValidator(Path.resolve)]
    pid: Annotated[int, Field(gt=0)]
    port: Annotated[int, Field(gt=0)]


@dataclass(frozen=True)
class Answer:
    """A server's response: the HTTP status and the JSON body (text if it is not JSON).

    `deployment` is the one that responded behind a router, "" without a router; `by_model` is false
    if something before the model responded instead.
    """

    status: int
    body: object
    deployment: str = ""
    by_model: bool = True

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
    """A server beside the live one, with its share of the traffic and of copies, in percent.

    `baseline` is a second server of the live version, started at the same time and given as many
    requests and copies, to compare with. Above 50 % the remaining traffic is not enough for that,
    and it gets none. The canary of an `experiment` (ml.release.ab) has no baseline and needs no
    lease. `salt` says which routing keys lead to it; no caller knows it.
    """

    __pydantic_config__ = ConfigDict(strict=True)

    server: Server
    launch: Launch
    weight: int
    mirror: int = 0
    baseline: Server | None = None
    experiment: str = ""
    salt: str = field(default_factory=secrets.token_hex)


def idle_slot(live: Live | None) -> str:
    """The slot that is not live, for the next version."""
    occupied = live.server.slot.name if live else SLOTS[1]
    return next(name for name in SLOTS if name != occupied)


@dataclass(frozen=True)
class Live:
    """The live server of an endpoint, the launch to restart it, and the canary."""

    server: Server
    launch: Launch
    canary: Canary | None = None

    @property
    def beside(self) -> tuple[Server, ...]:
        """The servers of the canary."""
        if self.canary is None:
            return ()
        baseline = self.canary.baseline
        return (self.canary.server, *([baseline] if baseline else []))

    def in_slot(self, slot: str) -> tuple[Server, Launch]:
        """The server in the slot of that name and its launch; the live one for any other name."""
        if self.canary is not None:
            if slot == self.canary.server.slot.name:
                return self.canary.server, self.canary.launch
            if self.canary.baseline and slot == self.canary.baseline.slot.name:
                return self.canary.baseline, self.launch
        return self.server, self.launch

    @property
    def traffic(self) -> Mapping[str, int]:
        """Each server's share of the requests, in percent.

        The canary comes first, so that its sticky keys stay while its share grows.
        """
        weight = self.canary.weight if self.canary else 0
        # A baseline beside the canary gets as much, while that leaves something.
        weights = (weight, weight if weight <= 50 else 0)
        shares = {of.slot.name: share for of, share in zip(self.beside, weights, strict=False)}
        return {**shares, self.server.slot.name: 100 - sum(shares.values())}

    @property
    def mirror(self) -> Mapping[str, int]:
        """The share of the requests that each server of the canary gets a copy of, in percent."""
        if self.canary is None or not self.canary.mirror:
            return {}
        return {server.slot.name: self.canary.mirror for server in self.beside}
