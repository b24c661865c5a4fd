"""The release of a run's model: evidence, the gates' last decision, the champion. Read-only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ml.backends.registry import Registry, Version
from ml.backends.runs import Run
from ml.core.errors import Refused
from ml.release import audit
from ml.release.comparison import Comparison, Side, compare
from ml.release.declaration import desired_state
from ml.release.evidence import evidence
from ml.release.versions import EVALUATION, EVIDENCE_FILE, MODEL
from ml.reports.formatting import count
from ml.serving.scoring.manifest import ManifestError, verify
from policies.promotion.comparison import Difference
from policies.promotion.evidence import Evidence, parse


@dataclass(frozen=True)
class Quality:
    """The evaluation of a model; `source` names the file that it was read from."""

    source: str
    evidence: Evidence


@dataclass(frozen=True)
class Release:
    """The registered version of the run's model, the gates' last decision, and the champion.

    `decision` is the audit line's, None when the gates never ran. The model is compared with
    `against`, the side of today's champion or of the one that the model replaced.
    """

    version: Version
    evidence: Evidence
    decision: Mapping[str, Any] | None
    decided: str
    declared: bool
    is_champion: bool
    against: Side | None

    @property
    def name(self) -> str:
        """Model and version."""
        return f"{self.version.model} {self.version.version}"

    @cached_property
    def comparison(self) -> Comparison:
        """The model beside `against`."""
        return compare(_side(self.version, self.evidence), self.against)

    def paired_difference(self, split: str) -> Difference | None:
        """The paired difference to `against` on the split, in units of the primary metric.

        None when the two cannot be compared: `comparison.unpaired` says why.
        """
        comparison = self.comparison
        rows = (row for row in comparison.metrics if row.metric == comparison.primary)
        return next((row.by for row in rows if row.place == split), None)


def find_release(run: Run, registry: Registry, notes: list[str]) -> Release | None:
    """The version that was registered from the run, or that the run evaluated."""
    digest = next((digest for part in _parts(run, MODEL) if (digest := _digest(part))), "")
    ids = {run.id, *(part.id for part in _parts(run, EVALUATION))}
    try:
        versions = registry.versions()
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
        return Quality(f"evaluation.json of {part.name}", parse(document))
    if release is None:
        return None
    if release.evidence.disagreements:
        first, *more = release.evidence.disagreements
        others = f" (and {count(len(more), 'more disagreement')})" if more else ""
        notes.append(f"The evidence of {release.name} is not valid: {first}{others}.")
    if not release.evidence.metrics:
        return None
    return Quality(f"evidence.json of {release.name}", release.evidence)


def _release(registry: Registry, version: Version, notes: list[str]) -> Release:
    line = _audit_line(version, notes)
    decision = line.get("decision")
    champion = registry.champion(version.model, desired_state.ENVIRONMENTS[0])
    declared = desired_state.read(version.project, desired_state.ENVIRONMENTS[0])
    is_champion = champion is not None and champion.digest == version.digest
    against = champion
    if is_champion:
        former = str((decision or {}).get("champion") or version.version)
        against = registry.find(version.model, former) if former != version.version else None
    return Release(
        version=version,
        evidence=evidence.load(version),
        decision=decision,
        decided=str(line.get("at", "")),
        declared=declared is not None and declared.digest == version.digest,
        is_champion=is_champion,
        against=_side(against, evidence.load(against)) if against else None,
    )


def _side(version: Version, loaded: Evidence) -> Side:
    return Side(f"version {version.version}", version.digest, loaded)


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
            json.loads((version.evidence_folder / EVIDENCE_FILE).read_text(encoding="utf-8"))
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


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
