"""The release of a run's model: evidence, the gates' last decision, the champion. Read-only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.backends.choice import open_backend
from ml.backends.registry import Registry, Version
from ml.core import home
from ml.core.errors import Refused
from ml.release.declaration import desired
from ml.release.evidence import evidence
from ml.release.log import audit
from ml.release.promotion.candidate import EVALUATION, MODEL
from ml.reports.formatting import count
from ml.serving.scoring.manifest import ManifestError, verify
from policies.promotion.bootstrap import Difference, difference
from policies.promotion.evidence import Evidence, Metrics, parse

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Quality:
    """The evaluation of a model; `source` names the file that it was read from.

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
    """The registered version of the run's model, the gates' last decision, and the champion.

    `decision` is the audit line's, None when the gates never ran; `against` is the version that
    the model is compared with: today's champion, or the one that it replaced.
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
            {name: asset.sha256 for name, asset in data.items()}
            for data in (self.evidence.data, theirs)
        ]
        return hashes[0] == hashes[1]

    def paired_difference(self, split: str) -> Difference | None:
        """The paired difference to `against` on the split, in units of the primary metric.

        None when the two were not measured on the same data, or the evidence of one is not valid.
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
    """The version that was registered from the run, or that the run evaluated."""
    models = sorted({path.parents[2].name for path in _evidence_files()})
    if not models:
        return None
    digest = next((digest for part in _parts(run, MODEL) if (digest := _digest(part))), "")
    ids = {run.id, *(part.id for part in _parts(run, EVALUATION))}
    try:
        registry = open_backend().registry
        versions = [version for model in models for version in registry.versions(model)]
        matches = [version for version in versions if digest and version.digest == digest] or [
            version
            for version in versions
            if _mapping(_document(version).get("lineage")).get("evaluation_run") in ids
        ]
        return _release(registry, matches[-1], notes) if matches else None
    except Refused as refused:
        notes.append(f"The registry cannot be read: {refused.problems[0].found}")
        return None


def find_quality(run: Run, release: Release | None, notes: list[str]) -> Quality | None:
    """The evaluation in the run's own output, else the one in the version's evidence."""
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
        others = f" (and {count(len(more), 'more disagreement')})" if more else ""
        notes.append(f"The evidence of {release.name} is not valid: {first}{others}.")
    if not release.evidence.metrics:
        return None
    return _quality(release.document, release.evidence, f"evidence.json of {release.name}")


def _evidence_files() -> Iterator[Path]:
    """The evidence of every version, as MODEL/VERSION/DIGEST/evidence.json."""
    return (home.home() / "evidence").glob(f"*/*/*/{evidence.FILE}")


def _release(registry: Registry, version: Version, notes: list[str]) -> Release:
    line = _audit_line(version, notes)
    decision = line.get("decision")
    champion = registry.champion(version.model, desired.ENVIRONMENTS[0])
    declared = desired.read(version.project, desired.ENVIRONMENTS[0])
    is_champion = champion is not None and champion.digest == version.digest
    against = champion
    if is_champion:
        former = str((decision or {}).get("champion") or version.version)
        against = registry.find(version.model, former) if former != version.version else None
    return Release(
        version=version,
        evidence=evidence.load(version),
        document=_document(version),
        decision=decision,
        decided=str(line.get("at", "")),
        declared=declared is not None and declared.digest == version.digest,
        is_champion=is_champion,
        against=against,
        against_evidence=evidence.load(against) if against else None,
    )


def _parts(run: Run, output: str) -> list[Run]:
    """The run and the steps below it that have the output; a sweep has that of its best trial."""
    own = [run] if output in run.outputs else []
    return own + [part for step in run.steps for part in _parts(step, output)]


def _digest(run: Run) -> str:
    """The digest of the run's model, "" when its files were changed."""
    try:
        return verify(run.outputs[MODEL])
    except (ManifestError, OSError):
        return ""


def _document(version: Version) -> Mapping[str, Any]:
    try:
        return _mapping(
            json.loads((version.evidence_folder / evidence.FILE).read_text(encoding="utf-8"))
        )
    except (OSError, ValueError):
        return {}


def _audit_line(version: Version, notes: list[str]) -> Mapping[str, Any]:
    """The last audit line with a decision about the version; empty when there is none."""
    try:
        lines = audit.verify()
    except Refused as refused:
        notes.append(f"The gates' decision is not shown: {refused.problems[0].found}")
        return {}
    for line in reversed(lines):
        request = _mapping(_mapping(line.get("decision")).get("request"))
        if (request.get("model"), request.get("digest")) == (version.model, version.digest):
            return line
    return {}


def _quality(document: Mapping[str, Any], parsed: Evidence, source: str) -> Quality:
    training = _mapping(document.get("training"))
    return Quality(
        source=source,
        evidence=parsed,
        # The gates' parser turns a value of a wrong type into None and raises nothing.
        slices={
            str(name): parse({"metrics": metrics}).metrics
            for name, metrics in _mapping(document.get("slices")).items()
        },
        contributions=[
            (str(entry["feature"]), share)
            for entry in document.get("contributions") or []
            if isinstance(entry, dict)
            and "feature" in entry
            and (share := _number(entry.get("share"))) is not None
        ],
        stability={
            str(metric): spread
            for metric, values in _mapping(document.get("stability")).items()
            if (spread := _number(_mapping(values).get("std"))) is not None
        },
        training_seconds=_number(training.get("seconds")),
        training_threads=_number(training.get("threads")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
