"""Points to try first, and constraints, in every sampler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from ml.core.errors import Exit, Place, UserError
from ml.specs.plan.plans import (
    CommandPlan,
    Constraint,
    Dimension,
    Environment,
    Hints,
    Point,
    Sample,
    SweepPlan,
)
from ml.sweeps.samplers import feasible_share, sampler_for

HERE = Place("sweep.yml", 1)


def dim(name: str, kind: str, *args: object) -> Dimension:
    return Dimension(name, kind, args, HERE)


GRID = {"a": dim("a", "choice", 1, 2, 3), "b": dim("b", "choice", 10, 20)}
MODEL = dim(
    "model",
    "choice",
    {"name": "tree", "depth": dim("depth", "randint", 9)},
    {"name": "linear", "penalty": dim("penalty", "loguniform", -3, 0)},
)
SPACE = {
    "x": dim("x", "uniform", 0.0, 1.0),
    "y": dim("y", "uniform", 0.0, 1.0),
    "a": dim("a", "choice", 1, 2, 3),
    "model": MODEL,
}
ALL = ["random", "sobol", "bayesian", "evolution"]


def plan(algorithm: str, points: list[dict], constraints: list[str], **changes) -> SweepPlan:
    """A sweep with hints: points on the lines from 1, constraints on those from 10."""
    hints = Hints(
        tuple(Point(point, Place("s.hints.yml", 1 + at)) for at, point in enumerate(points)),
        tuple(Constraint(c, Place("s.hints.yml", 10 + at)) for at, c in enumerate(constraints)),
        "s.hints.yml",
        "evolution" if algorithm == "evolution" else "",
    )
    trial = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
    rule = "sobol" if algorithm == "sobol" else "random"
    kind = algorithm if algorithm in {"grid", "bayesian"} else "random"
    space = GRID if algorithm == "grid" else SPACE
    sweep = SweepPlan(
        HERE, "s", "e", trial, space, kind, "minimize", "loss", rule=rule, hints=hints
    )
    return replace(sweep, **changes)


def run_trials(
    sweep: SweepPlan, count: int, seed: int = 1, loss: Callable[[dict], float] | None = None
) -> list[Sample]:
    """The first samples, each told its loss; fewer when the space has no more."""
    sampler, samples = sampler_for(sweep, seed), []
    while len(samples) < count and (sample := sampler.ask()) is not None:
        value = loss(sample.values) if loss else 0.5
        sampler.tell(sample.number, [value], value)
        samples.append(sample)
    return samples


FIRST = {"x": 0.25, "y": 0.5, "a": 2, "model": {"name": "linear", "penalty": 0.1}}


@pytest.mark.parametrize("algorithm", ALL)
def test_points_come_first_in_their_order(algorithm: str) -> None:
    """A complete one as it is; the open values of a partial one are sampled, in its branch."""
    sweep = plan(algorithm, [FIRST, {"a": 3, "model": {"name": "tree"}}], [])
    first, second, third = run_trials(sweep, 3)
    assert first.values == FIRST
    assert first.origin | {"drawn": None} == {
        "kind": "given",
        "point": 0,
        "place": "s.hints.yml:1",
        "drawn": None,
    }
    assert second.values["a"] == 3
    assert second.values["model"]["name"] == "tree"
    assert second.origin["sampled"] == ["model.0.depth", "x", "y"]
    assert second.origin["rest"]["kind"] == ("sobol" if algorithm == "sobol" else "random")
    assert third.origin["kind"] in {"random", "sobol"}


def test_points_do_not_change_the_samples_after_them() -> None:
    """After two complete points a seed gives the same trials as without them."""
    bare = [sample.values for sample in run_trials(plan("random", [], []), 5)]
    hinted = [
        sample.values for sample in run_trials(plan("random", [FIRST, FIRST | {"a": 1}], []), 7)
    ]
    assert hinted[2:] == bare


def test_a_grid_begins_with_the_points_and_has_every_cell_once() -> None:
    """A partial point takes the first cell with its values; the other cells follow in order."""
    samples = run_trials(plan("grid", [{"a": 3, "b": 10}, {"b": 20}], []), 99)
    assert [sample.values for sample in samples] == [
        {"a": 3, "b": 10},
        {"a": 1, "b": 20},
        {"a": 1, "b": 10},
        {"a": 2, "b": 10},
        {"a": 2, "b": 20},
        {"a": 3, "b": 20},
    ]
    assert [sample.origin["kind"] for sample in samples] == ["given"] * 2 + ["grid"] * 4
    assert [sample.origin.get("cell") for sample in samples[2:]] == [0, 2, 3, 5]
    assert {sample.origin["of"] for sample in samples[2:]} == {6}


def test_a_point_without_a_free_cell_is_skipped() -> None:
    """Three partial points, two cells: the third trial is the next cell of the grid."""
    samples = run_trials(plan("grid", [{"a": 2}, {"a": 2}, {"a": 2}], []), 3)
    assert [sample.values["a"] for sample in samples] == [2, 2, 1]
    assert samples[2].origin["kind"] == "grid"


def test_a_grid_skips_cells_that_break_a_constraint() -> None:
    """It ends, and the origin has the number of skipped cells."""
    samples = run_trials(plan("grid", [], ["a * b <= 40", "a != 1"]), 99)
    assert [tuple(sample.values.values()) for sample in samples] == [(2, 10), (2, 20), (3, 10)]
    assert [sample.origin.get("refused", 0) for sample in samples] == [2, 0, 0]


CONSTRAINTS = ["x + y <= 0.5", "model.depth >= 5 or a == 1", "a < 3 or not given(model.penalty)"]


@pytest.mark.parametrize("algorithm", ALL)
def test_no_trial_breaks_a_constraint(algorithm: str) -> None:
    """A ninth of the space is feasible, and the best points of TPE are refused."""
    sweep = plan(algorithm, [{"x": 0.4}], CONSTRAINTS)
    samples = run_trials(sweep, 40, loss=lambda point: -point["x"] - point["y"])
    assert len(samples) == 40
    refused = 0
    for sample in samples:
        values: Mapping[str, Any] = sample.values
        model = values["model"]
        assert values["x"] + values["y"] <= 0.5
        assert model.get("depth", 9) >= 5 or values["a"] == 1
        assert values["a"] < 3 or "penalty" not in model
        refused += sample.origin.get("refused", 0)
    assert refused > 10
    kinds = {sample.origin["kind"] for sample in samples}
    assert ("tpe" in kinds) is (algorithm == "bayesian")
    assert ("evolution" in kinds) is (algorithm == "evolution")


@pytest.mark.parametrize("algorithm", [*ALL, "grid"])
def test_constraints_that_leave_nothing_end_the_sweep(algorithm: str) -> None:
    """With the line of the one that refused most, the number of points, and without a trial."""
    sweep = plan(algorithm, [], ["a > 0", "a > 5"])
    for attempt in (lambda: run_trials(sweep, 1), lambda: feasible_share(sweep)):
        with pytest.raises(UserError) as refused:
            attempt()
        (problem,) = refused.value.problems
        assert problem.code == "constraints-unsatisfiable"
        assert problem.place == Place("s.hints.yml", 11)
        count = "6" if algorithm == "grid" else "10,000"
        assert f"none of {count} sampled points" in problem.actual
        assert f"`a > 5` rejected {count}" in problem.actual
        assert refused.value.exit_code == Exit.WRONG_CALL


def test_points_that_tpe_never_reaches_are_drawn_at_random() -> None:
    """TPE draws twenty points that are refused; then random points find the feasible sliver."""
    sweep = plan("bayesian", [], ["x < 0.01 or a == 1"], search_space={k: SPACE[k] for k in "xa"})
    sampler = sampler_for(sweep, 3)
    for number in range(15):
        sample = sampler.ask()
        sampler.tell(sample.number, [float(number)], float(number))
    samples = [sampler.ask() for _ in range(30)]
    assert all(sample.values["x"] < 0.01 or sample.values["a"] == 1 for sample in samples)
    assert any(sample.origin.get("instead_of") == "tpe" for sample in samples)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_constraint_that_has_no_value_is_refused(algorithm: str) -> None:
    """A division by zero somewhere in the space: the line, the values, and a guard to write."""
    sweep = plan(algorithm, [], ["1 / (a - 2) < 9"])
    for attempt in (lambda: run_trials(sweep, 50), lambda: feasible_share(sweep)):
        with pytest.raises(UserError) as refused:
            attempt()
        (problem,) = refused.value.problems
        assert problem.code == "invalid-constraint"
        assert problem.place == Place("s.hints.yml", 10)
        assert "a=2" in problem.actual
        assert "x == 0 or" in problem.hint
    guarded = plan(algorithm, [], ["a == 2 or 1 / (a - 2) < 9"])
    assert len(run_trials(guarded, 50)) == 50


@pytest.mark.parametrize(
    ("algorithm", "constraint", "share"),
    [("random", "x <= 0.25", 0.25), ("bayesian", "a == 1", 1 / 3), ("grid", "a == 1", 1 / 3)],
)
def test_the_feasible_share(algorithm: str, constraint: str, share: float) -> None:
    """Estimated from a thousand points, counted for a grid; 1 without constraints."""
    assert feasible_share(plan(algorithm, [], [constraint])) == pytest.approx(share, abs=0.05)
    assert feasible_share(plan(algorithm, [], [])) == 1


@pytest.mark.parametrize("algorithm", [*ALL, "grid"])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_resumed_sweep_keeps_to_its_hints(algorithm: str, after: int) -> None:
    """Recalled trials count: a point is tried once, and a sequence continues after them."""
    constraints = ["a < 3"] if algorithm == "grid" else CONSTRAINTS
    sweep = plan(algorithm, [{"a": 1}, {"a": 2}], constraints)
    complete = run_trials(sweep, 4 if algorithm == "grid" else 14)
    sampler = sampler_for(sweep, 1)
    for sample in complete[:after]:
        saved = json.loads(json.dumps(asdict(sample)))
        sampler.recall(Sample(**saved))
        sampler.tell(sample.number, [0.5], 0.5)
    for sample in complete[after:]:
        again = sampler.ask()
        assert again == sample
        sampler.tell(again.number, [0.5], 0.5)
