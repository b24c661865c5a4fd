"""The clusters that the stack files declare, and what a job may take of them, for the checks of
specs; the jobs that a workflow submitted to them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from infra.settings import loader
from infra.settings.model import Training
from ml.core.errors import Problem, Refused
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


def submitted(results: Path, project: str) -> list[dict[str, Any]]:
    """The jobs of each training of a project in a file of `ml train --json`, as `WorkflowRun` has
    them. Raises Refused for another file.
    """
    try:
        trainings = json.loads(results.read_text(encoding="utf-8"))
        return [
            {
                content: {"run": job["run"], "outputs": dict(job["outputs"])}
                for content, job in training["jobs"].items()
            }
            for training in trainings
            if training["project"] == project
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        expected, hint = f"the jobs that trained {project}", f"ml train {project} --json > FILE"
        raise Refused(Problem("not-trained", f"{results}: {error}", expected, hint)) from None


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
            cluster.hardware.memory_gib,
        )
        for settings in environments
        for cluster in settings.clusters
    ]
