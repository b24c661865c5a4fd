"""A sweep: trials as processes of their own, a few at a time, watched while they run."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path

from ml.backends.base import Event, Run, Status, Watch
from ml.backends.local import faults, history, jobs, lineage, records, verdict
from ml.backends.local.execution import Execution, Session
from ml.backends.local.interruption import Interruption
from ml.backends.local.process import cores
from ml.specs.plan import SweepPlan
from ml.specs.problems import Problem, Refused
from ml.sweeps import objective, policies, samplers

POLL_S = 0.02
METRICS_S = 0.25
# What ended a trial when the whole sweep had run out of its time.
SWEEP_TIMEOUT = "sweep_timeout"


def concurrency(plan: SweepPlan) -> int:
    """Trials at once: as many as the plan allows, and no more than there are cores.

    Azure ML gates it on the compute target's resources in the same way.
    """
    return max(1, min(plan.max_concurrent_trials, plan.max_total_trials, cores()))


def run_sweep(plan: SweepPlan, session: Session, interruption: Interruption, watch: Watch) -> Run:
    """Run trials until the limits, the space, the time or the person's patience is used up."""
    with jobs.new() as folder:
        sweep = Sweep(plan, session, folder, watch)
        failure = None
        try:
            with faults.told():
                sweep.go(interruption)
        except Refused as refused:
            failure = refused.problems[0]
        finally:
            sweep.end_processes()
        run = sweep.finish(interruption, failure)
    watch(Event("ended", run))
    return run


class Sweep:
    """The state of one sweep; `go` drives it."""

    def __init__(self, plan: SweepPlan, session: Session, folder: Path, watch: Watch) -> None:
        self._plan, self._session, self._watch = plan, session, watch
        seed = plan.seed if plan.seed is not None else secrets.randbelow(2**32)
        self._sampler = samplers.make(plan, seed)
        self._limit = concurrency(plan)
        self._running: dict[str, tuple[Execution, samplers.Suggestion]] = {}
        self._curves: dict[str, list[float]] = {}
        self._scores: dict[str, float | None] = {}
        self._trials: dict[str, Run] = {}
        self._lineage = session.lineage | {
            "spec": str(plan.place),
            "sampling": {"algorithm": plan.algorithm, "rule": plan.rule, "seed": seed},
            "objective": {"primary_metric": plan.primary_metric, "goal": plan.goal},
        }
        (folder / "trials").mkdir()
        run_id = session.tracking.start(
            plan.experiment,
            folder,
            folder.name,
            {**plan.tags, **lineage.tags(self._lineage), "sampling.seed": str(seed)},
        )
        self.run = Run(
            id=run_id,
            name=folder.name,
            status="Running",
            experiment=plan.experiment,
            folder=folder,
            started=time.time(),
        )
        records.write(self.run, self._lineage)
        self._feed = history.Feed(plan.primary_metric)
        self._began = self._looked = time.monotonic()

    def go(self, interruption: Interruption) -> None:
        """Start, watch and close trials until none is left to run."""
        self._watch(Event("started", self.run))
        while True:
            reason = interruption.name or (SWEEP_TIMEOUT if self._out_of_time() else "")
            for execution, _ in self._running.values():
                if reason:
                    execution.stop(reason)
                if interruption.impatient:
                    execution.kill()
            while not reason and len(self._running) < self._limit and self._start_trial():
                pass
            if not self._running:
                return
            if time.monotonic() - self._looked > METRICS_S:
                self._look()
            for name in [n for n, (execution, _) in self._running.items() if execution.poll()]:
                self._look()
                self._close(name)
            time.sleep(POLL_S)

    def _out_of_time(self) -> bool:
        limit = self._plan.timeout_s
        return limit is not None and time.monotonic() - self._began > limit

    def _start_trial(self) -> bool:
        """Whether there was one more to start."""
        number = len(self._trials)
        suggestion = None if number >= self._plan.max_total_trials else self._sampler.ask()
        if suggestion is None:
            return False
        name = f"{self.run.name}_{number}"
        limit = self._plan.trial_timeout_s
        trial = self._plan.trial
        execution = Execution(
            self._session,
            replace(trial, timeout_s=limit) if limit is not None else trial,
            self.run.folder / "trials" / str(number),
            name,
            suggestion.values,
            self.run.id,
            "trial_timeout" if limit is not None else "timeout",
        )
        self._running[name] = execution, suggestion
        self._curves[name] = []
        try:
            self._trials[name] = execution.start()
        except BaseException:
            del self._running[name], self._curves[name]
            raise
        self._tell("trial_started", name)
        return True

    def _look(self) -> None:
        """Take in what trials have logged since the last look, and apply the policy to it."""
        self._looked = time.monotonic()
        names = {execution.run.id: name for name, (execution, _) in self._running.items()}
        judged = {name: len(self._curves[name]) for name in names.values()}
        for run_id, value in self._feed.new():
            if name := names.get(run_id):
                self._curves[name].append(value)
        for name, before in judged.items():
            if len(self._curves[name]) > before:
                metrics = {self._plan.primary_metric: self._curves[name][-1]}
                self._trials[name] = replace(self._trials[name], metrics=metrics)
                self._tell("trial_metric", name)
                self._judge(name, before)

    def _judge(self, name: str, before: int) -> None:
        policy, execution = self._plan.early_termination, self._running[name][0]
        if policy is None or execution.ended_by:
            return
        for interval in range(before + 1, len(self._curves[name]) + 1):
            found = policies.judge(policy, self._plan.goal, self._curves, name, interval)
            if found:
                execution.stop(policy.type)
                self._session.tracking.tag(execution.run.id, {"ended_by": str(found)})
                return

    def _close(self, name: str) -> None:
        execution, suggestion = self._running.pop(name)
        curve = self._curves[name]
        run = execution.finish(verdict.of_metric(self._plan, execution.run, curve))
        self._trials[name] = run
        ranked = run.status == "Completed"
        self._scores[name] = objective.score(curve, self._plan.goal) if ranked else None
        self._sampler.tell(suggestion, curve, self._scores[name])
        self._tell("trial_ended", name)

    def _tell(self, kind: verdict.TrialEvent, name: str) -> None:
        self.run = replace(
            self.run,
            trials=tuple(self._trials.values()),
            best=objective.leader(self._scores, self._plan.goal),
        )
        self._watch(Event(kind, self.run, self._trials[name]))

    def end_processes(self) -> None:
        """Leave none running, whatever went wrong; the next run's recovery closes their records."""
        for execution, _ in self._running.values():
            execution.kill()
        for execution, _ in self._running.values():
            while not execution.poll():
                time.sleep(POLL_S)

    def finish(self, interruption: Interruption, failure: Problem | None) -> Run:
        """Close the sweep's own run: the best trial's metrics and outputs are the sweep's.

        `failure` is what this machine could not do; the trials have their own.
        """
        status, error = ("Failed", failure) if failure else self._status(interruption)
        best = self._trials[self.run.best] if self.run.best else None
        outputs: dict[str, Path] = {}
        if best:
            score = self._scores[best.name]
            tags = {"best_child_run_id": best.id, "best_child": best.name, "score": repr(score)}
            self._session.tracking.tag(self.run.id, tags)
            outputs = {name: self._promote(best, name) for name in best.outputs}
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            parameters=best.parameters if best else {},
            metrics=best.metrics if best else {},
            outputs=outputs,
            ended_by=interruption.name or ("timeout" if error and status == "Canceled" else ""),
            error=error,
        )
        self._session.tracking.end(self.run.id, status, {})
        records.write(self.run, self._lineage)
        return self.run

    def _status(self, interruption: Interruption) -> tuple[Status, Problem | None]:
        trials = tuple(self._trials.values())
        if interruption.name:
            return "Canceled", verdict.interrupted(self.run, interruption.name)
        if self._out_of_time() and any(trial.ended_by == SWEEP_TIMEOUT for trial in trials):
            return "Canceled", verdict.out_of_time(self._plan, self.run)
        if self.run.best is None:
            return "Failed", verdict.nothing_to_rank(self._plan, trials)
        return "Completed", None

    def _promote(self, best: Run, name: str) -> Path:
        link = self.run.folder / "outputs" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(Path("..") / best.outputs[name].relative_to(self.run.folder))
        return link
