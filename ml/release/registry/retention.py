"""Retention: files and runs of registered, declared and serving versions, kept by cleaning."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from ml.backends.registry import Registry, Version, model_folder
from ml.backends.storage import Needed
from ml.core import home
from ml.core.errors import Exit, Problem, Refused
from ml.release.declaration import desired_state
from ml.release.registry.models import EVIDENCE_FILE
from ml.serving import endpoint


def find_in_use(registry: Registry) -> Needed:
    """The files and runs in use by releases, each with the reason.

    Raises Refused when they cannot be determined; then nothing is safe to remove.
    """
    paths: dict[Path, str] = {}
    runs: dict[str, str] = {}
    _demand_registry(registry)
    for version in registry.versions():
        why = f"{version.model} {version.version} is registered"
        lineage = _lineage(version)
        snapshot = str(lineage.get("code_snapshot") or "").removeprefix("sha256:")
        for path in (version.folder, version.evidence_folder, home.snapshots() / snapshot):
            if path not in (home.models(), home.snapshots()):
                paths[path] = why
        for run in (
            version.run,
            *(lineage.get(f"{kind}run") for kind in ("", "parent_", "evaluation_")),
        ):
            if run:
                runs[str(run)] = why
    for name, source in registry.sources():
        if Path(source).is_absolute():
            paths[Path(source)] = f"{name} is registered"
    for project in desired_state.projects():
        for environment in desired_state.ENVIRONMENTS:
            declared = desired_state.read(project, environment)
            if declared and declared.digest:
                paths[model_folder(declared.digest)] = f"{project} declares it in {environment}"
    for name in endpoint.names():
        live = endpoint.live(name)
        if live:
            for launch in (live.launch, *([live.canary.launch] if live.canary else [])):
                for path in (launch.model_folder, launch.code):
                    paths[path] = f"the endpoint {name} serves from it"
    for project in _being_released():
        for path in (home.models(), home.snapshots()):
            paths[path] = f"{project} is being released now"
    return Needed(paths, runs, home.models())


def _demand_registry(registry: Registry) -> None:
    """Refuse models without a registry: it may have been moved, and may be restored."""
    if not registry.exists() and home.models().is_dir() and any(home.models().iterdir()):
        raise Refused(
            Problem(
                "registry-missing",
                f"{home.models()} has models, and the registry that lists them is gone",
                "the tracking store that they were registered in",
                "put it back; nothing was removed",
            ),
            exit_code=Exit.RUN_FAILED,
        )


def _lineage(version: Version) -> dict[str, Any]:
    try:
        document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text(encoding="utf-8"))
        return dict(document["lineage"])
    except FileNotFoundError:
        return {}  # killed before the evidence was kept: it passes no gate
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(
            Problem(
                "evidence-unreadable",
                f"the evidence of {version.model} {version.version} cannot be read: {error}",
                f"{version.evidence_folder / EVIDENCE_FILE} as it was written",
                "restore it: it lists the files the version needs; nothing was removed",
            ),
            exit_code=Exit.RUN_FAILED,
        ) from None


def _being_released() -> list[str]:
    """The projects with a proposal or apply in progress."""
    held = []
    for path in sorted((home.home() / "release").glob("*.lock")):
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name.partition(".")[0])
    return held
