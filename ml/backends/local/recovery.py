"""Closes what a killed executor left open: its MLflow runs and its records say RUNNING for ever."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from ml.backends.base import Run
from ml.backends.local import home, jobs, records
from ml.backends.local.tracking import Tracking
from ml.specs.problems import Problem

OPEN = frozenset({"Queued", "Running"})


def as_it_is(run: Run) -> Run:
    """The run as a reader should see it: Canceled when nobody is running it any more."""
    if run.status not in OPEN or jobs.is_alive(run.name):
        return run
    return _closed(run, run.started)


def close_abandoned(tracking: Tracking) -> list[str]:
    """Mark every abandoned run KILLED, in MLflow and in its record; their names.

    A run whose record was closed, but not its MLflow run (the disk was full), gets the record's
    status. Processes were ended by the executor's watchman already.
    """
    names = jobs.abandoned()
    for name in names:
        known = _records(home.jobs() / name)
        for run_id in tracking.running(home.jobs() / name):
            left = known.get(run_id)
            status = left.status if left and left.status not in OPEN else "Canceled"
            tracking.end(run_id, status, left.parameters if left else {})
        for run in known.values():
            if run.status in OPEN:
                records.write(_closed(run, time.time()), records.lineage(run.folder))
        jobs.forget(name)
    return names


def _records(folder: Path) -> dict[str, Run]:
    """The runs of a job folder by id, trials first; none when it was killed before its first."""
    try:
        run = records.read(folder)
    except (FileNotFoundError, ValueError):
        return {}
    return {one.id: one for one in (*run.below(), run)}


def _closed(run: Run, ended: float) -> Run:
    return replace(
        run,
        status="Canceled",
        ended=ended,
        ended_by="executor-gone",
        trials=tuple(_closed(t, ended) if t.status in OPEN else t for t in run.trials),
        steps=tuple(_closed(s, ended) if s.status in OPEN else s for s in run.steps),
        error=Problem(
            "executor-gone",
            f"the program that ran {run.name} was killed before it could close the run",
            hint="run the spec again; what was logged and written until then is kept",
        ),
    )
