"""The declared compute clusters, for the checks.

The caller supplies them, so that this package does not depend on `infra`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml.core.documents import Key
from ml.core.errors import Place
from ml.specs.check.nodes import Node


@dataclass(frozen=True)
class Cluster:
    """A compute cluster that an environment's stack file declares: its nodes and their hardware."""

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
    """The stack file's limits (`platform:training`) on each job or step that a workflow submits."""

    hours: int
    nodes: int
    trials: int
    trials_at_once: int


@dataclass(frozen=True)
class Placed:
    """The input of a rule with scope "cluster": a job or step, and the clusters that its `compute`
    names, one per environment.
    """

    node: Node
    clusters: Sequence[Cluster]

    def place(self, *keys: Key) -> Place:
        """Return the line of a field."""
        return self.node.place(*keys)

    def field(self, *keys: str) -> tuple[tuple[Key, ...], object]:
        """Return (keys, value) of a field of the job, its trial or its component; None if unset."""
        for prefix in ((), ("trial",)):
            if (value := self.node.get(*prefix, *keys)) is not None:
                return (*prefix, *keys), value
        value = self.node.component
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return (self.node.component_key,), value

    @property
    def nodes(self) -> int:
        """Return the job's `instance_count`; 1 by default."""
        _, count = self.field("resources", "instance_count")
        return count if isinstance(count, int) else 1


def placed(node: Node, clusters: Sequence[Cluster]) -> Placed | None:
    """Return the node with the clusters that its `compute` names; None if it names none."""
    if node.type not in {"command", "sweep", "parallel"} or node.is_component:
        return None
    name = compute(node).removeprefix("azureml:")
    matching = [cluster for cluster in clusters if cluster.name == name]
    return Placed(node, matching) if matching else None


def compute(node: Node) -> str:
    """Return the node's compute, else the default of the nearest enclosing job; "" without one."""
    current: Node | None = node
    while current is not None:
        for written in (current.get("compute"), current.get("settings", "default_compute")):
            if isinstance(written, str):
                return written
        current = current.parent or current.user
    return ""
