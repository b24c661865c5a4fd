"""How a model is served: its serving code and the settings of its deployment, under one digest.

A release declares the digest beside the model's. What was proposed is kept, so that a rollback
serves what served before, whatever the project's files say by then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ml.backends.base import Backend
from ml.backends.registry import Version
from ml.core import files, home
from ml.core.errors import Exit, Problem, Refused
from ml.serving.deployment import Deployment
from ml.serving.server import HomePath, Launch

# What names a deployment, and does not change how it serves.
NAMES = frozenset(
    {"$schema", "name", "endpoint_name", "model", "description", "tags", "properties"}
)


@dataclass(frozen=True)
class Serving:
    """A snapshot of the serving code, and the deployment's settings as deployment.yml has them."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    code: HomePath
    scoring_script: str
    environment_variables: Mapping[str, str]
    collect: float
    settings: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The sha256 of code and settings, in hex; the names of the deployment do not count."""
        content = {
            "code": self.code.name,
            "scoring_script": self.scoring_script,
            "environment_variables": self.environment_variables,
            "collect": self.collect,
            "settings": {key: value for key, value in self.settings.items() if key not in NAMES},
        }
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def launch(self, version: Version, endpoint: str) -> Launch:
        """How a server of the version is started on the endpoint."""
        return Launch(
            endpoint=endpoint,
            model=version.model,
            version=version.version,
            digest=version.digest,
            code=self.code,
            scoring_script=self.scoring_script,
            model_folder=version.folder,
            environment_variables=self.environment_variables,
            collect=self.collect,
            serving=self.digest,
        )


_SERVING = TypeAdapter(Serving)


def current(backend: Backend, deployment: Deployment) -> Serving:
    """How the project's files serve now; the code is kept in a snapshot."""
    return Serving(
        code=backend.snapshot(deployment.code),
        scoring_script=deployment.scoring_script,
        environment_variables=deployment.environment_variables,
        collect=deployment.collect,
        settings=deployment.settings,
    )


def keep(serving: Serving) -> None:
    """Keep it under its digest."""
    files.replace(_path(serving.digest), _SERVING.dump_json(serving, indent=1).decode() + "\n")


def find(digest: str) -> Serving | None:
    """What was kept under the digest; None when nothing was, or the snapshot of its code is gone.

    Raises Refused when the file is not what was kept.
    """
    path = _path(digest)
    try:
        serving = _SERVING.validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise _edited(path, str(error).splitlines()[0]) from None
    if serving.digest != digest:
        raise _edited(path, "its content has another digest")
    return serving if serving.code.is_dir() else None


def changes(before: Serving, after: Serving) -> Iterator[str]:
    """What differs between two, a sentence each: files of the code, then settings."""
    old, new = _files(before.code), _files(after.code)
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield f"{name} is new"
        elif name not in new:
            yield f"{name} is gone"
        elif old[name] != new[name]:
            added, removed = _lines(old[name], new[name])
            yield f"{name}: {added} lines added, {removed} removed"
    for key in sorted((before.settings.keys() | after.settings.keys()) - NAMES):
        was, now = before.settings.get(key), after.settings.get(key)
        if was != now:
            yield f"{key}: {_shown(was)} → {_shown(now)}"


def _path(digest: str) -> Path:
    return home.servings() / f"{digest}.json"


def _edited(path: Path, why: str) -> Refused:
    return Refused(
        Problem(
            "serving-edited",
            f"{path} cannot be used: {why}",
            "the serving code and settings as they were proposed",
            "remove the file and propose the version again",
        ),
        exit_code=Exit.GATE_SAID_NO,
    )


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _lines(before: bytes, after: bytes) -> tuple[int, int]:
    old, new = (content.decode(errors="replace").splitlines() for content in (before, after))
    added = removed = 0
    for kind, first, end, new_first, new_end in SequenceMatcher(None, old, new).get_opcodes():
        if kind != "equal":
            added, removed = added + new_end - new_first, removed + end - first
    return added, removed


def _shown(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, sort_keys=True, default=str)
