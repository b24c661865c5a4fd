"""Everything a report says of a run, gathered from its record, MLflow's store and the registry."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.backends.base import Run
from ml.backends.local import outcome
from ml.backends.local.files import log
from ml.backends.local.runs import records
from ml.core.errors import Refused
from ml.release.selection import contenders
from ml.release.selection.contenders import Selected
from ml.reports import recorded
from ml.reports.privacy import line_of
from ml.reports.recorded import Curve
from ml.reports.released import Quality, Release, find_quality, find_release
from ml.reports.sweeps import Sweep, sweep_of

LOG_LINES = 40


@dataclass(frozen=True)
class Step:
    """A step of a pipeline, and its trials when it is a sweep.

    The name says which nested pipelines it is in: `inner.train`.
    """

    run: Run
    name: str
    sweep: Sweep | None
    selected: Selected | None


@dataclass(frozen=True)
class Facts:
    """A run and all that is known of it.

    `steps` are a pipeline's, those of nested pipelines after the one that they are in. `told` is
    the run whose log says what went wrong, None when nothing did, and `log` the end of that log.
    `notes` say what could not be read and why.
    """

    run: Run
    lineage: Mapping[str, Any]
    sweep: Sweep | None
    selected: Selected | None
    curves: Mapping[str, Curve]
    steps: tuple[Step, ...]
    quality: Quality | None
    release: Release | None
    told: Run | None
    log: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


def gather(run: Run) -> Facts:
    """What is known of the run; what cannot be read is in `notes`, nothing is raised for it."""
    notes: list[str] = []
    lineage = _lineage(run, notes)
    sweep = sweep_of(run, lineage, notes) if run.trials else None
    release = find_release(run, notes)
    told = _told(run)
    lines = outcome.last_lines(log(told.folder), LOG_LINES) if told else []
    return Facts(
        run=run,
        lineage=lineage,
        sweep=sweep,
        selected=_selected(run, notes) if sweep else None,
        curves=_curves(run, notes) if sweep is None else {},
        steps=tuple(_steps(run, notes)),
        quality=find_quality(run, release, notes),
        release=release,
        told=told,
        log=tuple(line_of(line) for line in lines),
        notes=tuple(notes),
    )


def _curves(run: Run, notes: list[str]) -> Mapping[str, Curve]:
    try:
        return recorded.metrics(run.id)
    except sqlite3.Error as error:
        notes.append(f"No learning curves: the tracking store cannot be read ({error})")
        return {}


def _steps(run: Run, notes: list[str], above: str = "") -> Iterator[Step]:
    for step in run.steps:
        name = above + step.name.rpartition(".")[2]
        sweep = sweep_of(step, _lineage(step, notes), notes) if step.trials else None
        selected = _selected(step, notes) if sweep else None
        yield Step(step, name, sweep, selected)
        yield from _steps(step, notes, f"{name}.")


def _selected(sweep: Run, notes: list[str]) -> Selected | None:
    """The ranking by the project's weights; None when nothing could be ranked."""
    try:
        return contenders.choose([sweep])
    except Refused as refused:
        if refused.problems[0].code == "select-file":
            notes.append(f"No selection: {refused.problems[0].place}: {refused.problems[0].found}")
        return None


def _told(run: Run) -> Run | None:
    """The first part that failed, or the run itself when it ended badly without any part."""
    parts = [*run.steps, *run.trials]
    if not parts:
        return None if run.status in {"Completed", "Queued"} or not run.id else run
    return next((told for part in parts if part.status == "Failed" and (told := _told(part))), None)


def _lineage(run: Run, notes: list[str]) -> Mapping[str, Any]:
    try:
        return records.lineage(run.folder)
    except (OSError, ValueError, KeyError) as error:
        notes.append(f"Lineage is missing: {run.folder / records.FILE} cannot be read ({error})")
        return {}
