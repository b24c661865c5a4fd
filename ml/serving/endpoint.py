"""An endpoint of this machine: two slots, blue and green, and a file that says which is live."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ml.backends.local import home
from ml.serving import files, server, slots
from ml.serving.scoring.manifest import ManifestError, verify
from ml.serving.server import Launch, Server
from ml.specs.problems import Exit, Problem, Refused

SLOTS = ("blue", "green")


@dataclass(frozen=True)
class Live:
    """What answers for an endpoint: the server as it was started, and how to start it again."""

    server: Server
    launch: Launch


def folder(endpoint: str) -> Path:
    """`endpoints/<endpoint>/` of the local home: the state, the lock, and a folder a slot.

    Resolved, since servers are found by it whichever way the home was spelled.
    """
    return home.home().resolve() / "endpoints" / endpoint


def every() -> Sequence[str]:
    """The endpoints that something was ever served on, by name."""
    return sorted(path.parent.name for path in (home.home() / "endpoints").glob("*/live.json"))


def folders() -> Sequence[str]:
    """The endpoints that have a folder: a first candidate is measured before anything is live."""
    return sorted(path.name for path in (home.home() / "endpoints").glob("*") if path.is_dir())


def live(endpoint: str) -> Live | None:
    """What is live by the state file, whether or not it runs now; None when nothing ever was.

    Raises Refused when the file cannot be read.
    """
    path = folder(endpoint) / "live.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        launch = document["launch"]
        paths = {name: home.home() / launch[name] for name in ("code", "model_folder")}
        return Live(
            Server(folder(endpoint) / document["slot"], document["pid"], document["port"]),
            Launch(**{**launch, **paths}),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        problem = Problem(
            "endpoint-state",
            f"{path} cannot be read: {error}",
            "the state that a release wrote",
            f"remove it and apply again: ml release apply PROJECT --to local (endpoint {endpoint})",
        )
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def switch(endpoint: str, to: Live | None) -> None:
    """Make `to` live, in one step; None says that nothing is."""
    path = folder(endpoint) / "live.json"
    if to is None:
        path.unlink(missing_ok=True)
        return
    launch, model = asdict(to.launch), to.launch.model_folder
    document = {
        "slot": to.server.slot.name,
        "pid": to.server.pid,
        "port": to.server.port,
        "launch": {**launch, "code": _stored(to.launch.code), "model_folder": _stored(model)},
    }
    files.replace(path, json.dumps(document, indent=1) + "\n")


def other_slot(endpoint: str) -> Path:
    """The slot that is not live, for the next version."""
    current = live(endpoint)
    taken = current.server.slot.name if current else SLOTS[1]
    return folder(endpoint) / next(name for name in SLOTS if name != taken)


def locked(endpoint: str) -> AbstractContextManager[None]:
    """Hold the endpoint: starting, stopping and switching happen one at a time."""
    return files.locked(folder(endpoint) / "lock")


def ensure(endpoint: str, port: int | None = None) -> tuple[Live, bool]:
    """What is live, running; and whether it had to be started (after a reboot, or on another port).

    Raises Refused: nothing-served, model-corrupt, and what `server.start` raises.
    """
    current = live(endpoint)
    if current is not None and _serves(current, port):
        return current, False
    with locked(endpoint):
        current = live(endpoint)
        if current is None:
            raise nothing_served(endpoint)
        if _serves(current, port):
            return current, False
        check_model(current.launch)
        # One that answers goes on answering until the one on the other port does.
        up = server.is_up(current.server)
        slot = other_slot(endpoint) if up else current.server.slot
        moved = replace(current, server=server.start(slot, current.launch, port))
        switch(endpoint, moved)
        stop_idle(endpoint)
        return moved, True


def stop(endpoint: str) -> bool:
    """Stop every server of the endpoint; what is declared stays declared. Whether one ran."""
    with locked(endpoint):
        stopped = [slots.stop(path) for path in folder(endpoint).iterdir() if path.is_dir()]
        return any(stopped)


def stop_idle(endpoint: str) -> None:
    """Stop every server of the endpoint but the live one; the caller holds the endpoint."""
    current = live(endpoint)
    for path in folder(endpoint).iterdir():
        if path.is_dir() and (current is None or path != current.server.slot):
            slots.stop(path)


def check_model(launch: Launch) -> None:
    """Refuse a model folder that is not, to the bit, the one that was registered."""
    try:
        verify(launch.model_folder, launch.digest)
    except (ManifestError, OSError) as error:
        problem = Problem(
            "model-corrupt",
            str(error),
            f"{launch.model} {launch.version} with the digest {launch.digest}",
            "nothing was loaded; propose and apply a version whose files are sound",
        )
        raise Refused(problem, exit_code=Exit.RUN_FAILED) from None


def nothing_served(endpoint: str) -> Refused:
    """What a person is told who asks an endpoint that nothing was promoted to."""
    return Refused(
        Problem(
            "nothing-served",
            f"no model has been promoted to the endpoint `{endpoint}` on this machine",
            f"one of: {', '.join(every())}" if every() else "a promoted model",
            "`make demo` goes the whole way; step by step: ml run JOB, ml release propose PROJECT, "
            "ml release apply PROJECT --approved-by NAME",
        )
    )


def _stored(path: Path) -> str:
    """Relative to the home where it lies inside, so that a home can be moved."""
    inside = path.is_relative_to(home.home())
    return str(path.relative_to(home.home()) if inside else path)


def _serves(current: Live, port: int | None) -> bool:
    return port in (None, current.server.port) and server.is_up(current.server)
