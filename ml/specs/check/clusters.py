"""The compute clusters that an infrastructure declares, as the checks need them.

The caller supplies them: this room does not know where they are declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml.core.documents import Key
from ml.core.errors import Place
from ml.specs.check.nodes import Node


@dataclass(frozen=True)
class Cluster:
    """A cluster of an environment: the hardware of a node, and how many there are at most."""

    environment: str
    name: str
    size: str
    max_nodes: int
    gpus: int = 0
    infiniband: bool = False
    spot: bool = False
    memory_gib: int = 0


@dataclass(frozen=True)
class Bounds:
    """The most that one job or step may take which a workflow submits."""

    hours: int
    nodes: int
    trials: int
    trials_at_once: int


@dataclass(frozen=True)
class Placed:
    """The subject of a rule of scope "cluster": a job or step, and the clusters of the name that
    it runs on, one an environment.
    """

    node: Node
    clusters: Sequence[Cluster]

    def place(self, *keys: Key) -> Place:
        """The line of a field."""
        return self.node.place(*keys)

    def field(self, *keys: str) -> tuple[tuple[Key, ...], object]:
        """The keys and the value of a field of the job, its trial or its component."""
        for at in ((), ("trial",)):
            if (value := self.node.get(*at, *keys)) is not None:
                return (*at, *keys), value
        value = self.node.component
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return (self.node.component_key,), value

    @property
    def nodes(self) -> int:
        """How many nodes it takes."""
        _, count = self.field("resources", "instance_count")
        return count if isinstance(count, int) else 1


def placed(node: Node, clusters: Sequence[Cluster]) -> Placed | None:
    """The node beside its clusters; None where it runs on none of these."""
    if node.type not in {"command", "sweep", "parallel"} or node.is_component:
        return None
    name = compute(node).removeprefix("azureml:")
    own = [cluster for cluster in clusters if cluster.name == name]
    return Placed(node, own) if own else None


def compute(node: Node) -> str:
    """Return the node's compute, else the default of the nearest enclosing job; "" without one."""
    at: Node | None = node
    while at is not None:
        for written in (at.get("compute"), at.get("settings", "default_compute")):
            if isinstance(written, str):
                return written
        at = at.parent or at.user
    return ""
