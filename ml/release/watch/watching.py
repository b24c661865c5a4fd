"""From the name of a model to a report: which version serves, its reference, what it was asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ml.backends.registry import Registry, Version
from ml.core.errors import Problem, Refused
from ml.release.declaration import project as projects
from ml.release.declaration.desired import LOCAL, endpoint_of
from ml.release.watch import limits, reference, requests
from ml.release.watch.report import Report, look
from ml.release.watch.requests import Seen
from ml.serving import endpoint


def watch(
    registry: Registry,
    model: str,
    environment: str = LOCAL,
    version: str = "",
    *,
    inputs: Path | None = None,
    labels: Path | None = None,
    since: float | None = None,
) -> Report:
    """Watch the version that serves, or the one named, by what was collected or by a file.

    Raises Refused when nothing serves, when nothing is collected of the version, and when its
    reference is not its own.
    """
    found = _version(registry, model, environment, version, inputs is not None)
    kept = reference.load(found)
    seen = requests.of_file(inputs) if inputs else _collected(model, environment, found, since)
    report = look(
        *(kept, seen, limits.read(projects.find(found.project).folder)),
        model=model,
        version=found.version,
        environment=environment,
        labelled=requests.labels(labels) if labels else None,
    )
    if inputs is not None:
        return replace(report, notes=[*report.notes, f"from {inputs}, not from the endpoint"])
    return report


def _version(
    registry: Registry, model: str, environment: str, version: str, from_file: bool
) -> Version:
    if version:
        return registry.find(model, version)
    if not from_file:
        name = endpoint_of(model, environment)
        state = endpoint.live(name)
        if state is None:
            raise endpoint.nothing_served(name)
        return registry.find(model, state.launch.version)
    champion = registry.champion(model, environment)
    if champion is None:
        raise Refused(
            Problem(
                "no-champion",
                f"`{model}` has no champion in {environment}",
                "a version that was promoted, or one that is named",
                "--version N",
            )
        )
    return champion


def _collected(model: str, environment: str, version: Version, since: float | None) -> Seen:
    name = endpoint_of(model, environment)
    seen = requests.collected(name, version.digest, since)
    if seen.rows or seen.earlier:
        return seen
    state = endpoint.live(name)
    launches = [state.launch, *([state.canary.launch] if state.canary else [])] if state else []
    serving = [launch for launch in launches if launch.digest == version.digest]
    if not serving:
        raise Refused(
            Problem(
                "not-served",
                f"version {version.version} does not serve on `{name}`, and nothing that it was "
                "asked is kept",
                "a version that serves",
                f"ml serve {name} says which",
            )
        )
    if not any(launch.collect for launch in serving):
        raise Refused(
            Problem(
                "nothing-collected",
                f"what version {version.version} is asked on `{name}` is not written down",
                "a `data_collector` in the project's endpoint/deployment.yml",
                "turn `request` and `response` on there and apply again; or --inputs FILE",
            )
        )
    return seen
