"""What a sweep had come to when it was stopped, and how it is taken up again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.base import Run, Sample
from ml.backends.local.resume import attempts
from ml.backends.local.resume.recovery import EXECUTOR_GONE
from ml.backends.local.runs import records
from ml.backends.local.sweeps import sampled
from ml.backends.local.sweeps.board import Board
from ml.backends.local.tracking import history
from ml.sweeps.samplers import Sampler, Suggestion


@dataclass(frozen=True)
class Trial:
    """A trial that was begun. `sample` is None when what it was given was lost with the machine.

    `curve` is what it logged of the primary metric; `counts` whether it has come to its end, and
    all that it logged is there. One that does not count is run again.
    """

    number: int
    run: Run
    sample: Sample | None
    curve: tuple[float, ...]
    counts: bool

    def recalled(self, sampler: Sampler) -> Suggestion:
        """The trial as the sampler had suggested it."""
        if self.sample is not None:
            return sampler.recall(self.sample.values, self.sample.origin)
        found = sampler.ask()
        if found is None:
            raise ValueError(f"the sampler has no trial {self.number}, which was begun")
        return found


@dataclass(frozen=True)
class Past:
    """A sweep that was closed before its end: its record, and its trials by their numbers."""

    run: Run
    lineage: dict[str, Any]
    trials: tuple[Trial, ...]

    def retake(self, board: Board, sampler: Sampler) -> deque[tuple[Sample, Suggestion]]:
        """Bring both to where they were; what the trials were given that are to be run again.

        The sampler recalls every trial in their order, then is told of the ends of those that count
        in the order in which they ended.
        """
        asked: dict[int, Suggestion] = {}
        for trial in self.trials:
            board.put(trial.run, trial.curve)
            asked[trial.number] = trial.recalled(sampler)
        ended = (trial for trial in self.trials if trial.counts)
        for trial in sorted(ended, key=lambda one: one.run.ended or 0.0):
            sampler.tell(asked[trial.number], trial.curve, board.score(trial.run.name))
        return deque(
            (trial.sample or Sample(trial.number, given.values, given.origin), given)
            for trial in self.trials
            if not trial.counts and (given := asked[trial.number])
        )


def past_of(folder: Path, metric: str) -> Past:
    """The past of the sweep in that folder, whose record is closed; `metric` is its primary one."""
    run = records.read(folder)
    found = (_trial(run, number, metric) for number in range(_begun(folder)))
    return Past(run, records.lineage(folder), tuple(found))


def _begun(sweep: Path) -> int:
    """How many trials have left a trace."""
    traces = [*(sweep / "trials").glob("*"), *(sweep / records.ATTEMPTS).glob("*")]
    numbers = [int(name) for one in traces if (name := one.name.partition(".")[0]).isdecimal()]
    return max(numbers, default=-1) + 1


def _trial(sweep: Run, number: int, metric: str) -> Trial:
    part = sweep.folder / "trials" / str(number)
    samples = [sampled.read(one) for one in (part, *reversed(attempts.earlier(part)))]
    sample = next((one for one in samples if one), None)
    run = records.read_if_whole(part) or _lost(sweep, number, part)
    curve = tuple(history.curve(run.id, metric))
    # A machine that went off may have taken the last seconds of the store with it.
    is_there = bool(curve) or metric not in run.metrics
    counts = is_there and not attempts.was_cut_off(run)
    return Trial(number, run, sample, curve if counts else (), counts)


def _lost(sweep: Run, number: int, part: Path) -> Run:
    """A trial of which no record is left."""
    name, began = f"{sweep.name}_{number}", sweep.started
    return Run("", name, "Canceled", sweep.experiment, part, began, began, ended_by=EXECUTOR_GONE)
