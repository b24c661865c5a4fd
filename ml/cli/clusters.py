"""The clusters that the stack files declare, and what a job may take of them, for the checks of
specs.
"""

from __future__ import annotations

from infra.settings import loader
from infra.settings.model import Training
from ml.core.errors import Refused
from ml.specs.check.clusters import Bounds, Cluster


def names() -> frozenset[str]:
    """The names of `declared`: where jobs that a workflow submits may run."""
    return frozenset(cluster.name for cluster in declared())


def bounds(environment: str) -> Bounds:
    """What a job may take that a workflow submits in an environment: `platform:training`, or its
    defaults where no stack file has the environment, or it is wrong: then no cluster is declared.
    """
    try:
        is_declared = environment in loader.environments()
        training = loader.load(environment).training if is_declared else Training()
    except Refused:
        training = Training()
    return Bounds(training.hours, training.nodes, training.trials, training.trials_at_once)


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
