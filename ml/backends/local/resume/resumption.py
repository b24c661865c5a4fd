"""Going on with a sweep or a pipeline that was stopped: killed, interrupted, or for want of room.

The plan is the one that was begun, the run the same run, in MLflow too. What had come to its end is
kept; what was cut off is run again under its name with its values, and its first attempt is set
aside: kept, and counted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ml.backends.base import Event, Run, Watch, unwatched
from ml.backends.local.environments import building
from ml.backends.local.environments.interpreters import Interpreters
from ml.backends.local.pipelines.outcome import NOT_STARTED, STEP_FAILED
from ml.backends.local.pool.pool import Pool
from ml.backends.local.preparation import Preparation, assets_of
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import Watchman
from ml.backends.local.resume import attempts, begun, recovery, whole
from ml.backends.local.resume.begun import Begun
from ml.backends.local.runs import jobs, records, runs
from ml.backends.local.tracking.tracking import Tracking
from ml.core import faults, home
from ml.core.errors import Problem, Refused
from ml.specs.plan.plan import PipelinePlan, SweepPlan


def plan_of(run: Run, timeout_s: float | None = None) -> SweepPlan | PipelinePlan:
    """The plan that the run would go on with; Refused when it cannot go on.

    `timeout_s` is a sweep's new limit, all the time together that it has been worked on.
    """
    _demand_whole(run)
    number = jobs.executor(run.name)
    if number is not None or jobs.is_alive(run.name):
        raise Refused(_still_runs(run.name, number))
    return _plan(run, begun.read(run.folder), timeout_s)


def is_complete(run: Run) -> bool:
    """Whether there is nothing to go on with, because everything is done."""
    return run.status == "Completed"


def was_stopped(run: Run) -> bool:
    """Whether something outside of the job ended it, or a part of it without which it failed."""
    if attempts.was_cut_off(run) or run.ended_by == "timeout":
        return True
    consequences = {NOT_STARTED, STEP_FAILED}
    return any(was_stopped(step) for step in run.steps if step.ended_by not in consequences)


def resume(
    run: Run,
    watch: Watch = unwatched,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Go on with the run until it ends; the run as it ended. Refused as `plan_of` says.

    Of two that do it at once one is refused. What another has completed meanwhile is returned.
    `say` hears what a person should know of.
    """
    with ExitStack() as stack:
        stack.enter_context(faults.as_refusals())
        interruption = stack.enter_context(Interruption())
        last_sign = stack.enter_context(_held(run.name))
        tracking = Tracking()
        stack.callback(tracking.close)
        recovery.close(tracking, run.name, last_sign)
        run = records.read(run.folder)
        if is_complete(run):
            return run
        former = begun.read(run.folder)
        plan = _plan(run, former, timeout_s)
        snapshots = former.snapshots()
        if run.id not in tracking.runs_in(run.folder):
            raise Refused(_not_tracked(run))
        for note in former.notes():
            say(note)
        recovery.close_abandoned(tracking)
        watchman = Watchman()
        stack.callback(watchman.close)
        pool = Pool(watchman)
        stack.callback(pool.close)
        interpreters = Interpreters()
        if former.isolated:
            interpreters = stack.enter_context(building.build_all(plan, watchman, say))
        attempts.end_processes(one.id for one in records.within(run.folder) if one.id)
        preparation = Preparation(
            tracking, pool, snapshots, interpreters, assets_of(plan), dict(former.code)
        )
        run = whole.carry_out(plan, preparation, run.folder, interruption, watch, goes_on=True)
    watch(Event("ended", run))
    return run


def find(wanted: str) -> Run:
    """The run of that name or id, as `runs.find`; one whose record is torn gets it written anew.

    What can be told of it is in its plan and in MLflow's store.
    """
    folder = home.jobs() / Path(wanted).name
    if not records.is_torn(folder):
        return runs.find(wanted)
    with faults.as_refusals(), _held(wanted):
        plan = begun.read(folder)
        tracking = Tracking()
        ids = tracking.runs_in(folder)
        if not ids:
            found = f"{folder / records.FILE} cannot be read, and MLflow has no run of it"
            raise Refused(Problem("record-unreadable", found, hint="run the spec again"))
        seen = [path.stat().st_mtime for path in folder.glob(f"*/*/{records.FILE}")]
        began = (folder / jobs.PLAN).stat().st_mtime
        run = Run(
            ids[0],
            folder.name,
            "Canceled",
            plan.plan.experiment,
            folder,
            began,
            max([began, *seen]),
            ended_by=recovery.EXECUTOR_GONE,
        )
        records.write(run, whole.lineage_of(plan))
        recovery.close(tracking, folder.name, None)
    return runs.find(wanted)


@contextmanager
def _held(name: str) -> Iterator[float | None]:
    """The run's lock; Refused when somebody else has it."""
    try:
        with jobs.hold(name) as last_sign:
            yield last_sign
    except jobs.Held as held:
        raise Refused(_still_runs(name, held.executor)) from None


def _plan(run: Run, former: Begun, timeout_s: float | None) -> SweepPlan | PipelinePlan:
    plan = former.plan
    if is_complete(run):
        return plan
    if isinstance(plan, SweepPlan) and run.ended_by == "timeout" and timeout_s is None:
        used = f"`limits.timeout` ({plan.timeout_s:g} s) is used up"
        hint = f"allow more in all: ml runs resume {run.name} --timeout SECONDS"
        raise Refused(Problem("out-of-time", used, "time that is left", hint, plan.place))
    if not was_stopped(run):
        raise Refused(_ended_by_itself(run))
    if timeout_s is None:
        return plan
    if not isinstance(plan, SweepPlan):
        raise Refused(Problem("no-timeout", f"{run.name} is a pipeline", "a sweep for --timeout"))
    if timeout_s <= run.active_s:
        found = f"--timeout {timeout_s:g}: {run.active_s:.0f} s have been used already"
        raise Refused(Problem("out-of-time", found, "more than that: it is the limit of all of it"))
    return replace(plan, timeout_s=timeout_s)


def _demand_whole(run: Run) -> None:
    whole_name = run.folder.relative_to(home.jobs()).parts[0]
    if whole_name != run.name:
        raise Refused(
            Problem(
                "part-of-a-run",
                f"{run.name} is a part of {whole_name} and goes on with it",
                "a run that was started by itself",
                f"ml runs resume {whole_name}",
            )
        )
    if not any((run.folder / parts).is_dir() for parts in records.PARTS.values()):
        raise Refused(
            Problem(
                "no-parts",
                f"{run.name} is a command job: nothing of it can be kept",
                "a sweep or a pipeline",
                "run its spec again",
            )
        )


def _not_tracked(run: Run) -> Problem:
    return Problem(
        "not-tracked",
        f"MLflow's store has no run {run.id} of {run.name} any more",
        f"the store that it was begun in: {home.database()}",
        "put it back, or run the spec again",
    )


def _still_runs(name: str, number: int | None) -> Problem:
    return Problem(
        "still-running",
        f"{name} goes on{f' in process {number}' if number else ''}",
        "a run that was stopped",
        f"follow it: ml runs logs --follow {name}; or end it: ml runs cancel {name}",
    )


def _ended_by_itself(run: Run) -> Problem:
    why = f": {run.error.found}" if run.error else ""
    return Problem(
        "ended-by-itself",
        f"{run.name} is {run.status}, and nothing had stopped it{why}",
        "a sweep or a pipeline that was killed, interrupted, or failed for want of this machine",
        "mend what failed, then run the spec again: completed steps of a pipeline are reused",
    )
