"""Trials and steps that were cut off: which were, and how they make room to be run again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from pathlib import Path

from ml.backends.base import OPEN, Run
from ml.backends.local.processes import reaper
from ml.backends.local.resume.recovery import EXECUTOR_GONE
from ml.backends.local.runs import records
from ml.backends.local.tracking.tracking import Tracking
from ml.core import faults

# What ends a run from outside: neither its own command, nor its limits, nor a sweep's policy.
FROM_OUTSIDE = frozenset(
    {EXECUTOR_GONE, "SIGINT", "SIGTERM", "SIGHUP", "sweep_timeout", "sweep_failed", "step_failed"}
)
_POLL_S = 0.02


def was_cut_off(run: Run) -> bool:
    """Whether the run was ended from outside, or by a fault of this machine, before its time."""
    if run.status == "Failed":
        return run.error is not None and run.error.code in faults.CODES
    return run.status in OPEN or (run.status == "Canceled" and run.ended_by in FROM_OUTSIDE)


def has_lost(run: Run) -> bool:
    """Whether an output of a run that completed is gone since."""
    unwritten = any(warning.code == "output-empty" for warning in run.warnings)
    is_here = all(path.exists() for path in run.outputs.values())
    return run.status == "Completed" and not is_here and not unwritten


def begun(tracking: Tracking, part: Path) -> Run | None:
    """The record of a sweep or pipeline in a pipeline that can go on; None when little is left."""
    run = records.read_if_whole(part)
    return run if run is not None and run.id in tracking.runs_in(part) else None


def set_aside(tracking: Tracking, part: Path, name: str) -> tuple[Run, ...]:
    """Make room for another attempt at a trial or step; the earlier attempts, the first first.

    What it left goes to a folder of its own, and its MLflow run is KILLED whatever it was: a
    program that is killed in the middle of this does it again to the same end.
    """
    former = earlier(part)
    if part.exists():
        kept = records.attempt_folder(part, len(former) + 1)
        ids = tracking.runs_in(part)
        end_processes(ids)
        for run_id in ids:
            tracking.set_aside(run_id, f"{name}, attempt {len(former) + 1}", kept)
        kept.parent.mkdir(exist_ok=True)
        part.rename(kept)
        former.append(kept)
    return tuple(run for run in map(records.read_if_whole, former) if run)


def earlier(part: Path) -> list[Path]:
    """The folders of the attempts that were set aside, the first first."""
    found: list[Path] = []
    while (folder := records.attempt_folder(part, len(found) + 1)).exists():
        found.append(folder)
    return found


def end_processes(run_ids: Iterable[str]) -> None:
    """End whatever processes are left of runs that nobody looks after any more."""
    left = list(run_ids)
    while left := [one for one in left if reaper.processes_of(one)]:
        for run_id in left:
            reaper.send(signal.SIGKILL, run_id, None)
        time.sleep(_POLL_S)
