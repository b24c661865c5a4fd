"""Evolution: conditions, the population, and wins over random sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ml.core.errors import Place
from ml.specs.plan.plans import (
    CommandPlan,
    Condition,
    Dimension,
    Environment,
    Hints,
    Point,
    Sample,
    SweepPlan,
)
from ml.specs.search.hints import POPULATION
from ml.sweeps.samplers import Sampler, sampler_for

HERE = Place("sweep.yml", 1)
LAYERS = 5
OPERATIONS = tuple("abcdef")
SPACE = {"layers": Dimension("layers", "choice", tuple(range(1, LAYERS + 1)), HERE)} | {
    f"layer_{n}": Dimension(f"layer_{n}", "choice", OPERATIONS, HERE) for n in range(1, LAYERS + 1)
}
CONDITIONS = tuple(Condition(f"layer_{n}", f"layers >= {n}", HERE) for n in range(2, LAYERS + 1))
TRIAL = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
RANDOM = SweepPlan(HERE, "s", "e", TRIAL, SPACE, "random", "minimize", "loss")
PLAN = replace(RANDOM, hints=Hints(sampler="evolution", conditions=CONDITIONS))


def loss(values: Mapping[str, Any]) -> float:
    """The best are four layers a, b, c, d; a layer too many or too few costs as a wrong one."""
    layers = [values[f"layer_{n}"] for n in range(1, values["layers"] + 1)]
    pairs = zip(layers, "abcd", strict=False)
    return abs(len(layers) - 4) + sum(chosen != best for chosen, best in pairs)


def trials(sampler: Sampler, count: int) -> list[Sample]:
    samples = []
    for _ in range(count):
        sample = sampler.ask()
        assert sample is not None
        value = loss(sample.values)
        sampler.tell(sample.number, [value], value)
        samples.append(sample)
    return samples


def test_an_inactive_parameter_has_its_first_value() -> None:
    """In random points and in descendants; active ones vary, and no point is tried twice."""
    samples = trials(sampler_for(PLAN, 3), 80)
    for sample in samples:
        for n in range(sample.values["layers"] + 1, LAYERS + 1):
            assert sample.values[f"layer_{n}"] == "a"
    assert {sample.values["layer_4"] for sample in samples} >= set("abcd")
    assert len({json.dumps(sample.values) for sample in samples}) == len(samples)
    assert [s.origin["kind"] for s in samples].count("evolution") == len(samples) - POPULATION


def test_a_condition_may_depend_on_a_condition() -> None:
    """Conditions apply in their order: the value of an inactive parameter makes others inactive."""
    conditions = (
        Condition("layer_2", "layers >= 2", HERE),
        Condition("layer_3", "layer_2 == 'b'", HERE),
    )
    plan = replace(PLAN, hints=Hints(sampler="evolution", conditions=conditions))
    for sample in trials(sampler_for(plan, 0), 60):
        if sample.values["layers"] < 2:
            assert (sample.values["layer_2"], sample.values["layer_3"]) == ("a", "a")


def test_a_nested_choice_is_a_condition_too() -> None:
    """A descendant in another branch gets that branch's parameters, none of the parent's."""
    nested = Dimension(
        "model",
        "choice",
        (
            {"name": "tree", "depth": Dimension("depth", "randint", (9,), HERE)},
            {"name": "linear", "penalty": Dimension("penalty", "uniform", (0.0, 1.0), HERE)},
        ),
        HERE,
    )
    plan = replace(PLAN, search_space={"model": nested}, hints=Hints(sampler="evolution"))
    sampler, names = sampler_for(plan, 1), []
    for number in range(40):
        sample = sampler.ask()
        assert sample is not None
        model: Any = sample.values["model"]
        assert model.keys() == {"name", "depth" if model["name"] == "tree" else "penalty"}
        names.append(model["name"])
        sampler.tell(number, [0.5], 0.5)
    assert set(names[POPULATION:]) == {"tree", "linear"}


def test_old_trials_leave_the_population() -> None:
    """The best trial of all is no parent any more once `POPULATION` younger ones completed."""
    best = {"layers": 4, **{f"layer_{n}": value for n, value in enumerate("abcda", 1)}}
    plan = replace(PLAN, hints=replace(PLAN.hints, points=(Point(best, HERE),)))
    sampler = sampler_for(plan, 2)
    for number in range(40):
        sample = sampler.ask()
        assert sample is not None
        if sample.origin["kind"] == "evolution":
            assert number - sample.origin["parent"] <= POPULATION
        sampler.tell(number, [], 0.0 if number == 0 else 1.0)


def test_failed_and_stopped_trials_have_no_descendants() -> None:
    """Their points are not tried again either."""
    sampler = sampler_for(PLAN, 2)
    for number in range(40):
        sample = sampler.ask()
        assert sample is not None
        assert sample.origin.get("parent", 1) % 2
        sampler.tell(number, [0.1], 1.0 if number % 2 else None)


def test_evolution_beats_random_sampling() -> None:
    """60 trials, 20 seeds: a lower loss at least 12 times, a higher one at most twice.

    One of 9,330 points has the lowest loss.
    """
    best = {
        plan: [
            min(loss(s.values) for s in trials(sampler_for(made, seed), 60)) for seed in range(20)
        ]
        for plan, made in (("evolution", PLAN), ("random", RANDOM))
    }
    wins = [a < b for a, b in zip(best["evolution"], best["random"], strict=True)]
    losses = [a > b for a, b in zip(best["evolution"], best["random"], strict=True)]
    assert sum(wins) >= 12 and sum(losses) <= 2, best
