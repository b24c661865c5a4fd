"""The state of a sweep that was stopped, read from its folder, and how it is restored."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.backends.local.resume import attempts
from ml.backends.local.resume.recovery import EXECUTOR_GONE
from ml.backends.local.runs import records
from ml.backends.local.sweeps import samples
from ml.backends.local.sweeps.trials import Trials
from ml.backends.local.tracking import reader
from ml.specs.plan.plan import Sample
from ml.sweeps.samplers import Sampler


@dataclass(frozen=True)
class SavedTrial:
    """A trial that had started. `sample` is None when its file was lost with the machine.

    `curve` is what it logged of the primary metric; `counts` says whether it ran to its end and
    everything that it logged is there. A trial that does not count is run again.
    """

    number: int
    run: Run
    sample: Sample | None
    curve: tuple[float, ...]
    counts: bool

    def recall(self, sampler: Sampler) -> Sample:
        """The trial's sample, which the sampler repeats, or makes again when it was lost."""
        if self.sample is not None:
            sampler.recall(self.sample)
            return self.sample
        sample = sampler.ask()
        if sample is None:
            raise ValueError(f"the sampler has no trial {self.number}, which had started")
        return sample


@dataclass(frozen=True)
class SavedSweep:
    """A sweep that was closed before its end: its record, and its trials by their numbers."""

    run: Run
    lineage: dict[str, Any]
    trials: tuple[SavedTrial, ...]

    def restore(self, trials: Trials, sampler: Sampler) -> deque[Sample]:
        """Bring both to where they were; the samples that are to be run again.

        The sampler recalls every trial in their order, then is told how those that count ended, in
        the order in which they did.
        """
        for trial in self.trials:
            trials.put(trial.run, trial.curve)
        recalled = [trial.recall(sampler) for trial in self.trials]
        ended = (trial for trial in self.trials if trial.counts)
        for trial in sorted(ended, key=lambda trial: trial.run.ended or 0.0):
            sampler.tell(trial.number, trial.curve, trials.score(trial.run.name))
        return deque(
            one for one, trial in zip(recalled, self.trials, strict=True) if not trial.counts
        )


def saved_sweep(folder: Path, metric: str) -> SavedSweep:
    """The sweep in that folder, whose record is closed; `metric` is its primary metric."""
    run = records.read(folder)
    trials = tuple(_trial(run, number, metric) for number in range(_trial_count(folder)))
    return SavedSweep(run, records.lineage(folder), trials)


def _trial_count(sweep: Path) -> int:
    """How many trials have left a trace."""
    traces = [*(sweep / "trials").glob("*"), *(sweep / records.ATTEMPTS).glob("*")]
    numbers = [int(name) for one in traces if (name := one.name.partition(".")[0]).isdecimal()]
    return max(numbers, default=-1) + 1


def _trial(sweep: Run, number: int, metric: str) -> SavedTrial:
    part = sweep.folder / "trials" / str(number)
    folders = (part, *reversed(attempts.earlier(part)))
    sample = next(filter(None, map(samples.read, folders)), None)
    run = records.read_if_whole(part) or _lost(sweep, number, part)
    curve = tuple(reader.curve(run.id, metric))
    # A machine that went off may have taken the last seconds of the store with it.
    is_there = bool(curve) or metric not in run.metrics
    counts = is_there and not attempts.was_cut_off(run)
    return SavedTrial(number, run, sample, curve if counts else (), counts)


def _lost(sweep: Run, number: int, part: Path) -> Run:
    """A trial of which no record is left."""
    name, began = f"{sweep.name}_{number}", sweep.started
    return Run("", name, "Canceled", sweep.experiment, part, began, began, ended_by=EXECUTOR_GONE)
