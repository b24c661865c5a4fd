"""A pipeline: its steps as runs of their own, as many at once as there are cores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ml.backends.base import Event, Kind, Run, Watch
from ml.backends.local import files, registration
from ml.backends.local.execution import Execution, Session
from ml.backends.local.pipelines import outcome as pipeline_outcome
from ml.backends.local.pipelines import reuse
from ml.backends.local.pipelines.binding import asked_of, bound
from ml.backends.local.pipelines.tasks import CommandTask, SweepTask, Task
from ml.backends.local.preparation import Preparation
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import cores
from ml.backends.local.resume import attempts, recovery
from ml.backends.local.runs import jobs, lineage, records
from ml.backends.local.sweeps.state import saved_sweep
from ml.backends.local.sweeps.sweep import Sweep, concurrency
from ml.core.errors import Refused
from ml.specs.plan.plan import CommandPlan, FromStep, PipelinePlan, StepPlan, SweepPlan

POLL_S = 0.02


def run_pipeline(
    plan: PipelinePlan,
    preparation: Preparation,
    folder: Path,
    interruption: Interruption,
    watch: Watch,
    past: Run | None = None,
) -> Run:
    """Run the steps until every one has ended, or none may start any more."""
    pipeline = Pipeline(plan, preparation, folder, watch, cores=cores(), past=past)
    watch(Event("started", pipeline.run))
    while not pipeline.turn(interruption.name, interruption.impatient):
        jobs.beat(folder.name)
        preparation.pool.wait(POLL_S)
    return pipeline.finish()


class Pipeline:
    """The state of one pipeline, nested or not (see `ml.backends.local.pipelines.tasks.Task`).

    `cores` are for all of its steps together. A step gets its share when it starts; what becomes
    ready later does so because another ended, and gets that one's. What nobody waits for goes to
    the sweeps that are under way.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        preparation: Preparation,
        folder: Path,
        watch: Watch,
        name: str = "",
        parent: str | None = None,
        cores: int = 1,
        past: Run | None = None,
    ) -> None:
        self._plan, self._preparation, self._watch = plan, preparation, watch
        self._free = cores
        self._waiting = dict(plan.steps)
        self._running: dict[str, tuple[Task, int, str]] = {}
        self._ended: dict[str, Run] = {}
        self._written: dict[FromStep, Path] = {}
        self._cut_short = self._stop = ""
        if past:
            self._lineage = records.lineage(folder)
            self.run = recovery.reopen(preparation.tracking, past, self._lineage)
            self._retake(past)
            return
        self._lineage = lineage.of_pipeline(plan, parent)
        name = name or folder.name
        (folder / "steps").mkdir(parents=True)
        run_id = preparation.tracking.start(
            plan.experiment, folder, name, {**plan.tags, **lineage.tags(self._lineage)}
        )
        literals = {k: data.value for k, data in plan.inputs.items() if data.is_literal}
        self.run = Run(
            id=run_id,
            name=name,
            status="Running",
            experiment=plan.experiment,
            folder=folder,
            started=time.time(),
            parameters={key: value for key, value in literals.items() if value is not None},
        )
        records.write(self.run, self._lineage)

    def _retake(self, past: Run) -> None:
        """Take in the steps that had ended; the others wait, and go on where they were."""
        for run in sorted(past.steps, key=lambda step: step.ended or 0.0):
            name = run.folder.name
            wrote = records.original(run)
            if (
                not run.id
                or attempts.was_cut_off(run)
                or attempts.has_lost_output(run)
                or not wrote
            ):
                continue
            del self._waiting[name]
            artifacts = self._preparation.tracking.artifacts_of(wrote.id)
            self._take_in(name, run, dict.fromkeys(asked_of(self._plan, name), artifacts))
        self._refresh()

    def turn(self, stop: str, at_once: bool) -> bool:
        """See Task."""
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
        """See Task."""
        taken = 0
        for name, (task, share, key) in self._running.items():
            more = task.widen(cores - taken)
            self._running[name] = task, share + more, key
            taken += more
        return taken

    def finish(self) -> Run:
        """See Task: the pipeline's outputs are those of its steps."""
        steps = tuple(self._ended.values())
        status, error = pipeline_outcome.of(self._plan, self.run, steps, self._cut_short)
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
        self.run = registration.register_outputs(self._plan.outputs, self.run)
        self._preparation.tracking.end(self.run.id, self.run.status, self.run.parameters)
        records.write(self.run, self._lineage)
        return self.run

    def _start_ready(self) -> None:
        """Start what no longer waits for anything, and leave out what waits in vain."""
        for name, step in list(self._waiting.items()):
            lost = [one for one in step.after if one in self._ended and not self._completed(one)]
            if lost:
                self._leave_out(name, f"it needs step `{lost[0]}`, which did not complete")
        ready = [
            (name, step)
            for name, step in self._waiting.items()
            if all(other in self._ended for other in step.after)
        ]
        for left, (name, step) in zip(range(len(ready), 0, -1), ready, strict=True):
            if self._free > 0:
                del self._waiting[name]
                self._start(name, step, max(1, self._free // left))

    def _completed(self, name: str) -> bool:
        return self._ended[name].status == "Completed"

    def _start(self, name: str, step: StepPlan, share: int) -> None:
        """Start a step with its share of the cores, or take over what it came to before."""
        plan = bound(step, self._plan, self._written)
        folder, label, key = self.run.folder / "steps" / name, f"{self.run.name}.{name}", ""
        tracking = self._preparation.tracking
        goes_on = isinstance(plan, SweepPlan | PipelinePlan)
        past = attempts.resumable(tracking, folder) if goes_on else None
        former = () if past else attempts.set_aside(tracking, folder, label)
        try:
            if isinstance(plan, PipelinePlan):
                task: Task = Pipeline(
                    plan, self._preparation, folder, self._relay, label, self.run.id, share, past
                )
            else:
                session = self._session(plan, share)
                if step.is_deterministic:
                    code = session.snapshot.digest if session.snapshot else ""
                    key = reuse.key(plan, code, self._preparation.digest, session.interpreter)
                # What is to be evicted has to run.
                again = self._plan.force_rerun or self._preparation.evictions.after_s
                kept = reuse.find(key) if key and not past and not again else None
                if kept is not None:
                    self._end(name, reuse.take_over(kept, folder, label, plan, session), key, kept)
                    return
                task = self._task(plan, session, folder, label, share, past, former)
        except Refused as refused:
            problem = refused.problems[0]
            run = pipeline_outcome.refused(label, self._plan.experiment, folder, step, problem)
            self._end(name, run)
            return
        self._free -= share
        self._running[name] = task, share, key
        self._tell("step_started", task.run)

    def _session(self, plan: CommandPlan | SweepPlan, share: int) -> Session:
        if isinstance(plan, CommandPlan):
            return self._preparation.session(plan, self.run.id, share)
        threads = max(1, share // min(share, concurrency(plan)))
        return self._preparation.session(plan.trial, self.run.id, threads)

    def _task(
        self,
        plan: CommandPlan | SweepPlan,
        session: Session,
        folder: Path,
        label: str,
        share: int,
        past: Run | None,
        former: tuple[Run, ...],
    ) -> Task:
        if isinstance(plan, SweepPlan):
            stopped = saved_sweep(folder, plan.primary_metric) if past else None
            return SweepTask(Sweep(plan, session, folder, self._relay, label, share, stopped))
        execution = Execution(session, plan, folder, label, parent=self.run.id, former=former)
        execution.start()
        return CommandTask(execution)

    def _close(self, name: str) -> None:
        task, share, key = self._running.pop(name)
        self._free += share
        self._end(name, task.finish(), key)

    def _end(self, name: str, run: Run, key: str = "", kept: reuse.Kept | None = None) -> None:
        paths = self._take_in(name, run, kept.paths if kept else {})
        if run.status == "Completed" and key:
            reuse.keep(key, run, paths, self._preparation.digest)
        self._tell("step_ended", run)

    def _take_in(self, name: str, run: Run, former: Mapping[str, Path]) -> dict[str, Path]:
        """A step that has ended: what it wrote, for the steps that wait for it.

        `former` is where outputs lie that are not its own.
        """
        self._ended[name] = run
        # A sweep's outputs are links to its best trial's; MLflow refuses to read through one.
        paths = {output: path.resolve() for output, path in run.outputs.items()}
        for output in asked_of(self._plan, name) - set(paths):
            # Azure ML's implicit output: what the step left in ./outputs and ./logs.
            if output in former or run.id:
                own = self._preparation.tracking.artifacts_of
                paths[output] = former.get(output) or own(run.id)
        self._written |= {FromStep(name, output): path for output, path in paths.items()}
        if run.status != "Completed" and not self._plan.continue_on_step_failure:
            self._stop = pipeline_outcome.STEP_FAILED
        return paths

    def _leave_out(self, name: str, why: str) -> None:
        del self._waiting[name]
        folder = self.run.folder / "steps" / name
        label = f"{self.run.name}.{name}"
        self._ended[name] = pipeline_outcome.not_started(
            label, self._plan.experiment, folder, f"step `{name}` was not started: {why}"
        )
        self._tell("step_ended", self._ended[name])

    def _relay(self, event: Event) -> None:
        """What a sweep step or a nested pipeline tells, as something that happened in this one."""
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
