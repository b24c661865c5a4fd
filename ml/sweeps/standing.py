"""What every trial of a sweep has reached by each interval, kept so that a verdict costs little.

What the policies are is said, and defined, in `ml.sweeps.policies`: this module keeps for each
interval what they look at, so that the thousandth trial is judged as quickly as the first. Means
are of exact sums, as `statistics.fmean` has them, and lie between the least and the largest value:
a trial that logs one value for ever is exactly at its own average, not a rounding error below it.
"""

from __future__ import annotations

import bisect
import math
from array import array
from typing import TYPE_CHECKING

from ml.specs.plan.plan import EarlyTermination
from ml.sweeps.objective import Goal, is_better

if TYPE_CHECKING:
    from numpy import ndarray


class Standing:
    """Trials by name, what each had reached by its intervals, and what a policy says of it."""

    def __init__(self, policy: EarlyTermination, goal: Goal) -> None:
        self._policy, self._goal = policy, goal
        self._worst = -math.inf if goal == "maximize" else math.inf
        self._best: dict[str, array[float]] = {}
        self._leader = array("d")
        self._sorted: dict[int, list[float]] = {}
        self._means = _Means()

    def add(self, trial: str, value: float) -> None:
        """The trial's next value; one that is not finite is the worst there is."""
        value = value if math.isfinite(value) else self._worst
        mine = self._best.setdefault(trial, array("d"))
        best = value if not mine or is_better(value, mine[-1], self._goal) else mine[-1]
        mine.append(best)
        interval = len(mine)
        if self._policy.type == "bandit":
            self._lead(interval, best)
        if self._policy.type == "truncation_selection" and self._is_due(interval):
            bisect.insort(self._sorted.setdefault(interval, []), best)
        if self._policy.type == "median_stopping":
            self._means.add(trial, value, self._is_due(interval))

    def ended(self, trial: str) -> None:
        """The trial logs nothing more: what the others are held against is all that is kept."""
        self._best.pop(trial, None)
        self._means.ended(trial)

    def reached(self, trial: str, interval: int) -> float | None:
        """The best of the trial up to a due interval that it has reached; None where none is."""
        return self._best[trial][interval - 1] if self._is_due(interval) else None

    def leader(self, interval: int) -> float:
        """The best of any trial up to the interval, also of those that did not come as far."""
        return self._leader[interval - 1]

    def median_of_means(self, interval: int) -> float:
        """The median over all trials of each one's mean up to the interval."""
        return self._means.median(interval)

    def ranked(self, interval: int) -> list[float]:
        """The best up to the interval of each trial that has come as far, in ascending order."""
        return self._sorted[interval]

    def _is_due(self, interval: int) -> bool:
        """At multiples of evaluation_interval, not before delay_evaluation."""
        policy = self._policy
        return interval % policy.evaluation_interval == 0 and interval >= policy.delay_evaluation

    def _lead(self, interval: int, best: float) -> None:
        """A best holds for every later interval too, up to where somebody was better already."""
        while len(self._leader) < interval:
            self._leader.append(self._leader[-1] if self._leader else self._worst)
        for at in range(interval - 1, len(self._leader)):
            if not is_better(best, self._leader[at], self._goal):
                break
            self._leader[at] = best


class _Running:
    """A trial that logs: its row, the exact sum of its values, how many, the least, the largest."""

    def __init__(self, row: int) -> None:
        self.row, self.count = row, 0
        self.sum: list[float] = []
        self.low, self.high = math.inf, -math.inf

    def add(self, value: float) -> float:
        """The mean with one value more."""
        _grow(self.sum, value)
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        return min(self.high, max(self.low, math.fsum(self.sum) / self.count))


class _Means:
    """The running average of every trial, by interval."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._rows = 0
        # A trial's mean at each due interval that it has reached, and its latest.
        self._at: dict[int, ndarray] = {}
        self._latest: ndarray | None = None

    def add(self, trial: str, value: float, due: bool) -> None:
        """The trial's next value."""
        if trial not in self._running:
            self._running[trial] = _Running(self._rows)
            self._rows += 1
        running = self._running[trial]
        mean = running.add(value)
        self._latest = _with(self._latest, running.row, mean)
        if due:
            interval = running.count
            self._at[interval] = _with(self._at.get(interval), running.row, mean)

    def ended(self, trial: str) -> None:
        """Its averages stay."""
        self._running.pop(trial, None)

    def median(self, interval: int) -> float:
        """A trial that has logged fewer values counts with the mean of those."""
        import numpy as np

        count = self._rows
        assert self._latest is not None
        latest, there = self._latest[:count], self._at[interval][:count]
        counted = latest.copy()
        counted[: len(there)] = np.where(np.isnan(there), latest[: len(there)], there)
        counted.sort()
        middle = count // 2
        if count % 2:
            return float(counted[middle])
        return float(counted[middle - 1] + counted[middle]) / 2


def _with(column: ndarray | None, row: int, value: float) -> ndarray:
    """The column with a value in that row, enlarged where it is too short."""
    import numpy as np

    if column is None or row >= len(column):
        larger = np.full(max(8, 2 * (row + 1)), np.nan)
        if column is not None:
            larger[: len(column)] = column
        column = larger
    column[row] = value
    return column


def _grow(partials: list[float], value: float) -> None:
    """Add to an exact sum, kept as numbers that do not overlap (Shewchuk 1997, as `math.fsum`)."""
    if math.isinf(value) or (partials and math.isinf(partials[0])):
        partials[:] = [value if math.isinf(value) else partials[0]]
        return
    kept = 0
    for one in partials:
        large, small = (value, one) if abs(value) >= abs(one) else (one, value)
        total = large + small
        rest = small - (total - large)
        if rest:
            partials[kept] = rest
            kept += 1
        value = total
    partials[kept:] = [value]
