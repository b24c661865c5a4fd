"""The model registry of a backend: a part of the port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ml.core import home, names

DIGEST_PREFIX = "sha256:"
# As many hexadecimal digits of a sha256 name the folder of the evidence.
_NAMED = 16


@dataclass(frozen=True)
class Version:
    """A registered model version; `evidence` is the sha256 of its evidence.json, "" before.

    `source` is the folder that it was registered from.
    """

    model: str
    version: str
    digest: str
    project: str
    run: str
    evidence: str
    source: str = ""

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


class Registry(Protocol):
    """Registered model versions. A version is found by its digest: no model is registered twice.

    An alias per environment (`local`) names the champion there.
    """

    def exists(self) -> bool:
        """Whether anything was ever registered or run; False for one that was moved away."""
        ...

    def register(self, model: str, project: str, digest: str, run: str) -> Version:
        """The version with that digest, made if there is none; its files are in `folder`."""
        ...

    def versions(self, model: str | None = None) -> Sequence[Version]:
        """Every version of the model, or of every model, oldest first: 10 comes after 9."""
        ...

    def find(self, model: str, version: str) -> Version:
        """That version; raises Refused when there is none."""
        ...

    def champion(self, model: str, environment: str) -> Version | None:
        """The version that the environment's alias names; None before the first promotion."""
        ...

    def champions(self) -> Sequence[tuple[str, str, str]]:
        """(environment, model, version) of every alias."""
        ...

    def promote(self, version: Version, environment: str) -> None:
        """Point the environment's alias at the version."""
        ...

    def demote(self, model: str, environment: str) -> None:
        """Remove the environment's alias: nothing is champion there."""
        ...

    def keep_evidence(self, version: Version, sha256: str) -> Version:
        """Record the hash of the version's evidence.json; the version with it."""
        ...


def model_folder(digest: str) -> Path:
    """Where the model files with that digest are kept on this machine."""
    return home.models() / digest.removeprefix(DIGEST_PREFIX)
