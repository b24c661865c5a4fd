"""Bayesian sampling: the tree-structured Parzen estimator, and what it saw when it chose.

It is Optuna's, with Optuna's settings: 10 random trials first, 24 candidates, the best tenth (at
most 25) are good, trials that still run count as bad ones, so that two at a time do not get the
same point. The history is kept here, as rows of numbers: Optuna's own sampler reads it out of
trial objects again each time, and keeps to itself what is recorded here. A test compares with
Optuna's sampler, point by point.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ml.specs.plan.plan import Dimension
from ml.specs.search import distributions
from ml.specs.search.distributions import Known, Space, Variable, walk
from ml.sweeps.chance import choose, of_trial
from ml.sweeps.objective import Goal
from ml.sweeps.parzen import Density
from ml.sweeps.space import Drawn, draw

if TYPE_CHECKING:
    from numpy import ndarray
    from numpy.random import RandomState

STARTUP, MOST_GOOD = 10, 25
COMPLETED, CUT_SHORT = 0, 1
# So many points in a row that break a constraint, and the next is drawn at random.
PATIENCE = 20


@dataclass(frozen=True)
class Proposal:
    """A point, and where it came from (JSON values alone)."""

    drawn: Drawn
    origin: dict[str, Any]


class _Level:
    """The variables that are always chosen together, and what earlier trials had for them."""

    def __init__(self, variables: Mapping[str, Variable], space: Space) -> None:
        import numpy as np

        self.variables = variables
        self.dimensions = dict(zip(variables, space.values(), strict=True))
        self.free = {path: one for path, one in variables.items() if one.low < one.high}
        self._numbers = np.zeros(8, dtype=int)
        self._rows = np.zeros((8, len(self.free)))
        self._counts = np.ones(8, dtype=bool)
        self._count = 0

    def add(self, number: int, drawn: Mapping[str, float]) -> None:
        """What trial `number` had; trials come in the order of their numbers."""
        import numpy as np

        if self._count == len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._counts = np.concatenate([self._counts, np.ones_like(self._counts)])
        self._numbers[self._count] = number
        self._rows[self._count] = [drawn[path] for path in self.free]
        self._count += 1

    def leave_out(self, number: int) -> None:
        """Trial `number` says nothing of the metric."""
        self._counts[self._at([number])] = False

    def split(self, good: Sequence[int]) -> tuple[ndarray, ndarray]:
        """The rows of the good trials, and those of all others that say something."""
        chosen, rest = self._at(good), self._counts[: self._count].copy()
        rest[chosen] = False
        return self._rows[chosen], self._rows[: self._count][rest]

    def _at(self, numbers: Sequence[int]) -> ndarray:
        """The rows of those of the trials that were here; `numbers` ascend."""
        import numpy as np

        known = self._numbers[: self._count]
        at = np.searchsorted(known, numbers)
        here = at < self._count
        here[here] = known[at[here]] == np.asarray(numbers)[here]
        found: ndarray = at[here]
        return found


class Tpe:
    """Points by density: likely among good trials, unlikely among the others."""

    def __init__(self, space: Space, goal: Goal, seed: int) -> None:
        self._space, self._seed = space, seed
        self._sign = -1.0 if goal == "maximize" else 1.0
        self._levels = {
            prefix: _Level(variables, inside) for prefix, variables, inside in walk(space)
        }
        self._level_of = {
            path: prefix for prefix, level in self._levels.items() for path in level.variables
        }
        # Of the trials that ended and say something the best, in order: those that completed by
        # their score, then those that were ended early, the longest first, by their last value (as
        # Optuna ranks them). Whoever is not among so many will never be.
        self._ranked: list[tuple[int, float, float, int]] = []
        self._ended = 0
        self._running: set[int] = set()
        # The bad trials' density of each level, for as long as the history stays as it is, and the
        # good ones', for as long as it is of the same trials.
        self._above: dict[int, Density] = {}
        self._below: dict[int, _Good] = {}

    def propose(self, number: int, attempt: int, known: Mapping[str, Known]) -> Proposal:
        """A point for trial `number`; another one for each attempt."""
        stream = of_trial(self._seed, number, attempt)
        if self._ended < STARTUP:
            drawn = draw(self._space, lambda one: choose(one, stream), known)
            return Proposal(drawn, {"kind": "random", "startup": True, "ended": self._ended})
        if attempt >= PATIENCE:
            drawn = draw(self._space, lambda one: choose(one, stream), known)
            return Proposal(drawn, {"kind": "random", "instead_of": "tpe"})
        chosen = self._ranked[: min(math.ceil(0.1 * self._ended), MOST_GOOD)]
        good = sorted(number for *_, number in chosen)
        picked: dict[str, float] = {}
        said: dict[str, Any] = {}

        def pick(one: Variable) -> float:
            if one.path not in picked:
                level = self._levels[self._level_of[one.path]]
                found, why = self._pick(level, good, stream, known)
                picked.update(found)
                said.update(why)
            return picked[one.path]

        drawn = draw(self._space, pick, known)
        scores = [self._sign * value for kind, value, _, _ in chosen if kind == COMPLETED]
        origin = {
            "kind": "tpe",
            "good": good,
            "bad": self._ended - len(good),
            "running": sorted(self._running),
            "good_until": scores[-1] if scores else None,
            "parameters": said,
        }
        return Proposal(drawn, origin)

    def started(self, number: int, drawn: Mapping[str, float]) -> None:
        """Trial `number` runs with what was chosen for its variables."""
        self._above.clear()
        self._running.add(number)
        for level in self._levels.values():
            if level.variables.keys() <= drawn.keys():
                level.add(number, drawn)

    def ended(self, number: int, curve: Sequence[float], score: float | None) -> None:
        """A score completes the trial; one that was ended early counts by its last value."""
        self._above.clear()
        self._running.discard(number)
        if score is not None:
            self._rank((COMPLETED, self._sign * score, 0.0, number))
        elif curve and all(math.isfinite(value) for value in curve):
            self._rank((CUT_SHORT, -float(len(curve)), self._sign * curve[-1], number))
        else:
            for level in self._levels.values():
                level.leave_out(number)

    def _rank(self, key: tuple[int, float, float, int]) -> None:
        self._ended += 1
        bisect.insort(self._ranked, key)
        del self._ranked[MOST_GOOD:]

    def _pick(
        self, level: _Level, good: Sequence[int], stream: RandomState, known: Mapping[str, Known]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """What to choose for the variables of a level, and why."""
        import numpy as np

        single = {p: one.low for p, one in level.variables.items() if one.low == one.high}
        if not level.free:
            return single, {}
        key = id(level)
        if key not in self._below or self._below[key].numbers != good:
            self._below[key] = _Good(level, good)
        if key not in self._above:
            self._above[key] = Density(list(level.free.values()), level.split(good)[1])
        below, above = self._below[key].density, self._above[key]
        columns = below.sample(stream)
        for path, column in zip(level.free, columns, strict=True):
            if path in known:
                column[:] = known[path].raw
        best = int(np.argmax(below.joint(columns) - above.joint(columns)))
        chosen = [column[best].item() for column in columns]
        point = dict(zip(level.free, chosen, strict=True))
        ratios = (below.alone(chosen) - above.alone(chosen)).tolist()
        had = self._below[key].had
        why = {
            path: {"likelier": round(math.exp(min(700.0, ratio)), 6), **had[path]}
            for path, ratio in zip(level.free, ratios, strict=True)
        }
        return single | point, why


class _Good:
    """The good trials of a level: their numbers, density, and what they had for each variable."""

    def __init__(self, level: _Level, numbers: Sequence[int]) -> None:
        rows = level.split(numbers)[0]
        self.numbers = numbers
        self.density = Density(list(level.free.values()), rows)
        self.had = {
            path: _had(level.dimensions[path], one, rows[:, at])
            for at, (path, one) in enumerate(level.free.items())
        }


def _had(dimension: Dimension, one: Variable, column: ndarray) -> dict[str, list[object]]:
    """What the good trials had: their choices, or the least and the largest number."""
    if one.kind == "choice":
        chosen = (distributions.value(dimension, index) for index in sorted(set(column.tolist())))
        return {"choices": [_branch(c) if isinstance(c, Mapping) else c for c in chosen]}
    ends = (float(column.min()), float(column.max())) if len(column) else ()
    return {"range": [distributions.value(dimension, end) for end in ends]}


def _branch(branch: Mapping[str, object]) -> object:
    """A branch of a nested choice by its constants, or by its names where it has none."""
    constants = {k: one for k, one in branch.items() if not isinstance(one, Dimension)}
    return constants or list(branch)
