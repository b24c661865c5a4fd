"""Run a sweep: concurrent trials in separate processes, with an early termination policy."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal

from ml.automl.cache import FOLDER as CACHE
from ml.backends.local import files, outcome, registration
from ml.backends.local.execution.command import Execution, Session
from ml.backends.local.execution.trials import SavedSweep, Trials
from ml.backends.local.processes.process import cores
from ml.backends.local.runs import lifecycle, records
from ml.backends.local.tracking import reader
from ml.backends.runs import Event, Run, Status, Watch
from ml.core import faults
from ml.core.errors import Problem, UserError
from ml.specs.expressions import references
from ml.specs.plan.plans import Sample, SweepPlan
from ml.sweeps import objective
from ml.sweeps.samplers import sampler_for

TrialEvent = Literal["trial_started", "trial_metric", "trial_ended"]

# Intervals in seconds for reading trials' metrics, and for polling trials that were killed.
METRICS_S = 0.25
POLL_S = 0.02
# The reason for ending a trial when the sweep itself has run out of time.
SWEEP_TIMEOUT = "sweep_timeout"
# AutoML: the share of the time limit reserved for ensembles; `ended_by` of a trial that would use
# it; the search stops if this many trials failed and none completed.
KEPT_BACK, TIME_OF_ENSEMBLES, HOPELESS = 0.15, "time_of_ensembles", 3
# Candidates for an ensemble: this many best trials, and the best of each other family.
MEMBERS = 20


def concurrency(plan: SweepPlan) -> int:
    """Return the number of concurrent trials: limited by the plan and the cores, at least one.

    Azure ML limits it by the compute target's resources in the same way.
    """
    by_cores = cores() // plan.trial.processes
    return max(1, min(plan.max_concurrent_trials, plan.max_total_trials, by_cores))


class Sweep:
    """A sweep as a `Task`, with up to `cores` concurrent trials; `saved` is one to resume."""

    def __init__(
        self,
        plan: SweepPlan,
        session: Session,
        folder: Path,
        watch: Watch,
        name: str,
        cores: int,
        saved: SavedSweep | None = None,
    ) -> None:
        self._plan, self._session, self._watch = plan, session, watch
        self._limit = min(cores, concurrency(plan))
        self._running: dict[str, Execution] = {}
        self._trials = Trials(plan)
        self._repeats: deque[Sample] = deque()
        self._cut_short = ""
        self._failure: Problem | None = None
        # Whether a trial ended with EX_DATAERR: data or settings are invalid for all trials.
        self._is_refused = False
        self._lineage = saved.lineage if saved else records.sweep_lineage(plan, session.lineage)
        seed = self._lineage["sampling"]["seed"]
        values = [r.name for r in references(plan.trial.command) if r.source == "search_space"]
        Execution(session, plan.trial, folder / "trials" / "0", "", dict.fromkeys(values, 0)).warm()
        self._sampler = sampler_for(plan, seed)
        if saved:
            self.run = lifecycle.reopen(session.tracking, saved.run, self._lineage)
            self._repeats = saved.restore(self._trials, self._sampler)
        else:
            (folder / "trials").mkdir(parents=True)
            tags = {"sampling.seed": str(seed)}
            self.run = lifecycle.start(
                session.tracking, plan, folder, name, self._lineage, {}, tags=tags
            )
        self.run = replace(self.run, trials=self._trials.runs, best=self._trials.best)
        self._feed = reader.Feed(plan.primary_metric)
        self._read_at = time.monotonic()
        self._start_time = self._read_at - self.run.active_s
        # Durations of completed trials in seconds, and whether a first trial has begun.
        self._took: list[float] = []
        self._has_begun = saved is not None or plan.ending is None

    def widen(self, cores: int) -> int:
        """See `Task`: each additional core allows one more concurrent trial."""
        more = min(cores, concurrency(self._plan) - self._limit)
        self._limit += more
        return more

    def turn(self, stop: str, at_once: bool) -> bool:
        """See `Task`: poll, close and start trials once. A full disk or a store error ends it."""
        try:
            with faults.as_user_errors():
                return self._turn(stop, at_once)
        except UserError as refused:
            self._failure = refused.problems[0]
            self._end_trials()
            return True

    def _turn(self, stop: str, at_once: bool) -> bool:
        if not self._has_begun:
            # Count AutoML's time limit from its first trial: Azure does not count a node's start.
            self._start_time = time.monotonic()
            self._has_begun = any(trial.has_begun for trial in self._running.values())
        limit = math.inf if self._plan.timeout_s is None else self._plan.timeout_s
        reason = stop or (SWEEP_TIMEOUT if self._elapsed() > limit else "")
        for execution in self._running.values():
            if reason:
                execution.stop(reason)
            if at_once:
                execution.kill()
        if reason and (self._running or self._repeats or self._is_searching()):
            self._cut_short = reason
        elif self._left() <= 0 and self._members():
            for execution in self._running.values():
                if not self._is_ensemble(execution.run):
                    execution.stop(TIME_OF_ENSEMBLES)
        if time.monotonic() - self._read_at > METRICS_S:
            self._read_metrics()
        for name in [name for name, execution in self._running.items() if execution.poll()]:
            self._read_metrics()
            self._close(name)
        # Start trials after closing others, so free places are filled in the same turn.
        while not reason and len(self._running) < self._limit and self._start_trial():
            pass
        return not self._running

    def _elapsed(self) -> float:
        return time.monotonic() - self._start_time

    def _left(self) -> float:
        """Return the seconds left for sampled trials, without the ensembles' reserve."""
        limit, ending = self._plan.timeout_s, self._plan.ending
        if limit is None or ending is None:
            return math.inf
        return limit * (1 - (KEPT_BACK if ending.ensembles else 0.0)) - self._elapsed()

    def _start_trial(self) -> bool:
        """Start the next trial; return False if there is none."""
        sample = self._next()
        if sample is None:
            return False
        name = f"{self.run.name}_{sample.number}"
        folder = self.run.folder / "trials" / str(sample.number)
        former = lifecycle.set_aside(self._session.tracking, folder, name)
        records.write_sample(folder, sample)
        limit, trial = self._plan.trial_timeout_s, self._plan.trial
        trial = replace(trial, outputs=registration.without_assets(trial.outputs))
        execution = Execution(
            self._session,
            replace(trial, timeout_s=limit) if limit is not None else trial,
            folder,
            name,
            sample.values,
            self.run.id,
            "trial_timeout" if limit is not None else "timeout",
            former=former,
        )
        self._trials.put(execution.start())
        self._running[execution.name] = execution
        self._report("trial_started", execution.name)
        return True

    def _next(self) -> Sample | None:
        """Return the next sample: of an interrupted trial, a new one, or an ensemble; else None."""
        if self._repeats:
            return self._repeats.popleft()
        return self._sampler.ask() if self._is_searching() else self._ensemble()

    def _is_searching(self) -> bool:
        """Return whether another sampled trial may start."""
        ending, started = self._plan.ending, len(self._trials)
        if ending is None:
            return started < self._plan.max_total_trials
        scores = self._trials.ended
        if started >= self._plan.max_total_trials - len(ending.ensembles):
            return False
        hopeless = 1 if self._is_refused else HOPELESS
        if len(scores) >= hopeless and not any(score is not None for score in scores):
            return False
        # Stop if a trial of median duration would not end in time.
        if self._left() < (median(self._took) if self._took else 0.0):
            return False
        return not objective.is_enough(scores, self._plan.goal, ending)

    def _is_ensemble(self, run: Run) -> bool:
        names = self._plan.ending.ensembles if self._plan.ending else ()
        return any(name in str(run.parameters.get("model")) for name in names)

    def _members(self) -> tuple[str, list[Run]] | None:
        """Return the next ensemble's name and its member trials; None if there is none."""
        names = self._plan.ending.ensembles if self._plan.ending else ()
        models = [str(run.parameters.get("model")) for run in self._trials.runs]
        waiting = [name for name in names if not any(name in model for model in models)]
        trials = [run for run in self._trials.ranked if not self._is_ensemble(run)]
        if not waiting or len(trials) < 2:
            return None
        families = [_family(run) for run in trials]
        is_best = [family not in families[:index] for index, family in enumerate(families)]
        members = [run for index, run in enumerate(trials) if index < MEMBERS or is_best[index]]
        return waiting[0], members

    def _ensemble(self) -> Sample | None:
        """Return the sample of the next ensemble; None while trials run, or if there is none."""
        chosen = None if self._running else self._members()
        if chosen is None:
            return None
        name, members = chosen
        values = {"model": {"family": name, "members": [int(run.folder.name) for run in members]}}
        origin = {"kind": "ensemble", "of": [run.name for run in members]}
        sample = Sample(len(self._trials), values, origin)
        self._sampler.recall(sample)
        return sample

    def _read_metrics(self) -> None:
        """Read new metrics of the trials, and apply the early termination policy."""
        self._read_at = time.monotonic()
        for name, before in self._trials.log(self._feed.new()).items():
            self._report("trial_metric", name)
            verdict = self._trials.verdict(name, before)
            execution = self._running[name]
            if verdict and execution.stop(verdict.policy):
                self._session.tracking.tag(execution.run.id, verdict.tags)

    def _close(self, name: str) -> None:
        execution, curve = self._running[name], self._trials.curve(name)
        warnings = outcome.metric_warnings(self._plan, execution.run, curve)
        run = execution.finish(warnings)
        if run.status == "Completed":
            self._took.append(min(run.active_s, self._elapsed()))
        self._is_refused |= execution.code == os.EX_DATAERR
        self._trials.put(run)
        del self._running[name]
        self._sampler.tell(int(execution.folder.name), curve, self._trials.score(name))
        self._report("trial_ended", name)

    def _report(self, kind: TrialEvent, name: str) -> None:
        self.run = replace(self.run, trials=self._trials.runs, best=self._trials.best)
        self._watch(Event(kind, self.run, self._trials[name]))

    def _end_trials(self) -> None:
        """Kill and close all running and starting trials, because the sweep failed."""
        for execution in self._running.values():
            execution.stop("sweep_failed")
            execution.kill()
        while self._running:
            for name in [name for name, execution in self._running.items() if execution.poll()]:
                self._close(name)
            time.sleep(POLL_S)
        for run_id in self._session.tracking.running(self.run.folder / "trials"):
            self._session.tracking.end(run_id, "Canceled", {})

    def finish(self) -> Run:
        """See `Task`: copy the best trial's metrics, parameters and outputs to the sweep."""
        status, error = self._status()
        best = self._trials[self.run.best] if self.run.best else None
        written: dict[str, Path] = {}
        if best:
            score = self._trials.score(best.name)
            tags = {"best_child_run_id": best.id, "best_child": best.name, "score": repr(score)}
            self._session.tracking.tag(self.run.id, tags)
            written = {k: files.promote(self.run.folder, k, v) for k, v in best.outputs.items()}
        if self._plan.ending and status == "Completed":
            # Only trials use these pickles; a sweep that may be resumed keeps them.
            shutil.rmtree(self.run.folder / CACHE, ignore_errors=True)
        self.run = replace(
            self.run,
            status=status,
            ended=time.time(),
            parameters=best.parameters if best else {},
            metrics=best.metrics if best else {},
            outputs=written,
            ended_by="timeout" if self._cut_short == SWEEP_TIMEOUT else self._cut_short,
            error=error,
            warnings=() if error else outcome.trial_warnings(self._trials.runs),
        )
        outputs = self._plan.trial.outputs
        self.run = lifecycle.finish(self._session.tracking, self.run, self._lineage, outputs)
        return self.run

    def _status(self) -> tuple[Status, Problem | None]:
        if self._failure:
            return "Failed", self._failure
        if self._plan.ending and self._cut_short == SWEEP_TIMEOUT and self.run.best:
            self._cut_short = ""
        if self._cut_short == SWEEP_TIMEOUT:
            return "Canceled", outcome.sweep_timed_out(self._plan, self.run)
        if self._cut_short:
            return "Canceled", outcome.sweep_interrupted(self.run, self._cut_short)
        if self.run.best is None:
            return "Failed", outcome.nothing_to_rank(self._plan, self._trials.runs)
        return "Completed", None


def _family(run: Run) -> str:
    """Return the model family of an AutoML trial."""
    return str(json.loads(str(run.parameters["model"]))["family"])
