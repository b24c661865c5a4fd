"""The assets of a backend that keeps copies of what the repository's specs define."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ml.specs.assets.assets import AssetSpec

AssetStatus = Literal["missing", "unchanged", "changed"]


@dataclass(frozen=True)
class AssetState:
    """An asset that a spec defines, and how the backend's version of it compares.

    `digest` is sha256 of the spec and of all that it names. A version is immutable: one that is
    `changed` needs a new number in its spec.
    """

    spec: AssetSpec
    digest: str
    status: AssetStatus

    def __str__(self) -> str:
        return f"azureml:{self.spec.name}:{self.spec.version}"


class AssetStore(Protocol):
    """Where jobs find data, environments and components by name and version."""

    def compare(self, root: Path) -> Sequence[AssetState]:
        """The state of every asset that a spec below `root` defines, by kind and name."""

    def create(self, state: AssetState) -> None:
        """Register a missing version from its spec."""
