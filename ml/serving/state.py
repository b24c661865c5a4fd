"""The state of an endpoint: what is live, what is on trial beside it, and who gets which requests.

As a document it also holds the routes that the router follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ml.core import home
from ml.serving.router.routes import TIMEOUT_MS
from ml.serving.server import Launch, Server

# A canary that nobody has watched for this long gets no more traffic; the live slot gets all.
LEASE_S = 15.0
_TEXTS = ("endpoint", "model", "version", "digest", "scoring_script", "code", "model_folder")
# What a launch consists of in the file; what came later may be missing there.
_LAUNCH = {**dict.fromkeys(_TEXTS, str), "environment_variables": dict}


@dataclass(frozen=True)
class Canary:
    """A server beside the live one, with its share of the traffic and of copies, in percent.

    `baseline` is what it is compared with: a second server of the live version, started as late and
    given as many requests and copies. Above half of the traffic there is not as much left: it gets
    none. Of an `experiment` (ml.release.ab) there is none, and nobody has to watch it; `salt` says
    which keys are B's.
    """

    server: Server
    launch: Launch
    weight: int
    mirror: int = 0
    baseline: Server | None = None
    experiment: str = ""
    salt: str = ""


@dataclass(frozen=True)
class Live:
    """What answers for an endpoint: the server as it was started, and how to start it again."""

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

    def launched(self, slot: str) -> tuple[Server, Launch]:
        """The server in the slot of that name and its launch; the live one for any other name."""
        if self.canary is not None:
            if slot == self.canary.server.slot.name:
                return self.canary.server, self.canary.launch
            if self.canary.baseline and slot == self.canary.baseline.slot.name:
                return self.canary.baseline, self.launch
        return self.server, self.launch


def parsed(folder: Path, document: Mapping[str, Any]) -> Live:
    """The state of the endpoint in the folder; raises KeyError, TypeError or ValueError."""
    found = Live(_server(folder, document), _launch(document))
    if (beside := document.get("canary")) is None:
        return found
    baseline = beside.get("baseline")
    canary = Canary(
        _server(folder, beside),
        _launch(beside),
        int(beside["weight"]),
        int(beside["mirror"]),
        _server(folder, baseline) if baseline else None,
        str(beside.get("experiment", "")),
        str(beside.get("salt", "")),
    )
    return Live(found.server, found.launch, canary)


def document(state: Live) -> Mapping[str, object]:
    """The state as JSON takes it."""
    beside = state.canary
    return {
        **_stored(state.server, state.launch),
        "canary": beside
        and {
            **_stored(beside.server, beside.launch),
            "weight": beside.weight,
            "mirror": beside.mirror,
            "baseline": beside.baseline and _place(beside.baseline),
            "experiment": beside.experiment,
            "salt": beside.salt,
        },
        "routes": _routes(state),
    }


def _server(folder: Path, document: Mapping[str, Any]) -> Server:
    slot, pid, port = (document[name] for name in ("slot", "pid", "port"))
    if not isinstance(slot, str) or not all(type(one) is int and one > 0 for one in (pid, port)):
        raise TypeError(f"slot {slot!r}, pid {pid!r}, port {port!r}")
    return Server(folder / slot, pid, port)


def _launch(document: Mapping[str, Any]) -> Launch:
    launch = document["launch"]
    for name, kind in _LAUNCH.items():
        if not isinstance(launch[name], kind):
            raise TypeError(f"{name} {launch[name]!r}")
    paths = {name: home.home() / launch[name] for name in ("code", "model_folder")}
    return Launch(**{**launch, **paths})


def _place(started: Server) -> dict[str, object]:
    return {"slot": started.slot.name, "pid": started.pid, "port": started.port}


def _stored(started: Server, launch: Launch) -> dict[str, object]:
    paths = {"code": _inside(launch.code), "model_folder": _inside(launch.model_folder)}
    return {**_place(started), "launch": {**asdict(launch), **paths}}


def _routes(state: Live) -> Mapping[str, object]:
    """What the router follows: the canary first, so that its sticky keys stay while it grows."""
    beside = state.canary
    weights: dict[str, int] = {}
    mirror: dict[str, int] = {}
    if beside is not None:
        weights[beside.server.slot.name] = beside.weight
        if beside.baseline is not None:
            weights[beside.baseline.slot.name] = beside.weight if beside.weight <= 50 else 0
        mirror = dict.fromkeys(weights, beside.mirror) if beside.mirror else {}
    timeout_ms = int(state.launch.environment_variables.get("SCORING_TIMEOUT_MS", TIMEOUT_MS))
    name = state.server.slot.name
    servers = (*state.beside, state.server)
    launches = {one.slot.name: state.launched(one.slot.name)[1] for one in servers}
    return {
        "live": name,
        "ports": {one.slot.name: one.port for one in servers},
        "traffic": {**weights, name: 100 - sum(weights.values())},
        "mirror": mirror,
        "timeout_ms": timeout_ms,
        "lease_s": LEASE_S if beside and not beside.experiment else None,
        "experiment": beside.experiment if beside else "",
        "salt": beside.salt if beside else "",
        "collect": {slot: launch.collect for slot, launch in launches.items()},
        "digests": {slot: launch.digest for slot, launch in launches.items()},
    }


def _inside(path: Path) -> str:
    """Relative to the home where it lies inside, so that a home can be moved."""
    inside = path.is_relative_to(home.home())
    return str(path.relative_to(home.home()) if inside else path)
