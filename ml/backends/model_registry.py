"""The model registry of a backend: part of the backend port."""

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
# The evidence's main file; its sha256 identifies the evidence.
EVIDENCE_FILE = "evidence.json"
# The number of hexadecimal sha256 digits in the name of the evidence's folder.
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
        """Return the environments that served the version with that deployment digest, sorted."""
        return tuple(sorted({place for place, code, _ in self.served if code == deployment_digest}))

    @property
    def folder(self) -> Path:
        """The model's files on this machine, named by their digest."""
        return model_folder(self.digest)

    @property
    def evidence_folder(self) -> Path:
        """The local folder of the evidence and its predictions, named by the evidence's sha256.

        So earlier evidence is kept when the version is evaluated again for another environment.
        """
        model, version = names.check("asset", self.model), names.check("version", self.version)
        return home.evidence() / model / version / self.evidence[:_NAMED]


class Shared(Protocol):
    """The files of a registry shared with other machines."""

    def demand(self, environment: str) -> None:
        """Raise UserError if this registry cannot supply versions to that environment."""

    def keep_folder(self, model: str, folder: Path) -> None:
        """Store a folder of the home with the model's versions; its name is its digest."""

    def download_folder(self, model: str, folder: Path, is_content: Callable[[Path], bool]) -> None:
        """Download a folder that `keep_folder` stored, as `download` does.

        `is_content` returns whether a downloaded folder has the content of its digest.
        """

    def download(self, version: Version) -> None:
        """Download the version's files and its evidence if they are not here.

        Files that were never stored are skipped. Raise UserError if content does not match its
        digest.
        """


class Registry(Protocol):
    """Registered model versions; the same files (by digest) are registered only once.

    An alias per environment, such as `local`, names its champion.
    """

    @property
    def exists(self) -> Callable[[], bool] | None:
        """Returns whether the local store still exists; None for a remote registry."""

    @property
    def shared(self) -> Shared | None:
        """Copies files between machines; None if only one machine uses the registry."""

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        """Return the model's version with that digest; register `model_folder(digest)` if none."""

    def versions(self, model: str | None = None) -> Sequence[Version]:
        """Return every version of the model, or of every model, in numeric order."""

    def find(self, model: str, version: str) -> Version:
        """Return the version; raise UserError if there is none."""

    def champion(self, model: str, environment: str) -> Version | None:
        """Return the environment's champion; None before the first promotion."""

    def promote(self, version: Version, environment: str, deployment_digest: str = "") -> None:
        """Make the version the environment's champion, and record that it is served there.

        `deployment_digest` identifies the code and settings that serve it (see `Version.served`).
        """

    def demote(self, model: str, environment: str) -> None:
        """Remove the environment's alias: it has no champion then."""

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        """Register the local evidence whose evidence.json has that sha256; return the version.

        Earlier evidence is kept.
        """


def is_evidence(sha256: str) -> Callable[[Path], bool]:
    """Return a function that returns whether a folder's evidence.json has that sha256."""

    def check(folder: Path) -> bool:
        file = folder / EVIDENCE_FILE
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == sha256

    return check


def kept_tag(sha256: str) -> str:
    """Return the name of the tag whose value is when that evidence was stored."""
    return f"evidence.{sha256}"


def served_tag(environment: str, deployment_digest: str) -> str:
    """Return the name of the tag whose value is when the environment started to serve it."""
    return f"served.{environment}.{deployment_digest}"


def parse_release_tags(tags: Mapping[str, str]) -> dict[str, Any]:
    """Parse a version's tags; return the fields `kept` and `served` of `Version`."""
    times: dict[str, set[Any]] = {"evidence": set(), "served": set()}
    for tag, value in tags.items():
        kind, *names = tag.split(".")
        if len(names) == {"evidence": 1, "served": 2}.get(kind):
            with suppress(ValueError):
                times[kind].add((*names, datetime.fromisoformat(value).astimezone(UTC)))
    return {"kept": frozenset(times["evidence"]), "served": frozenset(times["served"])}


def later_releases(
    versions: Sequence[Version], version: Version, environment: str, deployment_digest: str
) -> list[tuple[Version, str]]:
    """Return (version, deployment digest) of all releases after this one in the environment.

    Promoting this one again is a rollback, which withdraws those. [] if it was never released.
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
    """Return the local folder of the model files with that digest."""
    return home.models() / digest.removeprefix(DIGEST_PREFIX)
