"""Run a job: the `Task` protocol of commands, sweeps and pipelines, and the loop that polls it.

The steps of a pipeline are separate runs, up to one per core at once. `drive` polls the job and
passes it the signals that `processes.interruption` collected. `processes.process` ends the job's
processes (SIGTERM, then SIGKILL after the grace period). If the executor is killed,
`processes.reaper` ends them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

from ml.backends.local import files, outcome
from ml.backends.local.execution import reuse
from ml.backends.local.execution.binding import bind, used_outputs
from ml.backends.local.execution.command import Execution, Preparation, Session
from ml.backends.local.execution.sweep import Sweep, concurrency
from ml.backends.local.execution.trials import saved_sweep
from ml.backends.local.pool.pool import Pool
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.runs import jobs, lifecycle, records
from ml.backends.runs import Event, Kind, Run, Status, Watch
from ml.core.errors import Problem, UserError
from ml.specs.plan.plans import (
    AutoMLPlan,
    CommandPlan,
    FromStep,
    PipelinePlan,
    Plan,
    StepPlan,
    SweepPlan,
)

# Polling interval of tasks in seconds; the end of a forked process wakes `drive` earlier.
POLL_S = 0.02


class Task(Protocol):
    """A command, a sweep or a pipeline that was started: a job, or a step of one."""

    @property
    def run(self) -> Run:
        """The current state of the run."""
        ...

    def turn(self, stop: str, at_once: bool) -> bool:
        """Poll the task and advance it; return whether it has ended. Called until it has.

        `stop` is the reason for ending it, "" to continue; `at_once` skips the grace period.
        """
        ...

    def widen(self, cores: int) -> int:
        """Offer more cores; return how many the task takes."""
        ...

    def finish(self) -> Run:
        """Close the run of the ended task and return it."""
        ...


def drive(task: Task, pool: Pool, interruption: Interruption, watch: Watch) -> Run:
    """Poll a job until it has ended, and return its ended run; collected signals end it."""
    watch(Event("started", task.run))
    while not task.turn(interruption.name, interruption.impatient):
        jobs.beat(task.run.folder.name)
        watch(Event("running", task.run))
        pool.wait(POLL_S)
    return task.finish()


def start_task(
    plan: Plan,
    preparation: Preparation,
    folder: Path,
    watch: Watch,
    cores: int,
    *,
    name: str = "",
    parent: str | None = None,
    stopped: Run | None = None,
    former: tuple[Run, ...] = (),
    echo: TextIO | None = None,
) -> Task:
    """Start the plan in `folder`, or resume the run that was `stopped` there.

    A step has a `name`, its `parent`'s run id, and perhaps `former` attempts.
    """
    name = name or folder.name
    if isinstance(plan, PipelinePlan):
        return Pipeline(plan, preparation, folder, watch, name, parent, cores, stopped)
    assert not isinstance(plan, AutoMLPlan)  # refused before it starts
    session = session_for(plan, preparation, parent, cores)
    if isinstance(plan, SweepPlan):
        saved = saved_sweep(folder, plan.primary_metric) if stopped else None
        return Sweep(plan, session, folder, watch, name, cores, saved)
    # A pipeline's run shows a step's metrics only after the step's end.
    watch_metrics = watch if parent is None else None
    execution = Execution(
        session,
        plan,
        folder,
        name,
        parent=parent,
        former=former,
        stopped=stopped,
        echo=echo,
        watch=watch_metrics,
    )
    execution.start()
    return execution


def session_for(
    plan: CommandPlan | SweepPlan, preparation: Preparation, parent: str | None, cores: int
) -> Session:
    """Return the session of the command, or of each trial of the sweep."""
    if isinstance(plan, CommandPlan):
        return preparation.session(plan, parent, cores)
    threads = max(1, cores // min(cores, concurrency(plan)))
    return preparation.session(plan.trial, parent, threads)


class Pipeline:
    """A pipeline, nested or not, as a `Task`; if `stopped` is given, that run is resumed.

    All steps share `cores`. Ready steps divide the free cores equally when they start. Cores that
    no ready step needs go to running sweeps.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        preparation: Preparation,
        folder: Path,
        watch: Watch,
        name: str,
        parent: str | None,
        cores: int,
        stopped: Run | None,
    ) -> None:
        self._plan, self._preparation, self._watch = plan, preparation, watch
        self._free = cores
        self._waiting = dict(plan.steps)
        self._running: dict[str, tuple[Task, int, str]] = {}
        self._ended: dict[str, Run] = {}
        self._written: dict[FromStep, Path] = {}
        self._cut_short = self._stop = ""
        if stopped:
            self._lineage = records.lineage(folder)
            self.run = lifecycle.reopen(preparation.tracking, stopped, self._lineage)
            self._retake(stopped)
            return
        self._lineage = records.pipeline_lineage(plan, parent, preparation.code)
        (folder / "steps").mkdir(parents=True)
        literals = {key: data.value for key, data in plan.inputs.items() if data.is_literal}
        self.run = lifecycle.start(
            preparation.tracking, plan, folder, name, self._lineage, literals
        )

    def _retake(self, stopped: Run) -> None:
        """Restore the ended steps of a stopped pipeline; the others run again or resume later."""
        for run in sorted(stopped.steps, key=lambda step: step.ended or 0.0):
            name = run.folder.name
            wrote = records.original(run)
            if (
                not run.id
                or lifecycle.was_cut_off(run)
                or lifecycle.has_lost_output(run)
                or not wrote
            ):
                continue
            del self._waiting[name]
            artifacts = self._preparation.tracking.artifacts_of(wrote.id)
            self._take_in(name, run, dict.fromkeys(used_outputs(self._plan, name), artifacts))
        self._refresh()

    def turn(self, stop: str, at_once: bool) -> bool:
        """See `Task`."""
        if stop and (self._waiting or self._running):
            self._cut_short = stop
        why = stop or self._stop
        for name, (task, _, _) in list(self._running.items()):
            if task.turn(why, at_once):
                self._close(name)
        if not self._stop and not stop:
            self._start_ready()
            self._free -= self.widen(self._free)
        elif self._waiting:
            for name in list(self._waiting):
                self._leave_out(name, "the pipeline was stopped before its turn came")
        return not self._running and not self._waiting

    def widen(self, cores: int) -> int:
        """See `Task`."""
        taken = 0
        for name, (task, share, key) in self._running.items():
            more = task.widen(cores - taken)
            self._running[name] = task, share + more, key
            taken += more
        return taken

    def finish(self) -> Run:
        """See `Task`: the pipeline's outputs are the bound outputs of its steps."""
        steps = tuple(self._ended.values())
        status, error = outcome.pipeline_status(self._plan, self.run, steps, self._cut_short)
        outputs = {}
        for name, origin in self._plan.origins.items():
            path = self._written.get(origin)
            if path is not None and name in self._plan.outputs:
                outputs[name] = files.promote(self.run.folder, name, path)
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            outputs=outputs,
            ended_by=self._cut_short,
            error=error,
            steps=steps,
        )
        self.run = lifecycle.finish(
            self._preparation.tracking, self.run, self._lineage, self._plan.outputs
        )
        return self.run

    def _start_ready(self) -> None:
        """Start the steps whose dependencies completed; skip those that depend on a failed one."""
        for name, step in list(self._waiting.items()):
            ended = [needed for needed in step.after if needed in self._ended]
            lost = [needed for needed in ended if self._ended[needed].status != "Completed"]
            if lost:
                self._leave_out(name, f"it needs step `{lost[0]}`, which did not complete")
        ready = [
            (name, step)
            for name, step in self._waiting.items()
            if all(needed in self._ended for needed in step.after)
        ]
        for number, (name, step) in enumerate(ready):
            if self._free > 0:
                del self._waiting[name]
                self._start(name, step, max(1, self._free // (len(ready) - number)))

    def _start(self, name: str, step: StepPlan, share: int) -> None:
        """Start a step with `share` cores, or reuse the outputs of a cached run."""
        plan = bind(step, self._plan, self._written)
        folder, label, key = self.run.folder / "steps" / name, f"{self.run.name}.{name}", ""
        preparation, tracking = self._preparation, self._preparation.tracking
        has_parts = isinstance(plan, SweepPlan | PipelinePlan)
        stopped = lifecycle.resumable(tracking, folder) if has_parts else None
        former = () if stopped else lifecycle.set_aside(tracking, folder, label)
        try:
            if step.is_deterministic and not isinstance(plan, PipelinePlan):
                session = session_for(plan, preparation, self.run.id, share)
                code = session.snapshot.digest if session.snapshot else ""
                key = reuse.key(plan, code, preparation.digest, session.interpreter)
                # A step must run, not be reused, to simulate its preemption.
                again = stopped or self._plan.force_rerun or preparation.evictions.after_s
                hit = None if again else reuse.find(key)
                if hit is not None:
                    self._end(name, reuse.take_over(hit, folder, label, plan, session), key, hit)
                    return
            task = start_task(
                plan,
                preparation,
                folder,
                self._relay,
                share,
                name=label,
                parent=self.run.id,
                stopped=stopped,
                former=former,
            )
        except UserError as refused:
            self._end(name, self._unstarted_run(name, "Failed", error=_at(refused, step)))
            return
        self._free -= share
        self._running[name] = task, share, key
        self._tell("step_started", task.run)

    def _close(self, name: str) -> None:
        task, share, key = self._running.pop(name)
        self._free += share
        self._end(name, task.finish(), key)

    def _end(self, name: str, run: Run, key: str = "", hit: reuse.CachedStep | None = None) -> None:
        paths = self._take_in(name, run, hit.paths if hit else {})
        if run.status == "Completed" and key:
            reuse.keep(key, run, paths, self._preparation.digest)
        self._tell("step_ended", run)

    def _take_in(self, name: str, run: Run, former: Mapping[str, Path]) -> dict[str, Path]:
        """Record a step that has ended; return the paths of its outputs, for later steps.

        `former` has the folders of implicit outputs that an earlier run wrote, by output.
        """
        self._ended[name] = run
        # A sweep's outputs are symbolic links to its best trial's, which MLflow does not follow.
        paths = {output: path.resolve() for output, path in run.outputs.items()}
        for output in used_outputs(self._plan, name) - set(paths):
            # Azure ML's implicit output: the files that the step wrote to ./outputs and ./logs.
            if output in former or run.id:
                artifacts_of = self._preparation.tracking.artifacts_of
                paths[output] = former.get(output) or artifacts_of(run.id)
        self._written |= {FromStep(name, output): path for output, path in paths.items()}
        if run.status != "Completed" and not self._plan.continue_on_step_failure:
            self._stop = outcome.STEP_FAILED
        return paths

    def _leave_out(self, name: str, why: str) -> None:
        """Cancel a step that cannot start, with the reason as a warning."""
        del self._waiting[name]
        warning = Problem(
            outcome.NOT_STARTED,
            f"step `{name}` was not started: {why}",
            severity="warning",
        )
        self._ended[name] = self._unstarted_run(
            name, "Canceled", ended_by=outcome.NOT_STARTED, warnings=(warning,)
        )
        self._tell("step_ended", self._ended[name])

    def _unstarted_run(self, name: str, status: Status, **fields: Any) -> Run:
        """Return the run of a step that was not started; its id is ""."""
        now, run = time.time(), self.run
        label, folder = f"{run.name}.{name}", run.folder / "steps" / name
        return Run("", label, status, run.experiment, folder, now, now, **fields)

    def _relay(self, event: Event) -> None:
        """Forward an event of a sweep step or a nested pipeline as one of this pipeline."""
        self._refresh()
        step = event.step or event.run
        self._watch(Event(event.kind, self.run, event.trial, step))

    def _tell(self, kind: Kind, step: Run) -> None:
        self._refresh()
        records.write(self.run, self._lineage)
        self._watch(Event(kind, self.run, step=step))

    def _refresh(self) -> None:
        going = [task.run for task, _, _ in self._running.values()]
        steps = sorted([*self._ended.values(), *going], key=lambda step: step.started)
        self.run = replace(self.run, steps=tuple(steps))


def _at(refused: UserError, step: StepPlan) -> Problem:
    """Return the first problem, with the step's place if it has none."""
    problem = refused.problems[0]
    return problem if problem.place else Problem(problem.code, problem.actual, place=step.place)
