"""What a sweep had come to when it was stopped, and how it is taken up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.base import Run
from ml.backends.local import attempts, history, records, sampled
from ml.backends.local.board import Board
from ml.backends.local.recovery import EXECUTOR_GONE
from ml.backends.local.sampled import Sample
from ml.sweeps.samplers import Sampler, Suggestion


@dataclass(frozen=True)
class Trial:
    """A trial that was begun. `sample` is None when what it was given was lost with the machine."""

    number: int
    run: Run
    sample: Sample | None

    @property
    def counts(self) -> bool:
        """Whether it has come to its end; one that was cut off is run again."""
        return not attempts.was_cut_off(self.run)

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

    def retake(
        self, board: Board, sampler: Sampler, metric: str
    ) -> deque[tuple[Sample, Suggestion]]:
        """Bring both to where they were; what the trials were given that are to be run again.

        The sampler recalls every trial in their order, then is told of the ends of those that count
        in the order in which they ended.
        """
        asked: dict[int, Suggestion] = {}
        for trial in self.trials:
            board.put(trial.run, history.curve(trial.run.id, metric) if trial.counts else [])
            asked[trial.number] = trial.recalled(sampler)
        ended = (trial for trial in self.trials if trial.counts)
        for trial in sorted(ended, key=lambda one: one.run.ended or 0.0):
            name = trial.run.name
            sampler.tell(asked[trial.number], board.curve(name), board.score(name))
        return deque(
            (trial.sample or Sample(trial.number, given.values, given.origin), given)
            for trial in self.trials
            if not trial.counts and (given := asked[trial.number])
        )


def past_of(folder: Path) -> Past:
    """The past of the sweep in that folder, whose record is closed."""
    run = records.read(folder)
    return Past(run, records.lineage(folder), tuple(_trials(run)))


def _trials(sweep: Run) -> Iterator[Trial]:
    """Every trial from 0 to the last that has left a trace."""
    folder = sweep.folder
    begun = [int(path.name) for path in (folder / "trials").glob("*")]
    begun += [int(path.name.partition(".")[0]) for path in (folder / records.ATTEMPTS).glob("*")]
    for number in range(max(begun, default=-1) + 1):
        part = folder / "trials" / str(number)
        samples = [sampled.read(one) for one in (part, *reversed(attempts.earlier(part)))]
        name, began = f"{sweep.name}_{number}", sweep.started
        lost = Run(
            "", name, "Canceled", sweep.experiment, part, began, began, ended_by=EXECUTOR_GONE
        )
        run = records.read_if_whole(part) or lost
        yield Trial(number, run, next((one for one in samples if one), None))
