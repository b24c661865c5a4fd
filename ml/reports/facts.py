"""Everything that is known of a run: its record, metrics, evaluation, release and log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.base import Backend
from ml.backends.runs import Curve, Run, RunStore, TrackingUnavailable
from ml.core.errors import Refused
from ml.release.selection.selection import Selected, choose
from ml.reports.formatting import redact_line
from ml.reports.release import Quality, Release, find_quality, find_release
from ml.reports.sweep import Sweep, read_sweep

# The end of a log that is shown.
LOG_LINES, LOG_BYTES = 40, 16_384


@dataclass(frozen=True)
class Step:
    """A step of a pipeline, and its trials when it is a sweep.

    The name contains the nested pipelines that it is in: `inner.train`.
    """

    run: Run
    name: str
    sweep: Sweep | None
    selected: Selected | None


@dataclass(frozen=True)
class Facts:
    """A run and all that is known of it.

    `steps` are a pipeline's, those of a nested pipeline after the step that it is. `failed` is
    the part of the run that failed, None when none did, `log_path` its log and `log` the end of
    that. `notes` name what could not be read and why.
    """

    run: Run
    lineage: Mapping[str, Any]
    sweep: Sweep | None
    selected: Selected | None
    curves: Mapping[str, Curve]
    steps: tuple[Step, ...]
    quality: Quality | None
    release: Release | None
    failed: Run | None
    log_path: Path | None
    log: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What the run is of: a sweep, a pipeline or a job."""
        return "sweep" if self.sweep else "pipeline" if self.steps else "job"


def gather(run: Run, backend: Backend) -> Facts:
    """All that is known of the run; what cannot be read is named in `notes`."""
    notes: list[str] = []
    store = backend.runs
    lineage = _lineage(run, store, notes)
    sweep = read_sweep(run, lineage, store, notes) if run.trials else None
    release = find_release(run, backend.registry, notes)
    failed = _failed(run)
    log_path = store.logs(failed).get("0") if failed else None
    return Facts(
        run=run,
        lineage=lineage,
        sweep=sweep,
        selected=_select(run, store, notes) if sweep else None,
        curves=_curves(run, store, notes) if sweep is None else {},
        steps=tuple(_steps(run, store, notes)),
        quality=find_quality(run, release, notes),
        release=release,
        failed=failed,
        log_path=log_path,
        log=tuple(map(redact_line, _tail(log_path))),
        notes=tuple(notes),
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


def _steps(run: Run, store: RunStore, notes: list[str], prefix: str = "") -> Iterator[Step]:
    for step in run.steps:
        name = prefix + step.name.rpartition(".")[2]
        sweep = selected = None
        if step.trials:
            sweep = read_sweep(step, _lineage(step, store, notes), store, notes)
            selected = _select(step, store, notes)
        yield Step(step, name, sweep, selected)
        yield from _steps(step, store, notes, f"{name}.")


def _select(sweep: Run, store: RunStore, notes: list[str]) -> Selected | None:
    """The ranking by the project's weights; None when nothing could be ranked."""
    try:
        return choose(store, [sweep])
    except Refused as refused:
        problem = refused.problems[0]
        if problem.place:  # a mistake in select.yml
            notes.append(f"No selection: {problem.place}: {problem.found}")
        return None


def _tail(log: Path | None) -> list[str]:
    """The last lines of a log, which may have gigabytes."""
    if log is None:
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]


def _failed(run: Run) -> Run | None:
    """The first part that failed, or the run itself when it ended badly and has no parts."""
    parts = [*run.steps, *run.trials]
    if not parts:
        return None if run.status in {"Completed", "Queued"} or not run.id else run
    failures = (_failed(part) for part in parts if part.status == "Failed")
    return next((part for part in failures if part), None)
