"""Early termination by Azure ML's definitions, as pure functions of recorded curves.

A curve is what a trial logged of the primary metric, in order: each value is one interval. A policy
is applied at every interval that is a multiple of `evaluation_interval` and not before
`delay_evaluation`. Source of the definitions and of the examples in the tests: "Hyperparameter
tuning a model (v2)" and the references of MedianStoppingPolicy, BanditPolicy and
TruncationSelectionPolicy on learn.microsoft.com; where they leave something open, it is said here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ml.specs.plan.plan import EarlyTermination
from ml.sweeps.objective import Goal, is_better
from ml.sweeps.standing import Standing

Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Verdict:
    """Why a trial is ended: at `interval` its best was `value`, worse than `threshold`."""

    policy: str
    interval: int
    value: float
    threshold: float

    @property
    def tags(self) -> dict[str, str]:
        """As MLflow tags of the trial: the sentence, and its numbers for a program."""
        numbers = {"interval": self.interval, "value": self.value, "threshold": self.threshold}
        exact = {f"ended_by.{name}": repr(one) for name, one in numbers.items()}
        return {"ended_by": str(self), **exact}

    def __str__(self) -> str:
        return (
            f"{self.policy} at interval {self.interval}: best so far {self.value:.6g}, "
            f"threshold {self.threshold:.6g}"
        )


def judge(
    policy: EarlyTermination, goal: Goal, curves: Curves, trial: str, interval: int
) -> Verdict | None:
    """The verdict that ends `trial` at its `interval`-th value (from 1), None to let it go on.

    `curves` holds every trial of the sweep that has logged something, `trial` among them. A value
    that is not finite is the worst there is.
    """
    standing = Standing(policy, goal)
    for name, curve in curves.items():
        for value in curve:
            standing.add(name, value)
    return verdict(policy, goal, standing, trial, interval)


def verdict(
    policy: EarlyTermination, goal: Goal, standing: Standing, trial: str, interval: int
) -> Verdict | None:
    """The same, of trials whose standing is kept."""
    value = standing.reached(trial, interval)
    if value is None:
        return None
    threshold = {
        "median_stopping": _median,
        "bandit": _bandit,
        "truncation_selection": _truncation,
    }[policy.type](policy, goal, standing, interval)
    if threshold is None or not is_better(threshold, value, goal):
        return None
    return Verdict(policy.type, interval, value, threshold)


def _median(policy: EarlyTermination, goal: Goal, standing: Standing, interval: int) -> float:
    """The median, over all trials, of each one's mean over its intervals 1 … `interval`.

    A trial that has logged fewer values counts with the mean of those: "all training runs" in Azure
    ML's words, "reported up to step s" in those of Google Vizier, from which the rule is taken.
    """
    return standing.median_of_means(interval)


def _bandit(policy: EarlyTermination, goal: Goal, standing: Standing, interval: int) -> float:
    """The best at this interval, less the slack.

    The ratio is Azure ML's best / (1 + slack_factor) for a positive metric that is maximised; it is
    mirrored for minimising and for negative metrics, so that the best trial itself always stays.
    """
    leader = standing.leader(interval)
    sign = 1 if goal == "maximize" else -1
    if policy.slack_amount is not None:
        return leader - sign * policy.slack_amount
    ratio = 1 + (policy.slack_factor or 0.0)
    return leader / ratio if sign * leader > 0 else leader * ratio


def _truncation(
    policy: EarlyTermination, goal: Goal, standing: Standing, interval: int
) -> float | None:
    """The worst performance that is kept when the lowest percentage of all trials goes.

    Ranked are the trials that have come as far, each by its best up to this interval (a young trial
    is compared with what older ones had reached at its age); the number to go is rounded down, and
    equals of the worst that is kept stay.
    """
    reached = standing.ranked(interval)
    going = len(reached) * (policy.truncation_percentage or 0) // 100
    if not going:
        return None
    return reached[going] if goal == "maximize" else reached[-1 - going]
