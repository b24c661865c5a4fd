"""What a spec declares besides jobs and assets: schedules, batch endpoints, their deployments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ml.backends.runs import Run, Watch, unwatched
from ml.specs.assets.assets import AssetSpec
from ml.specs.sdk.load import Spec

# The families of specs that are applied rather than run.
BATCH_DEPLOYMENTS = frozenset({"model_batch_deployment", "pipeline_component_batch_deployment"})
FAMILIES = BATCH_DEPLOYMENTS | {"schedule", "batch_endpoint", "batch_deployment"}


@dataclass(frozen=True)
class Applied:
    """The result of applying a declaration; `unchanged` if its content was already there.

    `commands` are suggested next commands.
    """

    kind: str
    name: str
    change: Literal["created", "updated", "unchanged"]
    commands: tuple[str, ...] = ()


class Resources(Protocol):
    """The schedules and batch endpoints of a backend."""

    def requests(self, spec: Spec) -> tuple[str, ...]:
        """What `apply` would send; sends nothing."""

    def apply(self, spec: Spec) -> Applied:
        """Create what the spec declares, or change it to that. Raises Refused."""

    def score(self, endpoint: str, deployment: str, data: str, watch: Watch = unwatched) -> Run:
        """Let a batch endpoint score data, and follow the job to its end. Raises Refused.

        The data is a local path or an asset; `NAME=DATA` is an input of that name. Without a
        deployment, the endpoint's default one scores.
        """


AssetStatus = Literal["missing", "unchanged", "changed", "no-feature-store"]


@dataclass(frozen=True)
class AssetState:
    """An asset that a spec defines, and how the backend's version of it compares.

    `digest` is sha256 of the spec and of all that it names. A version is immutable: one that is
    `changed` needs a new number in its spec. Entities and feature sets are not compared where no
    feature store is named.
    """

    spec: AssetSpec
    digest: str
    status: AssetStatus

    def __str__(self) -> str:
        return f"azureml:{self.spec.name}:{self.spec.version}"


class AssetStore(Protocol):
    """Where jobs find assets by name and version."""

    def compare(self, root: Path) -> Sequence[AssetState]:
        """The state of every asset that a spec below `root` defines, by kind and name."""

    def create(self, state: AssetState) -> None:
        """Register a missing version from its spec."""
