"""The clusters that the stack files declare, for the checks of specs."""

from __future__ import annotations

from infra.settings import loader
from ml.core.errors import Refused
from ml.specs.check.clusters import Cluster


def names() -> frozenset[str]:
    """The names of `declared`: where jobs that a workflow submits may run."""
    return frozenset(cluster.name for cluster in declared())


def declared() -> list[Cluster]:
    """Those of every environment; none where a stack file is wrong, which `infra settings` says."""
    try:
        environments = [loader.load(stack) for stack in loader.environments()]
    except Refused:
        return []
    return [
        Cluster(
            settings.environment,
            cluster.name,
            cluster.vm_size,
            cluster.max_nodes,
            cluster.hardware.gpus,
            cluster.hardware.infiniband,
            cluster.spot,
        )
        for settings in environments
        for cluster in settings.clusters
    ]
