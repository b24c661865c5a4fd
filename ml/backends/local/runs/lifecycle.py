"""Start, finish, close and reopen runs, in MLflow and in their records.

Commands, sweeps and pipelines start and finish their runs here. Runs of a killed executor are
closed. To resume a run, it is reopened; an interrupted trial or step is moved aside and runs again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.backends.local import registration
from ml.backends.local.processes import reaper
from ml.backends.local.runs import jobs, records
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.runs import OPEN, Pause, Run
from ml.core import faults, home
from ml.core.errors import Problem
from ml.specs.plan.plans import OutputPlan, Plan, Value

EXECUTOR_GONE = "executor-killed"
# Reasons of an interruption: not the command itself, its limits or the sweep's policy.
FROM_OUTSIDE = frozenset(
    {EXECUTOR_GONE, "SIGINT", "SIGTERM", "SIGHUP", "sweep_timeout", "sweep_failed", "step_failed"}
)
_POLL_S = 0.02


def start(
    tracking: Tracking,
    plan: Plan,
    folder: Path,
    name: str,
    origin: Mapping[str, Any],
    parameters: Mapping[str, Value | None],
    outputs: Mapping[str, Path] | None = None,
    former: tuple[Run, ...] = (),
    tags: Mapping[str, str] | None = None,
) -> Run:
    """Start a run in MLflow, write its record to the existing `folder`, and return it.

    `origin` is its lineage, `former` are earlier attempts; parameters that are None are left out.
    """
    run_id = tracking.start(
        plan.experiment, folder, name, {**plan.tags, **records.lineage_tags(origin), **(tags or {})}
    )
    run = Run(
        id=run_id,
        name=name,
        status="Running",
        experiment=plan.experiment,
        folder=folder,
        started=time.time(),
        parameters={key: value for key, value in parameters.items() if value is not None},
        outputs=outputs or {},
        former=former,
    )
    records.write(run, origin)
    return run


def finish(
    tracking: Tracking,
    run: Run,
    origin: Mapping[str, Any],
    outputs: Mapping[str, OutputPlan],
) -> Run:
    """Close a run that has its final status; if it completed, register its named outputs.

    The record is written first, so that an open MLflow run can later get its status from it. A
    sweep's parameters are those of its best trial, whose MLflow run already has them.
    """
    run = registration.register_outputs(outputs, run)
    records.write(run, origin)
    tracking.end(run.id, run.status, {} if run.trials else run.parameters)
    return run


def with_current_status(run: Run) -> Run:
    """Return the run; if it is open and its executor has ended, with the status Canceled."""
    if run.status not in OPEN or jobs.is_alive(run.name):
        return run
    return _closed(run, jobs.last_sign(run.name) or run.started)


def close_abandoned(tracking: Tracking) -> list[str]:
    """Close every abandoned run in MLflow (KILLED) and in its record; return their names.

    Runs that another process is resuming are skipped.
    """
    names = []
    for name in jobs.abandoned():
        with suppress(jobs.Held), jobs.hold(name) as last_sign:
            close_parts(tracking, name, last_sign)
            names.append(name)
    return names


def close_parts(tracking: Tracking, name: str, last_sign: float | None) -> None:
    """Close a run without an executor, with its trials and steps; the caller holds its lock.

    If only the record was closed (the disk was full), the MLflow run gets its status. The reaper
    has already ended the processes.
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


def reopen(
    tracking: Tracking,
    run: Run,
    origin: Mapping[str, Any],
    outputs: Mapping[str, Path] | None = None,
) -> Run:
    """Set an ended run to Running, record the pause, return the run with `outputs`."""
    now = time.time()
    why = run.ended_by or (run.error.code if run.error else "")
    pauses = (*run.pauses, Pause(run.ended or run.started, now, why))
    tracking.reopen(run.id, {"resumed": str(len(pauses))})
    again = Run(run.id, run.name, "Running", run.experiment, run.folder, run.started)
    again = replace(again, parameters=run.parameters, pauses=pauses, outputs=outputs or {})
    records.write(again, origin)
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
            hint=f"ml runs resume {run.folder.relative_to(home.jobs()).parts[0]}",
        ),
    )


def was_cut_off(run: Run) -> bool:
    """Return whether the run is open, was interrupted, or failed by a fault of this machine."""
    if run.status == "Failed":
        return run.error is not None and run.error.code in faults.CODES
    return run.status in OPEN or (run.status == "Canceled" and run.ended_by in FROM_OUTSIDE)


def has_lost_output(run: Run) -> bool:
    """Return whether an output of a completed run was removed later."""
    unwritten = any(warning.code == "output-empty" for warning in run.warnings)
    is_here = all(path.exists() for path in run.outputs.values())
    return run.status == "Completed" and not is_here and not unwritten


def resumable(tracking: Tracking, part: Path) -> Run | None:
    """Return a sweep or pipeline step's run that can be resumed; None without a valid record."""
    run = records.read_if_whole(part)
    return run if run is not None and run.id in tracking.runs_in(part) else None


def set_aside(tracking: Tracking, part: Path, name: str) -> tuple[Run, ...]:
    """Move an interrupted attempt of a trial or step aside; return all attempts, oldest first.

    Its folder is moved, and its MLflow run becomes KILLED. If this process is killed meanwhile, a
    second call completes it.
    """
    former = earlier(part)
    if part.exists():
        target = records.attempt_folder(part, len(former) + 1)
        ids = tracking.runs_in(part)
        end_processes(ids)
        for run_id in ids:
            tracking.set_aside(run_id, f"{name}, attempt {len(former) + 1}", target)
        target.parent.mkdir(exist_ok=True)
        part.rename(target)
        former.append(target)
    return tuple(run for run in map(records.read_if_whole, former) if run)


def earlier(part: Path) -> list[Path]:
    """Return the folders of attempts that were moved aside, oldest first."""
    folders: list[Path] = []
    while (folder := records.attempt_folder(part, len(folders) + 1)).exists():
        folders.append(folder)
    return folders


def end_processes(run_ids: Iterable[str]) -> None:
    """Kill every process of these runs, whose executor has ended; wait until none is left."""
    for run_id in run_ids:
        while reaper.send(signal.SIGKILL, run_id, None):
            time.sleep(_POLL_S)
