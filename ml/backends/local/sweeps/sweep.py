"""A sweep: trials as processes of their own, a few at a time, watched while they run."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ml.backends.base import Event, Run, Sample, Status, Watch
from ml.backends.local import files, registration
from ml.backends.local.execution import Execution, Session
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import cores
from ml.backends.local.resume import attempts, recovery
from ml.backends.local.resume.past import Past
from ml.backends.local.runs import jobs, lineage, records
from ml.backends.local.sweeps import outcome as sweep_outcome
from ml.backends.local.sweeps import sampled
from ml.backends.local.sweeps.board import Board
from ml.backends.local.tracking import history
from ml.core import faults
from ml.core.errors import Problem, Refused
from ml.specs.expressions.expressions import references
from ml.specs.plan.plan import SweepPlan
from ml.sweeps import samplers

TrialEvent = Literal["trial_started", "trial_metric", "trial_ended"]

# How often processes are looked at, those whose end wakes this program, and what they have logged.
POLL_S = 0.02
HEARD_S = 0.1
METRICS_S = 0.25
# What ended a trial when the whole sweep had run out of its time.
SWEEP_TIMEOUT = "sweep_timeout"


def concurrency(plan: SweepPlan) -> int:
    """Trials at once: as many as the plan allows, with a core for each process where there are.

    Azure ML gates it on the compute target's resources in the same way.
    """
    most = cores() // plan.trial.processes
    return max(1, min(plan.max_concurrent_trials, plan.max_total_trials, most))


def run_sweep(
    plan: SweepPlan,
    session: Session,
    folder: Path,
    interruption: Interruption,
    watch: Watch,
    past: Past | None = None,
) -> Run:
    """Run trials until the limits, the space, the time or the person's patience is used up."""
    sweep = Sweep(plan, session, folder, watch, past=past)
    failure = None
    try:
        with faults.as_refusals():
            sweep.go(interruption)
    except Refused as refused:
        failure = refused.problems[0]
        sweep.end_trials()
    return sweep.finish(failure)


class Sweep:
    """The state of one sweep; `go` drives it. With a `past` it goes on where that one stopped."""

    def __init__(
        self,
        plan: SweepPlan,
        session: Session,
        folder: Path,
        watch: Watch,
        name: str = "",
        at_once: int | None = None,
        past: Past | None = None,
    ) -> None:
        self._plan, self._session, self._watch = plan, session, watch
        self._limit = min(at_once or cores(), concurrency(plan))
        self._running: dict[str, tuple[Execution, samplers.Suggestion]] = {}
        self._board = Board(plan)
        self._again: deque[tuple[Sample, samplers.Suggestion]] = deque()
        self._cut_short = ""
        self._lineage = past.lineage if past else lineage.of_sweep(plan, session.lineage)
        seed = self._lineage["sampling"]["seed"]
        values = [r.name for r in references(plan.trial.command) if r.source == "search_space"]
        Execution(session, plan.trial, folder / "trials" / "0", "", dict.fromkeys(values, 0)).warm()
        self._sampler = samplers.make(plan, seed)
        if past:
            self.run = recovery.reopen(session.tracking, past.run, self._lineage)
            self._again = past.retake(self._board, self._sampler)
        else:
            (folder / "trials").mkdir(parents=True)
            name = name or folder.name
            tags = {**plan.tags, **lineage.tags(self._lineage), "sampling.seed": str(seed)}
            run_id = session.tracking.start(plan.experiment, folder, name, tags)
            now = time.time()
            self.run = Run(run_id, name, "Running", plan.experiment, folder, started=now)
            records.write(self.run, self._lineage)
        self.run = replace(self.run, trials=self._board.trials, best=self._board.best)
        self._feed = history.Feed(plan.primary_metric)
        self._looked = time.monotonic()
        self._began = self._looked - self.run.active_s

    def go(self, interruption: Interruption) -> None:
        """Start, watch and close trials until none is left to run."""
        self._watch(Event("started", self.run))
        beaten = 0.0
        while not self.turn(interruption.name, interruption.impatient):
            if time.monotonic() - beaten > HEARD_S:
                jobs.beat(self.run.folder.name)
                beaten = time.monotonic()
            heard = all(execution.is_heard for execution, _ in self._running.values())
            self._session.pool.wait(HEARD_S if heard else POLL_S)

    def widen(self, trials: int) -> int:
        """Let up to so many more trials run at once; how many more these are."""
        more = min(trials, concurrency(self._plan) - self._limit)
        self._limit += more
        return more

    def turn(self, stop: str, at_once: bool) -> bool:
        """Do what is to be done now; whether the sweep has ended.

        `stop` says why no more may start and what runs is to end, "" to go on; `at_once` that it
        is to end without grace.
        """
        reason = stop or (SWEEP_TIMEOUT if self._out_of_time() else "")
        for execution, _ in self._running.values():
            if reason:
                execution.stop(reason)
            if at_once:
                execution.kill()
        left = self._running or self._again or len(self._board) < self._plan.max_total_trials
        if reason and left:
            self._cut_short = reason
        while not reason and len(self._running) < self._limit and self._start_trial():
            pass
        if not self._running:
            return True
        if time.monotonic() - self._looked > METRICS_S:
            self._look()
        for name in [n for n, (execution, _) in self._running.items() if execution.poll()]:
            self._look()
            self._close(name)
        return False

    def _out_of_time(self) -> bool:
        limit = self._plan.timeout_s
        return limit is not None and time.monotonic() - self._began > limit

    def _start_trial(self) -> bool:
        """Whether there was one more to start."""
        found = self._next()
        if found is None:
            return False
        sample, suggestion = found
        name = f"{self.run.name}_{sample.number}"
        folder = self.run.folder / "trials" / str(sample.number)
        former = attempts.set_aside(self._session.tracking, folder, name)
        sampled.write(folder, sample)
        limit, trial = self._plan.trial_timeout_s, self._plan.trial
        trial = replace(trial, outputs=registration.unnamed(trial.outputs))
        execution = Execution(
            self._session,
            replace(trial, timeout_s=limit) if limit is not None else trial,
            folder,
            name,
            suggestion.values,
            self.run.id,
            "trial_timeout" if limit is not None else "timeout",
            former=former,
        )
        self._board.put(execution.start())
        self._running[execution.name] = execution, suggestion
        self._tell("trial_started", execution.name)
        return True

    def _next(self) -> tuple[Sample, samplers.Suggestion] | None:
        """What the next trial is given: first those that were cut off, then new ones."""
        if self._again:
            return self._again.popleft()
        number = len(self._board)
        found = None if number >= self._plan.max_total_trials else self._sampler.ask()
        if found is None:
            return None
        return Sample(number, found.values, found.origin), found

    def _look(self) -> None:
        """Take in what trials have logged since the last look, and apply the policy to it."""
        self._looked = time.monotonic()
        for name, before in self._board.take_in(self._feed.new()).items():
            self._tell("trial_metric", name)
            found = self._board.judge(name, before)
            execution = self._running[name][0]
            if found and execution.stop(found.policy):
                self._session.tracking.tag(execution.run.id, found.tags)

    def _close(self, name: str) -> None:
        execution, suggestion = self._running[name]
        curve = self._board.curve(name)
        self._board.put(execution.finish(sweep_outcome.of_metric(self._plan, execution.run, curve)))
        del self._running[name]
        self._sampler.tell(suggestion, curve, self._board.score(name))
        self._tell("trial_ended", name)

    def _tell(self, kind: TrialEvent, name: str) -> None:
        self.run = replace(self.run, trials=self._board.trials, best=self._board.best)
        self._watch(Event(kind, self.run, self._board[name]))

    def end_trials(self) -> None:
        """End and close what runs, and what began to: the sweep cannot go on."""
        for execution, _ in self._running.values():
            execution.stop("sweep_failed")
            execution.kill()
        while self._running:
            for name in [n for n, (execution, _) in self._running.items() if execution.poll()]:
                self._close(name)
            time.sleep(POLL_S)
        for run_id in self._session.tracking.running(self.run.folder / "trials"):
            self._session.tracking.end(run_id, "Canceled", {})

    def finish(self, failure: Problem | None) -> Run:
        """Close the sweep's own run: the best trial's metrics and outputs are the sweep's.

        `failure` is what this machine could not do; the trials have their own.
        """
        status, error = ("Failed", failure) if failure else self._status()
        best = self._board[self.run.best] if self.run.best else None
        outputs: dict[str, Path] = {}
        if best:
            score = self._board.score(best.name)
            tags = {"best_child_run_id": best.id, "best_child": best.name, "score": repr(score)}
            self._session.tracking.tag(self.run.id, tags)
            outputs = {k: files.promote(self.run.folder, k, v) for k, v in best.outputs.items()}
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            parameters=best.parameters if best else {},
            metrics=best.metrics if best else {},
            outputs=outputs,
            ended_by="timeout" if self._cut_short == SWEEP_TIMEOUT else self._cut_short,
            error=error,
            warnings=() if error else sweep_outcome.of_trials(self._board.trials),
        )
        self.run = registration.closed(self._plan.trial.outputs, self.run)
        self._session.tracking.end(self.run.id, self.run.status, {})
        records.write(self.run, self._lineage)
        return self.run

    def _status(self) -> tuple[Status, Problem | None]:
        if self._cut_short == SWEEP_TIMEOUT:
            return "Canceled", sweep_outcome.out_of_time(self._plan, self.run)
        if self._cut_short:
            return "Canceled", sweep_outcome.interrupted(self.run, self._cut_short)
        if self.run.best is None:
            return "Failed", sweep_outcome.nothing_to_rank(self._plan, self._board.trials)
        return "Completed", None
