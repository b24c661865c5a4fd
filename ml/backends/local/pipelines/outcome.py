"""How a pipeline and its steps ended, as a person is told."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from ml.backends.base import Run, Status
from ml.backends.local.outcome import REASONS
from ml.core.errors import Problem
from ml.core.repository import shown
from ml.specs.plan.plan import PipelinePlan, StepPlan

# Why a step was never started.
NOT_STARTED = "not-started"
# What ends the steps that still run when one has failed and the others are not to go on.
STEP_FAILED = "step_failed"


def not_started(name: str, experiment: str, folder: Path, why: str) -> Run:
    """A step that nothing was done for: it has no run of its own."""
    now = time.time()
    problem = Problem(NOT_STARTED, why, severity="warning")
    return Run(
        id="",
        name=name,
        status="Canceled",
        experiment=experiment,
        folder=folder,
        started=now,
        ended=now,
        ended_by=NOT_STARTED,
        warnings=(problem,),
    )


def refused(name: str, experiment: str, folder: Path, step: StepPlan, problem: Problem) -> Run:
    """A step whose command could not be made of what the steps before it came to."""
    now = time.time()
    return Run(
        id="",
        name=name,
        status="Failed",
        experiment=experiment,
        folder=folder,
        started=now,
        ended=now,
        error=problem if problem.place else Problem(problem.code, problem.found, place=step.place),
    )


def of(
    plan: PipelinePlan, run: Run, steps: Sequence[Run], cut_short: str
) -> tuple[Status, Problem | None]:
    """The pipeline's status by its steps', and why it is not Completed."""
    if cut_short:
        done = sum(step.status == "Completed" for step in steps)
        why = REASONS.get(cut_short, cut_short)
        return "Canceled", Problem(
            "canceled",
            f"{why}; every step that was running was ended, {done} of {len(plan.steps)} had "
            "completed",
            hint=f"look at them: ls {shlex.quote(_there(run))}",
        )
    consequences = {NOT_STARTED, STEP_FAILED}
    failed = [s for s in steps if s.status != "Completed" and s.ended_by not in consequences]
    if not failed:
        return "Completed", None
    first = failed[0]
    name = first.name.rpartition(".")[2]
    skipped = sum(step.ended_by == NOT_STARTED for step in steps)
    others = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
    waiting = f"; {skipped} not started" if skipped else ""
    found = first.error.found if first.error else first.ended_by
    return "Failed", Problem(
        "step-failed",
        f"step `{name}` {'failed' if first.status == 'Failed' else 'was ended'}{others}{waiting}: "
        f"{found}",
        "every step Completed",
        (first.error.hint if first.error else "") or f"see what it did: ls {_there(first)}",
        first.error.place if first.error and first.error.place else plan.steps[name].place,
    )


def _there(run: Run) -> str:
    return shown(run.folder)
