"""Samplers: repeatable, and learning where they should."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from ml.specs.plan import CommandPlan, Dimension, Environment, SweepPlan
from ml.specs.problems import Place
from ml.sweeps.samplers import make

HERE = Place("sweep.yml", 1)
SPACE = {
    "x": Dimension("x", "uniform", (-5.0, 5.0), HERE),
    "y": Dimension("y", "choice", (1, 2, 4), HERE),
}
TRIAL = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
PLAN = SweepPlan(HERE, "s", "e", TRIAL, SPACE, "random", "minimize", "loss")


def drawn(plan: SweepPlan, seed: int, count: int = 12) -> list[dict[str, object]]:
    """The values of the first trials, each told its loss before the next is asked."""
    sampler, found = make(plan, seed), []
    for _ in range(count):
        suggestion = sampler.ask()
        assert suggestion is not None
        values = dict(suggestion.values)
        loss = (values["x"] - 1) ** 2 + values["y"]
        sampler.tell(suggestion, [loss], loss)
        found.append(values)
    return found


@pytest.mark.parametrize(
    "plan",
    [PLAN, replace(PLAN, rule="sobol"), replace(PLAN, algorithm="bayesian")],
    ids=["random", "sobol", "bayesian"],
)
def test_the_same_seed_gives_the_same_trials(plan: SweepPlan) -> None:
    """And another seed gives others."""
    assert drawn(plan, 7) == drawn(plan, 7)
    assert drawn(plan, 7) != drawn(plan, 8)


def test_grid_ends() -> None:
    """After the last point there is no trial more."""
    sampler = make(replace(PLAN, algorithm="grid", search_space={"y": SPACE["y"]}), 0)
    seen = []
    while (suggestion := sampler.ask()) is not None:
        seen.append(suggestion.values["y"])
    assert seen == [1, 2, 4]


def test_bayesian_learns() -> None:
    """On a parabola the last ten of thirty trials are nearer to its bottom than random ones."""
    bayesian = replace(PLAN, algorithm="bayesian")

    def late_distance(plan: SweepPlan) -> float:
        distances = [
            abs(values["x"] - 1) for seed in range(5) for values in drawn(plan, seed, 30)[20:]
        ]
        return median(distances)

    assert late_distance(bayesian) < 0.5 * late_distance(PLAN)


def test_failed_and_ended_trials_are_taken() -> None:
    """A trial without a score is told as failed or, with a finite curve, as pruned."""
    sampler = make(replace(PLAN, algorithm="bayesian"), 0)
    for curve in ([], [0.5, 0.4], [float("nan")], [0.1, float("inf")]):
        suggestion = sampler.ask()
        assert suggestion is not None
        sampler.tell(suggestion, curve, None)
    states = [trial.state.name for trial in sampler._study.trials]
    assert states == ["FAIL", "PRUNED", "FAIL", "FAIL"]
