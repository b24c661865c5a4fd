"""Resume runs that were killed or interrupted, or that a full disk stopped.

The run continues with its saved plan and the same MLflow run. A command restarts in its folder, as
on a spot node. Ended steps and trials are kept. An interrupted one runs again with the same name,
values and mounted outputs; other files of its first attempt are moved aside and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.backends.local.environments import building
from ml.backends.local.execution import saved_plan
from ml.backends.local.execution.command import Preparation, assets_of
from ml.backends.local.execution.pipeline import drive, start_task
from ml.backends.local.execution.saved_plan import SavedPlan
from ml.backends.local.outcome import NOT_STARTED, STEP_FAILED
from ml.backends.local.pool.pool import Pool
from ml.backends.local.process_environment import Interpreters
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import Reaper, cores
from ml.backends.local.runs import jobs, lifecycle, records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.runs import Event, Run, Watch, unwatched
from ml.core import faults, home
from ml.core.errors import Problem, UserError
from ml.specs.plan.plans import CommandPlan, PipelinePlan, SweepPlan


def plan_of(run: Run, timeout_s: float | None = None) -> saved_plan.CompiledPlan:
    """See `ml.backends.base.Resumption`."""
    jobs.check_is_root(run, "resume", "is resumed")
    process = jobs.executor(run.name)
    if process is not None or jobs.is_alive(run.name):
        raise UserError(_still_runs(run.name, process))
    return _plan(run, saved_plan.read(run.folder), timeout_s)


def was_stopped(run: Run) -> bool:
    """Return whether the run or a step was interrupted, had a full disk, or reached its limit.

    Steps that another step's failure stopped do not count.
    """
    if lifecycle.was_cut_off(run) or run.ended_by == "timeout":
        return True
    consequences = {NOT_STARTED, STEP_FAILED}
    return any(was_stopped(step) for step in run.steps if step.ended_by not in consequences)


def resume(
    run: Run,
    watch: Watch = unwatched,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Resume the run and return it after its end. Raise UserError as `plan_of`.

    If two processes resume a run at once, one raises UserError. A run that another process has
    completed is returned unchanged. `say` receives notes for the user.
    """
    with ExitStack() as stack:
        stack.enter_context(faults.as_user_errors())
        interruption = stack.enter_context(Interruption())
        last_sign = stack.enter_context(_held(run.name))
        tracking = stack.enter_context(closing(Tracking()))
        lifecycle.close_parts(tracking, run.name, last_sign)
        run = records.read(run.folder)
        if run.status == "Completed":
            return run
        saved = saved_plan.read(run.folder)
        plan = _plan(run, saved, timeout_s)
        snapshots = saved.snapshots()
        if run.id not in tracking.runs_in(run.folder):
            actual = f"MLflow's store has no run {run.id} of {run.name} any more"
            expected = f"the store that it was started in: {home.database()}"
            hint = "restore it, or run the spec again"
            raise UserError(Problem("not-tracked", actual, expected, hint))
        for note in saved.notes():
            say(note)
        lifecycle.close_abandoned(tracking)
        reaper = stack.enter_context(closing(Reaper()))
        pool = stack.enter_context(closing(Pool(reaper)))
        interpreters: Interpreters = {}
        if saved.isolated:
            interpreters = stack.enter_context(building.build_all(plan, reaper, say))
        lifecycle.end_processes(part.id for part in records.within(run.folder) if part.id)
        preparation = Preparation(
            tracking, pool, snapshots, interpreters, assets_of(plan), dict(saved.code)
        )
        task = start_task(plan, preparation, run.folder, watch, cores(), stopped=run)
        run = drive(task, pool, interruption, watch)
    watch(Event("ended", run))
    return run


def find(name: str) -> Run:
    """Return the run with that name or id, as `LocalRuns.find`.

    A damaged record is first restored from the saved plan and MLflow's store.
    """
    folder = home.jobs() / Path(name).name
    if not records.is_damaged(folder):
        return LocalRuns().find(name)
    with faults.as_user_errors(), _held(name):
        saved = saved_plan.read(folder)
        tracking = Tracking()
        ids = tracking.runs_in(folder)
        if not ids:
            reason = f"{folder / records.FILE} cannot be read, and MLflow has no run of it"
            raise UserError(Problem("record-unreadable", reason, hint="run the spec again"))
        started = (folder / jobs.PLAN).stat().st_mtime
        changes = [path.stat().st_mtime for path in folder.glob(f"*/*/{records.FILE}")]
        run = Run(ids[0], folder.name, "Canceled", saved.plan.experiment, folder, started)
        run = replace(run, ended=max([started, *changes]), ended_by=lifecycle.EXECUTOR_GONE)
        records.write(run, _lineage(saved))
        lifecycle.close_parts(tracking, folder.name, None)
    return LocalRuns().find(name)


@contextmanager
def _held(name: str) -> Iterator[float | None]:
    """Hold the run's lock in the block; raise UserError if another process has it.

    Yield the time of the last sign of life of the previous executor; None if unknown.
    """
    try:
        with jobs.hold(name) as last_sign:
            yield last_sign
    except jobs.Held as held:
        raise UserError(_still_runs(name, held.executor)) from None


def _plan(run: Run, saved: SavedPlan, timeout_s: float | None) -> saved_plan.CompiledPlan:
    plan = saved.plan
    if run.status == "Completed":
        return plan
    if isinstance(plan, SweepPlan) and run.ended_by == "timeout" and timeout_s is None:
        used = f"`limits.timeout` ({plan.timeout_s:g} s) is used up"
        hint = f"raise the limit:  ml runs resume {run.name} --timeout SECONDS"
        raise UserError(Problem("timeout-exceeded", used, "remaining time", hint, plan.place))
    if not was_stopped(run):
        raise UserError(_ended_by_itself(run))
    if timeout_s is None:
        return plan
    if not isinstance(plan, SweepPlan):
        raise UserError(
            Problem("no-timeout", f"{run.name} is not a sweep", "a sweep", "omit --timeout")
        )
    if timeout_s <= run.active_s:
        actual = f"--timeout {timeout_s:g}: the attempts so far ran for {run.active_s:.0f} s"
        hint = f"--timeout {run.active_s + timeout_s:.0f}"
        raise UserError.with_code(
            "timeout-exceeded", actual, "a limit above the time of all attempts together", hint
        )
    return replace(plan, timeout_s=timeout_s)


def _lineage(saved: SavedPlan) -> dict[str, Any]:
    """Return the lineage for the record of a run, computed from its saved plan."""
    plan = saved.plan
    if isinstance(plan, PipelinePlan):
        return records.pipeline_lineage(plan, None, saved.code)
    command = plan if isinstance(plan, CommandPlan) else plan.trial
    origin = records.lineage_of(command, None, saved.code[command.code])
    return origin if isinstance(plan, CommandPlan) else records.sweep_lineage(plan, origin)


def _still_runs(name: str, process: int | None) -> Problem:
    return Problem(
        "still-running",
        f"{name} is still running{f' in process {process}' if process else ''}",
        "a run that was stopped",
        f"follow it: ml runs logs --follow {name}; or end it: ml runs cancel {name}",
    )


def _ended_by_itself(run: Run) -> Problem:
    why = f": {run.error.actual}" if run.error else ""
    return Problem(
        "not-interrupted",
        f"{run.name} is {run.status}, and was not interrupted{why}",
        "a run that was killed, interrupted, or failed because of this machine",
        "fix the failure, then run the spec again: completed steps of a pipeline are reused",
    )
