"""Azure ML's distributions: ranges, steps, shapes, nested choices."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import pytest
from scipy import stats

from ml.specs.plan import Dimension
from ml.specs.problems import Exit, Place, Refused
from ml.sweeps.samplers import Listed, Optuna, sobol
from ml.sweeps.space import draw, points

HERE = Place("sweep.yml", 4)


def dim(kind: str, *args: object, name: str = "x") -> Dimension:
    return Dimension(name, kind, args, HERE)


def sample(dimension: Dimension, count: int = 400, seed: int = 0) -> list[float]:
    """Values of one dimension by random sampling."""
    sampler = Optuna({"x": dimension}, "random", "maximize", seed, 1)
    return [sampler.ask().values["x"] for _ in range(count)]


@pytest.mark.parametrize(
    ("dimension", "distribution"),
    [
        (dim("uniform", 2.0, 5.0), stats.uniform(2, 3)),
        (dim("loguniform", -3.0, 1.0), stats.loguniform(math.exp(-3), math.exp(1))),
        (dim("normal", 10.0, 3.0), stats.norm(10, 3)),
        (dim("lognormal", 0.5, 0.25), stats.lognorm(s=0.25, scale=math.exp(0.5))),
    ],
    ids=lambda value: value.kind if isinstance(value, Dimension) else "",
)
def test_continuous_distributions(dimension: Dimension, distribution: stats.rv_continuous) -> None:
    """A Kolmogorov-Smirnov test against scipy's distribution of the documented definition."""
    assert stats.kstest(sample(dimension), distribution.cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("dimension", "step", "low", "high"),
    [
        (dim("quniform", 20, 100, 5), 5, 20, 100),
        (dim("quniform", 0.1, 1.0, 0.05), 0.05, 0.1, 1.0),
        (dim("qloguniform", 0.0, 4.0, 2), 2, round(1 / 2) * 2, round(math.exp(4) / 2) * 2),
        (dim("qnormal", 50, 10, 5), 5, -50, 150),
        (dim("qlognormal", 1.0, 0.5, 0.5), 0.5, 0.0, 60.0),
    ],
    ids=lambda value: value.kind if isinstance(value, Dimension) else "",
)
def test_quantised_distributions(
    dimension: Dimension, step: float, low: float, high: float
) -> None:
    """`round(value / q) * q`: multiples of q, within the range that rounding leaves."""
    values = sample(dimension)
    assert all(abs(value / step - round(value / step)) < 1e-9 for value in values)
    assert min(values) >= low
    assert max(values) <= high
    assert len(set(values)) > 5


def test_an_integral_step_yields_integers() -> None:
    """So that a script's `type=int` takes `35`; with a decimal step there is no binary noise."""
    assert all(isinstance(value, int) for value in sample(dim("quniform", 20, 100, 5), 20))
    assert {str(value) for value in sample(dim("quniform", 0.1, 0.3, 0.1))} == {"0.1", "0.2", "0.3"}


def test_quniform_halves_the_ends() -> None:
    """Rounding gives the two ends of the range half the weight of the rest, unlike a step grid."""
    values = sample(dim("quniform", 0, 4, 1), 2000)
    share = [values.count(value) / len(values) for value in range(5)]
    assert share[0] == pytest.approx(0.125, abs=0.03)
    assert share[2] == pytest.approx(0.25, abs=0.03)


def test_randint_leaves_the_upper_bound_out() -> None:
    """Integers in [0, upper)."""
    assert set(sample(dim("randint", 4))) == {0, 1, 2, 3}


def test_choice_keeps_the_type_of_its_values() -> None:
    """Text, numbers and booleans come back as they were written."""
    values = {repr(value) for value in sample(dim("choice", "gbdt", 7, 0.5, True))}
    assert values == {"'gbdt'", "7", "0.5", "True"}


NESTED = dim(
    "choice",
    {"name": "tree", "depth": dim("choice", 3, 5, name="depth")},
    {"name": "linear", "penalty": dim("uniform", 0.0, 1.0, name="penalty")},
    name="model",
)


def test_a_nested_choice_draws_its_own_branch_alone() -> None:
    """A conditional space: `depth` belongs to trees, `penalty` to linear models; constants stay."""
    sampler = Optuna({"model": NESTED}, "random", "maximize", 1, 1)
    seen = [sampler.ask().values["model"] for _ in range(30)]
    assert {tuple(sorted(value)) for value in seen} == {
        ("depth", "name"),
        ("name", "penalty"),
    }
    assert all(value["depth"] in {3, 5} for value in seen if value["name"] == "tree")


def test_grid_is_the_product_with_nested_branches() -> None:
    """Two sizes times (two trees + one linear without a free parameter) are six points."""
    model = dim(
        "choice", {"name": "tree", "depth": dim("choice", 3, 5, name="depth")}, "linear", name="m"
    )
    found = list(points({"size": dim("choice", 1, 2, name="size"), "model": model}))
    assert len(found) == 6
    assert found[0] == {"size": 1, "model": {"name": "tree", "depth": 3}}
    assert found[-1] == {"size": 2, "model": "linear"}


def test_grid_refuses_a_continuous_dimension() -> None:
    """It names the dimension and its line."""
    with pytest.raises(Refused) as refused:
        Listed(points({"x": dim("uniform", 0, 1)}), "grid").ask()
    assert refused.value.problems[0].code == "grid-needs-choices"
    assert refused.value.problems[0].place == HERE


def test_an_unknown_distribution_is_refused() -> None:
    """With exit code 33, not with a guess."""
    with pytest.raises(Refused) as refused:
        sample(dim("triangular", 0, 1), 1)
    assert refused.value.exit_code == Exit.CANNOT_HONOUR


def test_sobol_covers_the_space_more_evenly_than_chance() -> None:
    """64 points fill 64 equal cells of a unit interval: each holds exactly one."""
    sequence = sobol({"x": dim("uniform", 0, 64)}, seed=3)
    assert sorted(int(next(sequence)["x"]) for _ in range(64)) == list(range(64))


def test_sobol_takes_every_distribution() -> None:
    """Also those that are not uniform, and nested choices."""
    space = {"model": NESTED, "x": dim("normal", 0, 1), "n": dim("randint", 3)}
    drawn = [one for one, _ in zip(sobol(space, 0), range(64), strict=False)]
    normals = [one["x"] for one in drawn]
    assert fmean(normals) == pytest.approx(0, abs=0.2)
    assert pstdev(normals) == pytest.approx(1, abs=0.2)
    assert {one["n"] for one in drawn} == {0, 1, 2}


def test_draw_names_branches_apart() -> None:
    """Two branches with a parameter of the same name are two parameters to the sampler."""
    asked = []

    class Recorder:
        def suggest_categorical(self, name: str, choices: object) -> int:
            asked.append(name)
            return 1

        def suggest_float(self, name: str, low: float, high: float) -> float:
            asked.append(name)
            return low

        def suggest_int(self, name: str, low: int, high: int) -> int:
            raise AssertionError

    same = dim("choice", {"d": dim("uniform", 0, 1)}, {"d": dim("uniform", 5, 9)}, name="m")
    assert draw({"m": same}, Recorder()) == {"m": {"d": 5}}
    assert asked == ["m", "m.1.d"]
