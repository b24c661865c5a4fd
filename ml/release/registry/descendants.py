"""Descendants of a run: the model versions made from it, and where they serve."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ml.backends.base import Run
from ml.backends.registry import Registry, Version
from ml.release.declaration import desired_state
from ml.release.registry.models import EVIDENCE_FILE, MODEL_OUTPUT
from ml.serving import endpoint
from ml.serving.scoring.manifest import ManifestError, verify

Relation = Literal["made", "same files", "evaluated"]


@dataclass(frozen=True)
class Serving:
    """An endpoint that a version is live on; `url` is None while its server is stopped."""

    endpoint: str
    url: str | None


@dataclass(frozen=True)
class Descendant:
    """A registered version and its relation to a run.

    `made`: it was registered from the run or a part of it. `same files`: it was registered from
    another run that came to the same files. `evaluated`: the run measured it.
    """

    model: str
    version: str
    digest: str
    relation: Relation
    declared: Sequence[str]
    champion: Sequence[str]
    serving: Sequence[Serving]

    def to_json(self) -> Mapping[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def descendants(registry: Registry, run: Run) -> Sequence[Descendant]:
    """The versions related to the run; raises Refused when the registry cannot be read."""
    versions = registry.versions()
    if not versions:
        return []
    ids = {each.id for each in (run, *run.below()) if each.id}
    digests = {digest for part in _with_model(run) if (digest := _digest(part))}
    descended = []
    for version in versions:
        relation: Relation | None = None
        if version.run in ids:
            relation = "made"
        elif version.digest in digests:
            relation = "same files"
        elif _evaluation_run(version) in ids:
            relation = "evaluated"
        if relation:
            descended.append(_descendant(registry, version, relation))
    return descended


def _descendant(registry: Registry, version: Version, relation: Relation) -> Descendant:
    here = (version.model, version.version)
    declared = [
        environment
        for environment in desired_state.ENVIRONMENTS
        if (entry := desired_state.read(version.project, environment))
        and entry.digest == version.digest
    ]
    return Descendant(
        model=version.model,
        version=version.version,
        digest=version.digest,
        relation=relation,
        declared=declared,
        champion=[alias for alias, *what in registry.champions() if tuple(what) == here],
        serving=[
            Serving(name, endpoint.url(name))
            for name in endpoint.names()
            if (live := endpoint.live(name)) and live.launch.digest == version.digest
        ],
    )


def _with_model(run: Run) -> list[Run]:
    """The run, and the steps below it, that have a model; a sweep has its best trial's."""
    own = [run] if MODEL_OUTPUT in run.outputs else []
    return own + [part for step in run.steps for part in _with_model(step)]


def _digest(run: Run) -> str:
    """The digest of the run's model, "" when it has none or its files were changed."""
    try:
        return verify(run.outputs[MODEL_OUTPUT])
    except (ManifestError, OSError):
        return ""


def _evaluation_run(version: Version) -> str:
    try:
        document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text(encoding="utf-8"))
        return str(document["lineage"]["evaluation_run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
