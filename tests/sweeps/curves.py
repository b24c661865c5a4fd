"""Verdicts on recorded curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ml.specs.plan.plan import EarlyTermination
from ml.sweeps.early_termination import Policy, Verdict
from ml.sweeps.objective import Goal


def judge(
    settings: EarlyTermination,
    goal: Goal,
    curves: Mapping[str, Sequence[float]],
    trial: str,
    interval: int,
) -> Verdict | None:
    """The verdict on a trial's `interval`-th value when the sweep has logged these curves."""
    policy = Policy(settings, goal)
    for name, curve in curves.items():
        for value in curve:
            policy.add(name, value)
    return policy.verdict(trial, interval)
