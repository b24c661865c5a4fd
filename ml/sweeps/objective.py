"""Score trials by the values that they logged of the primary metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ml.specs.plan.plans import StoppingCriteria

Goal = Literal["maximize", "minimize"]


def is_better(value: float, reference: float, goal: Goal) -> bool:
    """Return whether `value` is strictly better than `reference`; neither may be NaN."""
    return value > reference if goal == "maximize" else value < reference


def best(values: Iterable[float], goal: Goal) -> float:
    """Return the best of the values; raise ValueError if there is none."""
    return max(values) if goal == "maximize" else min(values)


def score(curve: Sequence[float], goal: Goal) -> float | None:
    """Return the best value that a trial logged of its primary metric; None if it is not ranked.

    Azure ML ranks trials by the best value of the primary metric (HyperDrive's
    `get_best_run_by_primary_metric`). A trial that logged a NaN or an infinity, even once, has
    diverged and is not ranked, however good its other values are.
    """
    if not curve or not all(math.isfinite(value) for value in curve):
        return None
    return best(curve, goal)


def leader(scores: Mapping[str, float | None], goal: Goal) -> str | None:
    """Return the trial with the best score, the earlier one of equals; None if none has a score."""
    ranked = {name: value for name, value in scores.items() if value is not None}
    pick = max if goal == "maximize" else min
    # Both return the first of equals.
    return pick(ranked, key=ranked.__getitem__, default=None)


def is_enough(scores: Sequence[float | None], goal: Goal, ending: StoppingCriteria) -> bool:
    """Return whether scores in start order reach the exit score or exhaust the patience."""
    ranked = [score for score in scores if score is not None]
    if not ranked:
        return False
    leading = best(ranked, goal)
    exit_score = ending.exit_score
    if exit_score is not None and not is_better(exit_score, leading, goal):
        return True
    if ending.patience is None or len(ranked) < ending.landmarks + ending.patience:
        return False
    return len(ranked) - 1 - ranked.index(leading) >= ending.patience
