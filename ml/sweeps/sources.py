"""Where points come from: random numbers, a Sobol sequence, a grid (TPE: `ml.sweeps.tpe`).

Random sampling needs nothing but numpy, which spares `ml run` the import of Optuna; the numbers are
those of Optuna's RandomSampler. Sobol and grid sampling are not Optuna's either: its QMCSampler
samples no choices and its GridSampler no nested spaces, and Azure ML samples both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ml.specs.plan.plan import SweepPlan
from ml.specs.search.distributions import Known, Variable
from ml.sweeps.space import Candidate, cells, depth, draw, size

if TYPE_CHECKING:
    from numpy.random import RandomState


class Source(ABC):
    """One way of choosing points; it knows neither hints nor constraints."""

    # Whether the next point follows from how many there were before, whatever became of them.
    is_sequence = True

    @abstractmethod
    def propose(self, number: int, attempt: int, fixed: Mapping[str, Known]) -> Candidate | None:
        """A point with the `fixed` values for trial `number`; None when there are no more.

        `attempt` counts the points that were refused for this trial.
        """

    def start(self, number: int, raw: Mapping[str, float]) -> None:  # noqa: B027
        """Trial `number` runs, with these numbers chosen for its variables."""

    def end(self, number: int, curve: Sequence[float], score: float | None) -> None:  # noqa: B027
        """Trial `number` ended: the values that it logged, and its score if it completed."""


class Random(Source):
    """Independent points, one after the other from one stream."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        self._space, self._stream = plan.search_space, stream_of(seed)

    def propose(self, number: int, attempt: int, fixed: Mapping[str, Known]) -> Candidate:
        """See Source."""
        candidate = draw(self._space, lambda variable: choose(variable, self._stream), fixed)
        return replace(candidate, origin={"kind": "random"})


class Sobol(Source):
    """Points of a scrambled Sobol sequence, in its order."""

    def __init__(self, plan: SweepPlan, seed: int) -> None:
        from scipy.stats import qmc

        self._space = plan.search_space
        self._engine = qmc.Sobol(d=max(1, depth(self._space)), scramble=True, rng=seed)

    def propose(self, number: int, attempt: int, fixed: Mapping[str, Known]) -> Candidate:
        """See Source; a trial of which every value is fixed uses no point of the sequence."""
        index, point = -1, iter(())

        def take(variable: Variable) -> float:
            nonlocal index, point
            if index < 0:
                index = self._engine.num_generated
                point = iter(self._engine.random(1)[0].tolist())
            return _scaled(variable, next(point))

        candidate = draw(self._space, take, fixed)
        return replace(candidate, origin={"kind": "sobol", "index": index})


class Grid(Source):
    """Every combination once, the last dimension varying fastest."""

    def __init__(self, plan: SweepPlan) -> None:
        self._space, self._size = plan.search_space, size(plan.search_space)
        self._cells = enumerate(cells(plan.search_space))
        # Cells that hints used before their turn came.
        self._used: list[Mapping[str, float]] = []
        self._matching: Iterator[Candidate] = iter(())

    def propose(self, number: int, attempt: int, fixed: Mapping[str, Known]) -> Candidate | None:
        """See Source: the next cell that was not used, or the first one with the fixed values."""
        if not fixed:
            for index, cell in self._cells:
                if cell.raw not in self._used:
                    return replace(cell, origin={"kind": "grid", "cell": index, "of": self._size})
            return None
        if attempt == 0:
            self._matching = cells(self._space, fixed)
        for cell in self._matching:
            if cell.raw not in self._used:
                self._used.append(cell.raw)
                return replace(cell, origin={"kind": "grid", "of": self._size})
        return None


def stream_of(seed: int) -> RandomState:
    """The random numbers of a sweep."""
    from numpy.random import RandomState

    return RandomState(seed % 2**32)


def choose(variable: Variable, stream: RandomState) -> float:
    """One number for a variable, each equally likely; as Optuna's RandomSampler has it."""
    if variable.low == variable.high:
        return variable.low
    if variable.kind == "choice":
        return int(stream.uniform(0.0, 1.0, variable.choices).argmax())
    if variable.kind == "int":
        number = stream.uniform(variable.low - 0.5, variable.high + 0.5)
        return min(variable.high, max(variable.low, math.floor(number + 0.5)))
    number = float(stream.uniform(variable.low, variable.high))
    return min(number, math.nextafter(variable.high, variable.low))


def _scaled(variable: Variable, share: float) -> float:
    """What lies at a share (in [0, 1)) of a variable's range."""
    if variable.kind == "float":
        return variable.low + (variable.high - variable.low) * share
    count = variable.high - variable.low + 1
    return min(variable.high, variable.low + int(count * share))
