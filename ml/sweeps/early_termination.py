"""Apply early termination policies by Azure ML's definitions.

A trial's curve is the sequence of its logged values of the primary metric; each value is one
interval. A policy is applied at every interval that is a multiple of `evaluation_interval`, from
`delay_evaluation` on. Source of the definitions and of the examples in the tests:
"Hyperparameter tuning a model (v2)" and the references of MedianStoppingPolicy, BanditPolicy and
TruncationSelectionPolicy on learn.microsoft.com. Details that these leave open are documented
here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ml.specs.plan.plans import EarlyTermination
from ml.sweeps.objective import Goal, is_better


@dataclass(frozen=True)
class Verdict:
    """Why a policy ends a trial: its best value was worse than the threshold."""

    policy: str
    interval: int  # number of values logged so far
    value: float  # best value so far
    threshold: float

    @property
    def tags(self) -> dict[str, str]:
        """Return the verdict as MLflow tags of the trial: a sentence, and its numbers."""
        numbers = {"interval": self.interval, "value": self.value, "threshold": self.threshold}
        exact = {f"ended_by.{name}": repr(number) for name, number in numbers.items()}
        return {"ended_by": str(self), **exact}

    def __str__(self) -> str:
        return (
            f"{self.policy} at interval {self.interval}: best so far {self.value:.6g}, "
            f"threshold {self.threshold:.6g}"
        )


class Policy:
    """An early termination policy, and the values that the trials of a sweep have logged so far.

    A value that is not finite counts as the worst. The tables `_best` and `_mean` have trials as
    rows and intervals as columns. Each row is padded with its latest number, so that a trial with
    fewer values counts with those. A verdict thus needs no pass over the curves.
    """

    def __init__(self, settings: EarlyTermination, goal: Goal) -> None:
        import numpy as np

        self._settings, self._goal = settings, goal
        self._worst = -math.inf if goal == "maximize" else math.inf
        self._rows: dict[str, int] = {}
        self._lengths: list[int] = []
        self._sums: list[Fraction | float] = []
        self._best, self._mean = np.empty((8, 8)), np.empty((8, 8))

    def add(self, trial: str, value: float) -> None:
        """Add the trial's next value."""
        import numpy as np

        row = self._rows.setdefault(trial, len(self._rows))
        if row == len(self._lengths):
            self._lengths.append(0)
            self._sums.append(Fraction(0))
        column = self._lengths[row]
        rows, columns = self._best.shape
        if row == rows or column == columns:
            more = (0, rows * (row == rows)), (0, columns * (column == columns))
            self._best, self._mean = (np.pad(t, more, "edge") for t in (self._best, self._mean))
        is_finite = math.isfinite(value)
        value = value if is_finite else self._worst
        if column == 0 or is_better(value, self._best[row, column - 1], self._goal):
            self._best[row, column:] = value
        # Exact sums: the mean of a trial that logs 0.1 for ever is 0.1, not a rounding error less.
        self._sums[row] += Fraction(value) if is_finite else value
        self._lengths[row] = column + 1
        self._mean[row, column:] = float(self._sums[row] / (column + 1))

    def verdict(self, trial: str, interval: int) -> Verdict | None:
        """Return the verdict that ends `trial` at its `interval`-th value (from 1), or None."""
        settings = self._settings
        if interval % settings.evaluation_interval or interval < settings.delay_evaluation:
            return None
        value = float(self._best[self._rows[trial], interval - 1])
        threshold = {
            "median_stopping": self._median,
            "bandit": self._bandit,
            "truncation_selection": self._truncation,
        }[settings.type](interval)
        if threshold is None or not is_better(threshold, value, self._goal):
            return None
        return Verdict(settings.type, interval, value, threshold)

    def _median(self, interval: int) -> float:
        """Return the median, over all trials, of each one's mean over its intervals 1 … `interval`.

        A trial with fewer values counts with their mean: "all training runs" in Azure ML's words,
        "reported up to step s" in those of Google Vizier, the origin of the rule.
        """
        import numpy as np

        return float(np.median(self._mean[: len(self._rows), interval - 1]))

    def _bandit(self, interval: int) -> float:
        """Return the best value of any trial up to this interval, less the slack.

        With a factor it is Azure ML's best / (1 + slack_factor) for a positive metric that is
        maximized. It is mirrored for minimizing and for negative metrics, so that the best trial is
        never ended.
        """
        column = self._best[: len(self._rows), interval - 1]
        sign = 1 if self._goal == "maximize" else -1
        leader = float(column.max() if sign > 0 else column.min())
        if self._settings.slack_amount is not None:
            return leader - sign * self._settings.slack_amount
        ratio = 1 + (self._settings.slack_factor or 0.0)
        return leader / ratio if sign * leader > 0 else leader * ratio

    def _truncation(self, interval: int) -> float | None:
        """Return the worst value to keep; None if the percentage is too small to end a trial.

        Only trials that have reached this interval are ranked, by their best value up to it. The
        number of trials to end is rounded down, and trials that tie with the worst one kept are
        kept.
        """
        import numpy as np

        is_old_enough = np.array(self._lengths) >= interval
        ranked = np.sort(self._best[: len(self._rows), interval - 1][is_old_enough])
        ending = len(ranked) * (self._settings.truncation_percentage or 0) // 100
        if not ending:
            return None
        return float(ranked[ending] if self._goal == "maximize" else ranked[-1 - ending])
