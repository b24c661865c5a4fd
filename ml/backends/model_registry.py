"""The model registry of a backend: a part of the port."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ml.core import home, names

DIGEST_PREFIX = "sha256:"
# The file of the evidence whose sha256 a version is kept with.
EVIDENCE_FILE = "evidence.json"
# The number of hexadecimal sha256 digits that name the folder of the evidence.
_NAMED = 16


@dataclass(frozen=True)
class Version:
    """A registered model version."""

    model: str
    version: str
    digest: str  # of the model folder
    project: str
    run: str
    evidence: str  # hexadecimal sha256 of its evidence.json; "" before its first evaluation
    source: str = ""  # folder that it was registered from; "" on Azure
    # (sha256, time) of every evidence.json that was ever registered with it.
    kept: frozenset[tuple[str, datetime]] = frozenset()
    # (environment, deployment digest, start) of every release; a rollback removes those after the
    # version that it returns to.
    served: frozenset[tuple[str, str, datetime]] = frozenset()

    def kept_at(self, evidence: str) -> datetime | None:
        """Return when the evidence with that hash was stored; None if it never was."""
        return next((moment for sha256, moment in self.kept if sha256 == evidence), None)

    def served_in(self, deployment_digest: str) -> tuple[str, ...]:
        """Return the environments that served it with that deployment digest."""
        return tuple(sorted({place for place, code, _ in self.served if code == deployment_digest}))

    @property
    def folder(self) -> Path:
        """The model's files on this machine, named by their digest."""
        return model_folder(self.digest)

    @property
    def evidence_folder(self) -> Path:
        """The evidence and its predictions on this machine, named after the evidence's sha256.

        What an environment declares stays when the version is measured again for another.
        """
        model, version = names.check("asset", self.model), names.check("version", self.version)
        return home.evidence() / model / version / self.evidence[:_NAMED]


class Shared(Protocol):
    """The files of a registry shared with other machines."""

    def demand(self, environment: str) -> None:
        """Raise UserError if this registry cannot supply versions to that environment."""

    def keep_folder(self, model: str, folder: Path) -> None:
        """Store a folder of the home with the model's versions; its name is its digest."""

    def bring_folder(self, model: str, folder: Path, is_content: Callable[[Path], bool]) -> None:
        """Bring such a folder to this machine, as `bring` does.

        `is_content` says whether a folder has the content after which this one is named.
        """

    def bring(self, version: Version) -> None:
        """Download the version's files and its evidence if they are not here.

        Files that were never stored are skipped. Raise UserError if content does not match its
        digest.
        """


class Registry(Protocol):
    """Registered model versions. A version is found by its digest: no model is registered twice.

    An alias per environment (`local`) names the champion there.
    """

    @property
    def exists(self) -> Callable[[], bool] | None:
        """Return a check that a local store still exists: somebody may move it away."""

    @property
    def shared(self) -> Shared | None:
        """The storage that copies files between machines; None if one machine uses the registry."""

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        """Return the version with that digest, made if there is none; its files are in `folder`."""

    def versions(self, model: str | None = None) -> Sequence[Version]:
        """Return every version of the model, or of every model, oldest first: 10 comes after 9."""

    def find(self, model: str, version: str) -> Version:
        """Return that version; raise UserError if there is none."""

    def champion(self, model: str, environment: str) -> Version | None:
        """Return the version of the environment's alias; None before the first promotion."""

    def promote(self, version: Version, environment: str, deployment_digest: str = "") -> None:
        """Point the environment's alias at the version, and record that it served there.

        `deployment_digest` is that of the code and settings that served it. See `Version.served`.
        """

    def demote(self, model: str, environment: str) -> None:
        """Remove the environment's alias: nothing is champion there."""

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        """Store the local evidence with that hash, in addition to earlier ones; return the version.

        `sha256` is the hash of evidence.json.
        """


def is_evidence(sha256: str) -> Callable[[Path], bool]:
    """Return a check of whether a folder has the evidence.json with that hash."""

    def check(folder: Path) -> bool:
        file = folder / EVIDENCE_FILE
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256

    return check


def kept_tag(sha256: str) -> str:
    """Return the tag of a version that says when the evidence with that hash was kept."""
    return f"evidence.{sha256}"


def served_tag(environment: str, deployment_digest: str) -> str:
    """Return the tag that says since when a version served there with that deployment digest."""
    return f"served.{environment}.{deployment_digest}"


def marks(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields `kept` and `served` of the version with these tags."""
    times: dict[str, set[Any]] = {"evidence": set(), "served": set()}
    for tag, value in tags.items():
        kind, *names = tag.split(".")
        if len(names) == {"evidence": 1, "served": 2}.get(kind):
            with suppress(ValueError):
                times[kind].add((*names, datetime.fromisoformat(value).astimezone(UTC)))
    return {"kept": frozenset(times["evidence"]), "served": frozenset(times["served"])}


def withdrawn(
    versions: Sequence[Version], version: Version, environment: str, deployment_digest: str
) -> list[tuple[Version, str]]:
    """Return what served in the environment after this version with this deployment digest.

    [] if it never served. To promote it again is a rollback; the pairs are (version, deployment
    digest).
    """
    entries = [
        (candidate, code, since)
        for candidate in versions
        for place, code, since in candidate.served
        if place == environment
    ]
    here = (version.version, deployment_digest)
    mine = [since for entry, code, since in entries if (entry.version, code) == here]
    return [(entry, code) for entry, code, since in entries if mine and since > mine[0]]


def model_folder(digest: str) -> Path:
    """Return the folder on this machine for the model files with that digest."""
    return home.models() / digest.removeprefix(DIGEST_PREFIX)
