"""What became of a run's model: its evidence, the gates' decision, the champion. Only ever read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.core import home
from ml.core.errors import Refused
from ml.release.declaration import desired
from ml.release.evidence import evidence
from ml.release.log import audit
from ml.release.promotion.candidate import EVALUATION, MODEL
from ml.release.registry.registry import Registry, Version
from ml.reports.numbers import count
from ml.serving.scoring.manifest import ManifestError, verify
from policies.promotion.evidence import Evidence, Metrics, parse
from policies.promotion.paired import Difference, difference

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quality:
    """How good a model is by its evaluation; `source` says where that was read.

    `slices` is slice name → its values → metrics; `contributions` are (feature, share).
    """

    source: str
    evidence: Evidence
    slices: Mapping[str, Metrics] = field(default_factory=dict)
    contributions: Sequence[tuple[str, float]] = ()
    stability: Mapping[str, float] = field(default_factory=dict)
    training_seconds: float | None = None
    training_threads: float | None = None


@dataclass(frozen=True)
class Release:
    """The registered version of the run's model, what the gates said last, and the champion.

    `decision` is the audit line's, None when the gates were never asked; `against` is the version
    that the model is compared with: today's champion, or the one that it replaced.
    """

    version: Version
    evidence: Evidence
    document: Mapping[str, Any]
    decision: Mapping[str, Any] | None
    decided: str
    declared: bool
    is_champion: bool
    against: Version | None
    against_evidence: Evidence | None

    @property
    def name(self) -> str:
        """Model and version."""
        return f"{self.version.model} {self.version.version}"

    @property
    def same_data(self) -> bool:
        """Whether both were measured on the same versions of the data."""
        theirs = self.against_evidence.data if self.against_evidence else {}
        hashes = [
            {name: of.sha256 for name, of in data.items()} for data in (self.evidence.data, theirs)
        ]
        return hashes[0] == hashes[1]

    def better_by(self, split: str) -> Difference | None:
        """The paired difference to `against` on the split, in units of the primary metric.

        None when the two were not measured on the same data, or either's evidence disagrees.
        """
        theirs = self.against_evidence
        if theirs is None or theirs.disagreements or self.evidence.disagreements:
            return None
        if not self.same_data or theirs.primary_metric != self.evidence.primary_metric:
            return None
        ours, groups = self.evidence.outcomes.get(split, {}), self.evidence.groups.get(split)
        try:
            return difference(ours, theirs.outcomes.get(split, {}), CONFIDENCE, groups)
        except ValueError:
            return None


def find_release(run: Run, notes: list[str]) -> Release | None:
    """The version that was registered of the run's model, or whose evaluation the run is."""
    models = sorted({path.parents[2].name for path in _papers()})
    if not models:
        return None
    digest = next((one for part in _parts(run, MODEL) if (one := _digest(part))), "")
    ids = {run.id, *(part.id for part in _parts(run, EVALUATION))}
    try:
        registry = Registry()
        versions = [version for model in models for version in registry.versions(model)]
        found = [version for version in versions if digest and version.digest == digest] or [
            version for version in versions if _lineage(version).get("evaluation_run") in ids
        ]
        return _release(registry, found[-1], notes) if found else None
    except Refused as refused:
        notes.append(f"The registry cannot be read: {refused.problems[0].found}")
        return None


def find_quality(run: Run, release: Release | None, notes: list[str]) -> Quality | None:
    """The evaluation in the run's own output, else the one kept with the registered version."""
    for part in _parts(run, EVALUATION)[:1]:
        try:
            document = evidence.evaluation_of(part)
        except Refused as refused:
            notes.append(f"The evaluation is not shown: {refused.problems[0].found}")
            return None
        return _quality(document, parse(document), f"evaluation.json of {part.name}")
    if release is None:
        return None
    if release.evidence.disagreements:
        first, *more = release.evidence.disagreements
        also = f" (and {count(len(more), 'more disagreement')})" if more else ""
        notes.append(f"The evidence of {release.name} is not to be trusted: {first}{also}.")
    if not release.evidence.metrics:
        return None
    return _quality(release.document, release.evidence, f"evidence.json of {release.name}")


def _release(registry: Registry, version: Version, notes: list[str]) -> Release:
    project = version.project
    line = _decision(version, notes)
    decision = line.get("decision") if line else None
    champion = registry.champion(version.model, desired.ENVIRONMENTS[0])
    declared = desired.read(project, desired.ENVIRONMENTS[0])
    is_champion = champion is not None and champion.digest == version.digest
    against = champion
    if is_champion:
        before = (decision or {}).get("champion")
        against = (
            registry.find(version.model, str(before))
            if before and str(before) != version.version
            else None
        )
    return Release(
        version=version,
        evidence=evidence.load(version),
        document=_document(version),
        decision=decision,
        decided=str(line.get("at", "")) if line else "",
        declared=declared is not None and declared.digest == version.digest,
        is_champion=is_champion,
        against=against,
        against_evidence=evidence.load(against) if against else None,
    )


def _parts(run: Run, output: str) -> list[Run]:
    """The run, and the steps below it, that have the output; a sweep has its best trial's."""
    own = [run] if output in run.outputs else []
    return own + [part for step in run.steps for part in _parts(step, output)]


def _papers() -> list[Path]:
    """The evidence of every version on this machine."""
    return sorted((home.home() / "evidence").glob(f"*/*/*/{evidence.FILE}"))


def _digest(run: Run) -> str:
    """The digest of the run's model, "" when it has none or its files were changed."""
    try:
        return verify(run.outputs[MODEL]) if MODEL in run.outputs else ""
    except (ManifestError, OSError):
        return ""


def _document(version: Version) -> Mapping[str, Any]:
    try:
        found = json.loads((version.papers / evidence.FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lineage(version: Version) -> Mapping[str, Any]:
    return _mapping(_document(version).get("lineage"))


def _decision(version: Version, notes: list[str]) -> Mapping[str, Any] | None:
    """The last audit line that decided about the version."""
    try:
        lines = audit.verify()
    except Refused as refused:
        notes.append(f"The gates' decision is not shown: {refused.problems[0].found}")
        return None
    for line in reversed(lines):
        asked = _mapping(_mapping(line.get("decision")).get("request"))
        if (asked.get("model"), asked.get("digest")) == (version.model, version.digest):
            return line
    return None


def _quality(document: Mapping[str, Any], found: Evidence, source: str) -> Quality:
    training = _mapping(document.get("training"))
    stability = _mapping(document.get("stability"))
    return Quality(
        source=source,
        evidence=found,
        # The same parser that the gates use: a leaf of a wrong type is None, nothing raises.
        slices={
            str(name): parse({"metrics": of}).metrics
            for name, of in _mapping(document.get("slices")).items()
        },
        contributions=[
            (str(one["feature"]), float(one["share"]))
            for one in document.get("contributions") or []
            if isinstance(one, dict) and "feature" in one and _number(one.get("share")) is not None
        ],
        stability={
            str(name): spread
            for name, of in stability.items()
            if (spread := _number(_mapping(of).get("std"))) is not None
        },
        training_seconds=_number(training.get("seconds")),
        training_threads=_number(training.get("threads")),
    )


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _number(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
