"""The trials of a sweep: their runs, their primary metrics, and the best one.

Trials of a stopped sweep are restored from its folder.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends.local.runs import lifecycle, records
from ml.backends.local.tracking import reader
from ml.backends.runs import Run
from ml.specs.plan.plans import Sample, SweepPlan
from ml.sweeps import objective
from ml.sweeps.early_termination import Policy, Verdict
from ml.sweeps.samplers import Sampler


class Trials:
    """Trials by name, in the order of their starts."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._runs: dict[str, Run] = {}
        self._order: dict[str, int] = {}
        self._curves: dict[str, array[float]] = {}
        self._scores: dict[str, float | None] = {}
        # The names of the running trials by their run ids.
        self._running: dict[str, str] = {}
        settings = plan.early_termination
        self._policy = Policy(settings, plan.goal) if settings else None
        self._best: str | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    @property
    def runs(self) -> tuple[Run, ...]:
        """The current run of every trial."""
        return tuple(self._runs.values())

    @property
    def best(self) -> str | None:
        """The name of the best completed trial; in a tie the one that started first."""
        return self._best

    def curve(self, name: str) -> Sequence[float]:
        """Return the values of the primary metric that a running trial has logged so far."""
        return self._curves[name]

    def score(self, name: str) -> float | None:
        """Return a completed trial's best value of the primary metric; None for other trials."""
        return self._scores.get(name)

    @property
    def ended(self) -> tuple[float | None, ...]:
        """The scores of the trials that ended, in the order of their starts."""
        return tuple(self._scores[name] for name in self._runs if name in self._scores)

    @property
    def ranked(self) -> tuple[Run, ...]:
        """The trials that have a score, the best first."""
        sign = -1.0 if self._plan.goal == "maximize" else 1.0
        scores = {name: sign * score for name, score in self._scores.items() if score is not None}
        return tuple(self._runs[name] for name in sorted(scores, key=scores.__getitem__))

    def put(self, run: Run, logged: Iterable[float] = ()) -> None:
        """Add a trial that started, or close one that ended.

        `logged` are the values of the primary metric from before a resume. The curve of an ended
        trial is dropped, since MLflow stores it.
        """
        name = run.name
        self._runs[name] = run
        self._order.setdefault(name, len(self._order))
        curve = self._curves.setdefault(name, array("d"))
        for value in logged:
            self._log(name, value)
        if run.ended is None:
            self._running[run.id] = name
            return
        self._running.pop(run.id, None)
        del self._curves[name]
        is_ranked = run.status == "Completed"
        self._scores[name] = objective.score(curve, self._plan.goal) if is_ranked else None
        pair = sorted({name, self._best or name}, key=self._order.__getitem__)
        self._best = objective.leader({key: self._scores[key] for key in pair}, self._plan.goal)

    def log(self, values: Iterable[tuple[str, float]]) -> dict[str, int]:
        """Add pairs (run id, value) to the curves; return changed trial → its previous length."""
        before: dict[str, int] = {}
        for run_id, value in values:
            if name := self._running.get(run_id):
                before.setdefault(name, len(self._curves[name]))
                self._log(name, value)
        for name in before:
            metrics = {self._plan.primary_metric: self._curves[name][-1]}
            self._runs[name] = replace(self._runs[name], metrics=metrics)
        return before

    def verdict(self, name: str, before: int) -> Verdict | None:
        """Return the policy's verdict on the trial's intervals after `before`; None to continue."""
        if self._policy is None:
            return None
        intervals = range(before + 1, len(self._curves[name]) + 1)
        verdicts = (self._policy.verdict(name, interval) for interval in intervals)
        return next(filter(None, verdicts), None)

    def _log(self, name: str, value: float) -> None:
        self._curves[name].append(value)
        if self._policy:
            self._policy.add(name, value)


@dataclass(frozen=True)
class SavedTrial:
    """A trial that had started before its sweep was stopped."""

    number: int
    run: Run
    sample: Sample | None  # its hyperparameters; None if the file was lost
    curve: tuple[float, ...]  # logged values of the primary metric
    # The trial ended and everything that it logged is recorded; if False, it runs again.
    counts: bool

    def recall(self, sampler: Sampler) -> Sample:
        """Restore the trial in the sampler; return its sample, drawn again if the file is lost."""
        if self.sample is not None:
            sampler.recall(self.sample)
            return self.sample
        sample = sampler.ask()
        assert sample is not None, f"trial {self.number} had started: the sampler has it"
        return sample


@dataclass(frozen=True)
class SavedSweep:
    """A sweep that was stopped before its end."""

    run: Run
    lineage: dict[str, Any]
    trials: tuple[SavedTrial, ...]

    def restore(self, trials: Trials, sampler: Sampler) -> deque[Sample]:
        """Restore the trials and the sampler; return the samples to run again.

        The sampler recalls every trial in order, then receives the results of those that count, in
        the order in which they ended.
        """
        for trial in self.trials:
            trials.put(trial.run, trial.curve)
        recalled = [trial.recall(sampler) for trial in self.trials]
        ended = (trial for trial in self.trials if trial.counts)
        for trial in sorted(ended, key=lambda trial: trial.run.ended or 0.0):
            sampler.tell(trial.number, trial.curve, trials.score(trial.run.name))
        pairs = zip(recalled, self.trials, strict=True)
        return deque(sample for sample, trial in pairs if not trial.counts)


def saved_sweep(folder: Path, metric: str) -> SavedSweep:
    """Read a stopped sweep and its trials from its folder; `metric` is its primary metric."""
    run = records.read(folder)
    trials = tuple(_trial(run, number, metric) for number in range(_trial_count(folder)))
    return SavedSweep(run, records.lineage(folder), trials)


def _trial_count(sweep: Path) -> int:
    """Return the number of trials that had started: one more than the highest trial number."""
    traces = [*(sweep / "trials").glob("*"), *(sweep / records.ATTEMPTS).glob("*")]
    numbers = [int(n) for path in traces if (n := path.name.partition(".")[0]).isdecimal()]
    return max(numbers, default=-1) + 1


def _trial(sweep: Run, number: int, metric: str) -> SavedTrial:
    part = sweep.folder / "trials" / str(number)
    folders = (part, *reversed(lifecycle.earlier(part)))
    sample = next(filter(None, map(records.read_sample, folders)), None)
    run = records.read_if_whole(part) or _lost(sweep, number, part)
    curve = tuple(reader.curve(run.id, metric))
    # After a power failure, the last seconds of the store may be missing.
    is_there = bool(curve) or metric not in run.metrics
    counts = is_there and not lifecycle.was_cut_off(run)
    return SavedTrial(number, run, sample, curve if counts else (), counts)


def _lost(sweep: Run, number: int, part: Path) -> Run:
    """Return a canceled run for a trial whose record is lost."""
    name, started, why = f"{sweep.name}_{number}", sweep.started, lifecycle.EXECUTOR_GONE
    return Run("", name, "Canceled", sweep.experiment, part, started, started, ended_by=why)
