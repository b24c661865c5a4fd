"""Closes what a killed executor left open: its MLflow runs and its records say RUNNING for ever."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

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
        folder = home.jobs() / name
        # A run that was killed before its first record left nothing to close.
        with suppress(FileNotFoundError, ValueError):
            run = records.read(folder)
            for left in (*run.trials, run):
                closed = _closed(left, time.time()) if left.status in OPEN else left
                if tracking.is_running(left.id):
                    tracking.end(left.id, closed.status, left.parameters)
                records.write(closed, records.lineage(left.folder))
        jobs.forget(name)
    return names


def _closed(run: Run, ended: float) -> Run:
    return replace(
        run,
        status="Canceled",
        ended=ended,
        ended_by="executor-gone",
        trials=tuple(_closed(t, ended) if t.status in OPEN else t for t in run.trials),
        error=Problem(
            "executor-gone",
            f"the program that ran {run.name} was killed before it could close the run",
            hint="run the spec again; what was logged and written until then is kept",
        ),
    )
