"""Trials and steps that were cut off: which ones were, and how they are set aside to run again."""

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

# Reasons from outside a run: not its own command, its limits or the policy of a sweep.
FROM_OUTSIDE = frozenset(
    {EXECUTOR_GONE, "SIGINT", "SIGTERM", "SIGHUP", "sweep_timeout", "sweep_failed", "step_failed"}
)
_POLL_S = 0.02


def was_cut_off(run: Run) -> bool:
    """Whether the run was ended from outside, or by a fault of this machine, before its time."""
    if run.status == "Failed":
        return run.error is not None and run.error.code in faults.CODES
    return run.status in OPEN or (run.status == "Canceled" and run.ended_by in FROM_OUTSIDE)


def has_lost_output(run: Run) -> bool:
    """Whether an output of a completed run was removed since."""
    unwritten = any(warning.code == "output-empty" for warning in run.warnings)
    is_here = all(path.exists() for path in run.outputs.values())
    return run.status == "Completed" and not is_here and not unwritten


def resumable(tracking: Tracking, part: Path) -> Run | None:
    """The record of a sweep or pipeline step that can be resumed; None when it cannot."""
    run = records.read_if_whole(part)
    return run if run is not None and run.id in tracking.runs_in(part) else None


def set_aside(tracking: Tracking, part: Path, name: str) -> tuple[Run, ...]:
    """Make room for another attempt at a trial or step; the earlier attempts, the first first.

    Its folder is moved, and its MLflow run becomes KILLED whatever it was. A program that is killed
    in the middle of this does it again with the same result.
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
    """The folders of the attempts that were set aside, the first first."""
    folders: list[Path] = []
    while (folder := records.attempt_folder(part, len(folders) + 1)).exists():
        folders.append(folder)
    return folders


def end_processes(run_ids: Iterable[str]) -> None:
    """End every process of runs whose executor is gone."""
    alive = list(run_ids)
    while alive := [run_id for run_id in alive if reaper.processes_of(run_id)]:
        for run_id in alive:
            reaper.send(signal.SIGKILL, run_id, None)
        time.sleep(_POLL_S)
