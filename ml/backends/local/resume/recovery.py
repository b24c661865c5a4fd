"""Closes the MLflow runs and the records that a killed executor left RUNNING."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ml.backends.base import OPEN, Pause, Run
from ml.backends.local.runs import jobs, records
from ml.backends.local.tracking.tracking import Tracking
from ml.core import home
from ml.core.errors import Problem

EXECUTOR_GONE = "executor-gone"


def as_it_is(run: Run) -> Run:
    """The run as a reader should see it: Canceled when its executor is gone."""
    if run.status not in OPEN or jobs.is_alive(run.name):
        return run
    return _closed(run, jobs.last_sign(run.name) or run.started)


def close_abandoned(tracking: Tracking) -> list[str]:
    """Mark every abandoned run KILLED, in MLflow and in its record; their names.

    A run that another process resumes at this moment is left to that process.
    """
    names = []
    for name in jobs.abandoned():
        with suppress(jobs.Held), jobs.hold(name) as last_sign:
            close(tracking, name, last_sign)
            names.append(name)
    return names


def close(tracking: Tracking, name: str, last_sign: float | None) -> None:
    """Close the open parts of a run without an executor; the caller holds its lock.

    A run whose record was closed, but not its MLflow run (the disk was full), gets the status of
    the record. The executor's watchman has ended the processes already.
    """
    recorded = {run.id: run for run in records.within(home.jobs() / name)}
    for run_id in tracking.running(home.jobs() / name):
        run = recorded.get(run_id)
        status = run.status if run and run.status not in OPEN else "Canceled"
        tracking.end(run_id, status, run.parameters if run else {})
    for run in recorded.values():
        if run.status in OPEN:
            ended = max(last_sign or 0.0, run.started)
            records.write(_closed(run, ended), records.lineage(run.folder))


def reopen(tracking: Tracking, run: Run, lineage: Mapping[str, Any]) -> Run:
    """Let a closed sweep or pipeline be Running again; the pause is recorded."""
    now = time.time()
    why = run.ended_by or (run.error.code if run.error else "")
    pauses = (*run.pauses, Pause(run.ended or run.started, now, why))
    tracking.reopen(run.id, {"resumed": str(len(pauses))})
    again = Run(
        run.id,
        run.name,
        "Running",
        run.experiment,
        run.folder,
        run.started,
        parameters=run.parameters,
        pauses=pauses,
    )
    records.write(again, lineage)
    return again


def _closed(run: Run, ended: float) -> Run:
    return replace(
        run,
        status="Canceled",
        ended=ended,
        ended_by=EXECUTOR_GONE,
        trials=tuple(_closed(t, ended) if t.status in OPEN else t for t in run.trials),
        steps=tuple(_closed(s, ended) if s.status in OPEN else s for s in run.steps),
        error=Problem(
            EXECUTOR_GONE,
            f"the program that ran {run.name} was killed before it could close the run",
            hint=f"ml runs resume {run.name}"
            if run.trials or run.steps
            else "run the spec again; what was logged and written until then is kept",
        ),
    )
