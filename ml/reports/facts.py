"""Collect the data of a run's report: record, metrics, evaluation, release, log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ml.backends.base import Backend
from ml.backends.model_registry import Version
from ml.backends.runs import Curve, Entry, Run, RunStore, TrackingUnavailable
from ml.core.errors import UserError
from ml.measures import fairness
from ml.measures.schema import Evaluation
from ml.release import audit
from ml.release.comparison import Comparison, MetricComparison, Side, compare
from ml.release.declaration import desired_state, projects
from ml.release.evidence import evidence
from ml.release.promotion.gate_check import load_gates
from ml.release.selection.selection import Selected, choose
from ml.release.versions import EVALUATION, parts, version_of
from ml.reports.formatting import count, redact_line
from ml.reports.sweep import Sweep, read_sweep
from policies.promotion.evidence import Evidence

# Maximum lines and bytes to show of the end of a log.
LOG_LINES, LOG_BYTES = 40, 16_384


@dataclass(frozen=True)
class Quality:
    """The evaluation of a model."""

    source: str  # the file that it was read from, such as `evaluation.json of RUN`
    evaluation: Evaluation
    folder: Path  # the folder with predictions.csv


@dataclass(frozen=True)
class Release:
    """The registered version of the run's model, and its state in the environment `local`."""

    version: Version
    evidence: Evidence
    # The gates' last decision, from the audit log; None if the gates never ran.
    decision: Mapping[str, Any] | None
    decided: str  # time of the decision; "" without one
    declared: bool  # whether release.yml declares this version
    is_champion: bool
    # The version to compare with: the champion, or the former champion if this version is the
    # champion; None without one.
    against: Side | None

    @property
    def name(self) -> str:
        """Return model and version."""
        return f"{self.version.model} {self.version.version}"

    @cached_property
    def comparison(self) -> Comparison:
        """Return the comparison of the model with `against`."""
        return compare(_side(self.version, self.evidence), self.against)

    def row(self, split: str) -> MetricComparison | None:
        """Return the comparison of the primary metric on a split; None if it has no such metric.

        If there is no paired difference, `comparison.unpaired` has the reason.
        """
        rows = (row for row in self.comparison.metrics if row.metric == self.comparison.primary)
        return next((row for row in rows if row.place == split), None)


@dataclass(frozen=True)
class Step:
    """A step of a pipeline, with its trials if it is a sweep."""

    run: Run
    name: str  # with the names of nested pipelines as a prefix: `inner.train`
    sweep: Sweep | None  # None if the step is no sweep
    selected: Selected | None


@dataclass(frozen=True)
class Facts:
    """The data of a run's report."""

    run: Run
    lineage: Mapping[str, Any]  # {} if the run's record is damaged
    sweep: Sweep | None
    selected: Selected | None  # ranking by the project's weights; None if nothing could be ranked
    curves: Mapping[str, Curve]  # learning curves by metric; {} for a sweep
    steps: tuple[Step, ...]  # the steps of a pipeline, each followed by the steps nested in it
    quality: Quality | None
    release: Release | None
    failed: Run | None  # the step, trial or run that failed; None if none failed
    log_path: Path | None  # log of `failed`
    log: tuple[str, ...]  # the log's last lines, without secrets
    notes: tuple[str, ...] = ()  # what could not be read, and why
    fewest: float = fairness.FEWEST  # minimum units of a slice that the gate `fairness` compares

    @property
    def kind(self) -> str:
        """The kind of the run: "sweep", "pipeline" or "job"."""
        return "sweep" if self.sweep else "pipeline" if self.steps else "job"


def _log(run: Run, store: RunStore, notes: list[str]) -> Path | None:
    try:
        return store.logs(run).get("0")
    except UserError as refused:
        notes.append(refused.problems[0].actual)
        return None


def gather(run: Run, backend: Backend) -> Facts:
    """Return all data for a run's report; its `notes` say what could not be read."""
    notes: list[str] = []
    store = backend.runs
    lineage = _lineage(run, store, notes)
    fewest: float = fairness.FEWEST
    with suppress(UserError):
        project = projects.find(backend.root, Entry(run, "", lineage).project)
        fewest = load_gates(project)["fairness"].number("min_count")
    sweep = read_sweep(run, lineage, store, notes) if run.trials else None
    release = find_release(run, backend, notes)
    failed = _failed(run)
    log_path = _log(failed, store, notes) if failed else None
    with suppress(TrackingUnavailable):
        run = replace(run, parameters=store.parameters(run))
    return Facts(
        run=run,
        lineage=lineage,
        sweep=sweep,
        selected=_select(run, backend, notes) if sweep else None,
        curves=_curves(run, store, notes) if sweep is None else {},
        steps=tuple(_steps(run, backend, notes)),
        quality=find_quality(run, release, notes),
        release=release,
        failed=failed,
        log_path=log_path,
        log=tuple(map(redact_line, _tail(log_path))),
        notes=tuple(notes),
        fewest=fewest,
    )


def _lineage(run: Run, store: RunStore, notes: list[str]) -> Mapping[str, Any]:
    try:
        return store.entry(run).lineage
    except (OSError, ValueError, KeyError) as error:
        notes.append(f"The lineage is missing: the record in {run.folder} is damaged ({error})")
        return {}


def _curves(run: Run, store: RunStore, notes: list[str]) -> Mapping[str, Curve]:
    try:
        return store.all_curves(run)
    except TrackingUnavailable as error:
        notes.append(f"There are no learning curves: the tracking store cannot be read ({error})")
        return {}


def _steps(run: Run, backend: Backend, notes: list[str], prefix: str = "") -> Iterator[Step]:
    store = backend.runs
    for step in run.steps:
        name = prefix + step.name.rpartition(".")[2]
        sweep = selected = None
        if step.trials:
            sweep = read_sweep(step, _lineage(step, store, notes), store, notes)
            selected = _select(step, backend, notes)
        yield Step(step, name, sweep, selected)
        yield from _steps(step, backend, notes, f"{name}.")


def _select(sweep: Run, backend: Backend, notes: list[str]) -> Selected | None:
    """Return the ranking of a sweep's trials by the project's weights; None if that is impossible.

    A mistake in select.yml is added to `notes`.
    """
    try:
        return choose(backend, [sweep])
    except UserError as refused:
        problem = refused.problems[0]
        if problem.place:  # a mistake in select.yml
            notes.append(f"No selection: {problem.place}: {problem.actual}")
        return None


def _tail(log: Path | None) -> list[str]:
    """Return the last lines of a log; read only the end of the file. [] for None."""
    if log is None:
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]


def _failed(run: Run) -> Run | None:
    """Return the first failed step or trial at the lowest level; None if none failed.

    A run without steps and trials is returned itself, unless it is queued or completed.
    """
    parts = [*run.steps, *run.trials]
    if not parts:
        return None if run.status in {"Completed", "Queued"} or not run.id else run
    failures = (_failed(part) for part in parts if part.status == "Failed")
    return next((part for part in failures if part), None)


def find_release(run: Run, backend: Backend, notes: list[str]) -> Release | None:
    """Return the registered version of a model of the run or its parts; None if there is none.

    If the registry cannot be read, adds a note and returns None.
    """
    try:
        version = version_of(backend.registry, run)
        return _release(backend, version, notes) if version else None
    except UserError as refused:
        notes.append(f"The registry cannot be read: {refused.problems[0].actual}")
        return None


def find_quality(run: Run, release: Release | None, notes: list[str]) -> Quality | None:
    """Return the evaluation in the run's output, or the one in the registered version's evidence.

    The version's is preferred if the run evaluated another model than the registered one. Returns
    None if there is no evaluation or it cannot be read; problems are added to `notes`.
    """
    for part in parts(run, EVALUATION)[:1]:
        try:
            evaluation = evidence.evaluation_of(part)
        except UserError as refused:
            notes.append(f"The evaluation is not shown: {refused.problems[0].actual}")
            return None
        registered = release.evidence.evaluation if release else evaluation
        is_same = evaluation.predictions == registered.predictions
        if release is None or is_same or not registered.metrics:
            return Quality(f"evaluation.json of {part.name}", evaluation, part.outputs[EVALUATION])
        notes.append(f"{part.name} evaluated another model. This page shows {release.name}.")
    if release is None:
        return None
    if release.evidence.mismatches:
        first, *more = release.evidence.mismatches
        others = f" (and {count(len(more), 'more mismatch', 'more mismatches')})" if more else ""
        notes.append(f"The evidence of {release.name} is not valid: {first}{others}.")
    evaluation, folder = release.evidence.evaluation, release.version.evidence_folder
    if not evaluation.metrics:
        return None
    return Quality(f"evidence.json of {release.name}", evaluation, folder)


def _release(backend: Backend, version: Version, notes: list[str]) -> Release:
    registry, line = backend.registry, _audit_line(backend, version, notes)
    decision = line.get("decision")
    champion = registry.champion(version.model, desired_state.ENVIRONMENTS[0])
    entry = desired_state.read(backend, version.project, desired_state.ENVIRONMENTS[0])
    is_champion = champion is not None and champion.digest == version.digest
    against = champion
    if is_champion:
        former = str((decision or {}).get("champion") or version.version)
        against = registry.find(version.model, former) if former != version.version else None
    return Release(
        version=version,
        evidence=evidence.load(backend, version),
        decision=decision,
        decided=str(line.get("at", "")),
        declared=entry is not None and entry.digest == version.digest,
        is_champion=is_champion,
        against=_side(against, evidence.load(backend, against)) if against else None,
    )


def _side(version: Version, loaded: Evidence) -> Side:
    return Side(f"version {version.version}", version.digest, loaded)


def _audit_line(backend: Backend, version: Version, notes: list[str]) -> Mapping[str, Any]:
    """Return the audit log's last line with a decision about the version; {} if there is none.

    Skips decisions that the version already is the champion: its approval is in an earlier line.
    """
    try:
        lines = audit.verify(backend.audit_log)
    except UserError as refused:
        notes.append(f"The gates' decision is not shown: {refused.problems[0].actual}")
        return {}
    for line in reversed(lines):
        decision = _mapping(line.get("decision"))
        request = _mapping(decision.get("request"))
        is_about = (request.get("model"), request.get("digest")) == (version.model, version.digest)
        if is_about and decision.get("outcome") != "already-champion":
            return line
    return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
