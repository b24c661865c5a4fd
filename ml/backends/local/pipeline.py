"""A pipeline: its steps as runs of their own, as many at once as there are cores."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.backends.base import Event, Kind, Run, Watch
from ml.backends.local import (
    jobs,
    lineage,
    pipeline_outcome,
    records,
    reuse,
)
from ml.backends.local.binding import bound
from ml.backends.local.execution import Execution, Session
from ml.backends.local.interruption import Interruption
from ml.backends.local.preparation import Preparation
from ml.backends.local.process import cores
from ml.backends.local.sweep import Sweep, concurrency
from ml.backends.local.tasks import CommandTask, SweepTask, Task
from ml.specs.plan import (
    CommandPlan,
    FromStep,
    PipelinePlan,
    StepPlan,
    SweepPlan,
    commands,
)
from ml.specs.problems import Refused

POLL_S = 0.02


def run_pipeline(
    plan: PipelinePlan, preparation: Preparation, interruption: Interruption, watch: Watch
) -> Run:
    """Run the steps until every one has ended, or none may start any more."""
    with jobs.new() as folder:
        pipeline = Pipeline(plan, preparation, folder, watch, cores=cores())
        watch(Event("started", pipeline.run))
        while not pipeline.turn(interruption.name, interruption.impatient):
            time.sleep(POLL_S)
        run = pipeline.finish()
    watch(Event("ended", run))
    return run


class Pipeline:
    """The state of one pipeline, nested or not (see `ml.backends.local.tasks.Task`).

    `cores` are for all of its steps together. A step gets its share when it starts; what becomes
    ready later does so because another ended, and gets that one's.
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
    ) -> None:
        self._plan, self._preparation, self._watch = plan, preparation, watch
        self._free = cores
        self._waiting = dict(plan.steps)
        self._running: dict[str, tuple[Task, int, str]] = {}
        self._ended: dict[str, Run] = {}
        self._written: dict[FromStep, Path] = {}
        self._cut_short = self._stop = ""
        self._lineage = _lineage(plan, parent)
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
        elif self._waiting:
            for name in list(self._waiting):
                self._leave_out(name, "the pipeline was stopped before its turn came")
        return not self._running and not self._waiting

    def finish(self) -> Run:
        """See Task: the pipeline's outputs are those of its steps."""
        steps = tuple(self._ended.values())
        status, error = pipeline_outcome.of(self._plan, self.run, steps, self._cut_short)
        outputs = {}
        for name, origin in self._plan.origins.items():
            path = self._written.get(origin)
            if path is not None and name in self._plan.outputs:
                outputs[name] = self._promote(name, path)
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            outputs=outputs,
            ended_by=self._cut_short,
            error=error,
            steps=steps,
        )
        self._preparation.tracking.end(self.run.id, status, self.run.parameters)
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
        try:
            if isinstance(plan, PipelinePlan):
                task: Task = Pipeline(
                    plan, self._preparation, folder, self._relay, label, self.run.id, share
                )
            else:
                session = self._session(plan, share)
                if step.is_deterministic:
                    code = session.snapshot.digest if session.snapshot else ""
                    key = reuse.key(plan, code, self._preparation.digest, session.interpreter)
                kept = reuse.find(key) if key and not self._plan.force_rerun else None
                if kept is not None:
                    self._end(name, reuse.take_over(kept, folder, label, plan, session), key, kept)
                    return
                task = self._task(plan, session, folder, label, share)
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
        self, plan: CommandPlan | SweepPlan, session: Session, folder: Path, label: str, share: int
    ) -> Task:
        if isinstance(plan, SweepPlan):
            return SweepTask(Sweep(plan, session, folder, self._relay, label, share))
        execution = Execution(session, plan, folder, label, parent=self.run.id)
        execution.start()
        return CommandTask(execution)

    def _close(self, name: str) -> None:
        task, share, key = self._running.pop(name)
        self._free += share
        self._end(name, task.finish(), key)

    def _end(self, name: str, run: Run, key: str = "", kept: reuse.Kept | None = None) -> None:
        """Take in a step that has ended: what it wrote, for the steps that wait for it."""
        self._ended[name] = run
        # A sweep's outputs are links to its best trial's; MLflow refuses to read through one.
        paths = {output: path.resolve() for output, path in run.outputs.items()}
        for output in self._asked_of(name) - set(paths):
            # Azure ML's implicit output: what the step left in ./outputs and ./logs.
            former = kept.paths.get(output) if kept else None
            if former or run.id:
                paths[output] = former or self._preparation.tracking.artifacts_of(run.id)
        self._written |= {FromStep(name, output): path for output, path in paths.items()}
        if run.status == "Completed" and key:
            reuse.keep(key, run, paths, self._preparation.digest)
        if run.status != "Completed" and not self._plan.continue_on_step_failure:
            self._stop = pipeline_outcome.STEP_FAILED
        self._tell("step_ended", run)

    def _asked_of(self, name: str) -> set[str]:
        """The outputs of a step that other steps, or the pipeline, take."""
        sources = [s for step in self._plan.steps.values() for s in step.sources.values()]
        taken = [*sources, *self._plan.origins.values()]
        return {s.output for s in taken if isinstance(s, FromStep) and s.step == name}

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

    def _promote(self, name: str, path: Path) -> Path:
        """The step's output among the pipeline's own, as a link that survives a move of both."""
        link = self.run.folder / "outputs" / name
        link.parent.mkdir(exist_ok=True)
        inside = path.is_relative_to(self.run.folder)
        link.symlink_to(Path("..") / path.relative_to(self.run.folder) if inside else path)
        return link


def _lineage(plan: PipelinePlan, parent: str | None) -> dict[str, Any]:
    """Where the pipeline came from; its steps have the code and the environment."""
    folder = next((c.code for c in commands(plan) if c.code), Path(plan.place.path).parent)
    return {
        "spec": str(plan.place),
        "code": lineage.code_of(folder, None),
        "data": lineage.data_of(plan.inputs),
        "environment": "",
        "parent": parent,
    }
