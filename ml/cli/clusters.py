"""Read the clusters and job limits that stack files declare, for the checks of specs.

Also read the jobs that an earlier `ml train --json` submitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.settings import loader
from infra.settings.model import Training
from ml.core import documents
from ml.core.errors import Problem, UserError
from ml.specs.check.clusters import Bounds, Cluster


def names() -> frozenset[str]:
    """Return the names of all declared clusters; workflows may submit jobs only to these."""
    return frozenset(cluster.name for cluster in declared())


def bounds(environment: str) -> Bounds:
    """Return the limits for jobs that a GitHub workflow submits in an environment.

    They are `platform:training` of its stack file; the defaults if the file is missing or invalid,
    in which case no cluster is declared either.
    """
    try:
        is_declared = environment in loader.environments()
        training = loader.load(environment).training if is_declared else Training()
    except UserError:
        training = Training()
    return Bounds(training.hours, training.nodes, training.trials, training.trials_at_once)


def submitted(results: Path, project: str) -> list[dict[str, Any]]:
    """Return the jobs of each training of a project in the file `results` of `ml train --json`.

    Each dict has the format of `WorkflowRun.jobs`. Raises UserError if the file cannot be read or
    has another format.
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
        actual = f"{results} cannot be read: {error}"
        raise UserError(Problem("not-trained", actual, expected, hint)) from None


def stack_warnings(root: Path) -> Iterator[Problem]:
    """Yield a warning for each project endpoint that no stack file declares; releases need one.

    If a stack file is invalid, yield its problems as warnings instead.
    """
    try:
        environments = [loader.load(stack) for stack in loader.environments()]
    except UserError as error:
        yield from (replace(problem, severity="warning") for problem in error.problems)
        return
    declared = {endpoint.name for settings in environments for endpoint in settings.endpoints}
    for file in sorted(root.glob("ml/projects/*/endpoint/deployment.yml")):
        try:
            document = documents.read(file)
        except UserError:
            continue  # another check reports it
        name = document.get("endpoint_name")
        if environments and isinstance(name, str) and name not in declared:
            actual = f"no stack file declares the endpoint `{name}`"
            first = environments[0].environment
            expected = f"`- name: {name}` under `platform:endpoints` of infra/Pulumi.{first}.yaml"
            hint = f"add it before the first release to {first}; runs on this machine need none"
            place = document.place("endpoint_name")
            yield Problem("undeclared-endpoint", actual, expected, hint, place, "warning")


def declared() -> list[Cluster]:
    """Return the clusters of every environment; [] if a stack file is invalid."""
    try:
        environments = [loader.load(stack) for stack in loader.environments()]
    except UserError:
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
