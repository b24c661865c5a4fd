"""Azure ML's distributions: ranges, steps, shapes, nested choices."""

from __future__ import annotations

import math
import re
from statistics import fmean, pstdev

import pytest
from scipy import stats
from scipy.stats import qmc

from ml.core.errors import Exit, Place, UserError
from ml.specs.plan.plans import CommandPlan, Dimension, Environment, SweepPlan
from ml.specs.search.distributions import Misfit, Variable, locate
from ml.sweeps.samplers import sampler_for
from ml.sweeps.sources import Candidate, cells, draw, size

HERE = Place("sweep.yml", 4)


def dim(kind: str, *args: object, name: str = "x") -> Dimension:
    return Dimension(name, kind, args, HERE)


def sweep(space: dict[str, Dimension], **changes: object) -> SweepPlan:
    """A sweep over a space, random by default."""
    trial = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
    given = {"algorithm": "random", "goal": "minimize", "primary_metric": "loss", **changes}
    return SweepPlan(HERE, "s", "e", trial, space, **given)


def sample(dimension: Dimension, count: int = 2000, seed: int = 0, **changes: object) -> list:
    """Values of one dimension, by random sampling by default."""
    sampler = sampler_for(sweep({"x": dimension}, **changes), seed)
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
    """A Kolmogorov-Smirnov test against scipy's distribution of the documented definition: "drawn
    according to exp(Uniform(min_value, max_value))", "exp(Normal(mu, sigma))" and so on."""
    assert stats.kstest(sample(dimension), distribution.cdf).pvalue > 0.01
    assert stats.kstest(sample(dimension, 512, rule="sobol"), distribution.cdf).pvalue > 0.01
    assert sample(dimension, 5, seed=3) == sample(dimension, 5, seed=3) != sample(dimension, 5)


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


def shares(dimension: Dimension) -> dict[float, float]:
    """The probability of each value: that of the exact distribution within half a step of it."""
    args = dimension.args
    if dimension.kind == "choice":
        return dict.fromkeys(args, 1 / len(args))
    if dimension.kind == "randint":
        return dict.fromkeys(range(args[0]), 1 / args[0])
    law = {
        "quniform": lambda: stats.uniform(args[0], args[1] - args[0]),
        "qloguniform": lambda: stats.loguniform(math.exp(args[0]), math.exp(args[1])),
        "qnormal": lambda: stats.norm(args[0], args[1]),
        "qlognormal": lambda: stats.lognorm(s=args[1], scale=math.exp(args[0])),
    }[dimension.kind]()
    q = args[2]
    steps = range(round(law.ppf(1e-9) / q), round(law.ppf(1 - 1e-9) / q) + 1)
    return {n * q: law.cdf((n + 0.5) * q) - law.cdf((n - 0.5) * q) for n in steps}


@pytest.mark.parametrize("rule", ["random", "sobol"])
@pytest.mark.parametrize(
    "dimension",
    [
        dim("choice", 16, 32, 64, 128),
        dim("randint", 7),
        dim("quniform", 20, 100, 5),
        dim("quniform", 0.1, 1.0, 0.05),
        dim("quniform", 3, 11, 4),
        dim("qloguniform", 0.0, 4.0, 2),
        dim("qnormal", 50, 10, 5),
        dim("qlognormal", 1.0, 0.5, 0.5),
    ],
    ids=lambda value: f"{value.kind}{value.args}" if isinstance(value, Dimension) else str(value),
)
def test_discrete_distributions(dimension: Dimension, rule: str) -> None:
    """A chi-squared test of how often each value comes against the documented definition, such as
    "QUniform(min_value, max_value, q) - Returns a value like round(Uniform(min_value, max_value) /
    q) * q" (Hyperparameter tuning a model (v2)): the ends are as likely as what rounds to them."""
    values = sample(dimension, 2048, rule=rule)
    expected = shares(dimension)
    close = {value: min(expected, key=lambda center: abs(center - value)) for value in set(values)}
    assert all(abs(value - center) < 1e-9 for value, center in close.items())
    often = [
        (sum(close[v] == center for v in values), 2048 * share)
        for center, share in expected.items()
    ]
    rare = [pair for pair in often if pair[1] < 5]
    counted = [pair for pair in often if pair[1] >= 5]
    if sum(share for _, share in rare) > 1:
        counted.append((sum(n for n, _ in rare), sum(share for _, share in rare)))
    seen, wanted = zip(*counted, strict=True)
    total = sum(seen) / sum(wanted)
    assert stats.chisquare(seen, [center * total for center in wanted]).pvalue > 0.01


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
    sampler = sampler_for(sweep({"model": NESTED}), 1)
    seen = [sampler.ask().values["model"] for _ in range(30)]
    assert {tuple(sorted(value)) for value in seen} == {
        ("depth", "name"),
        ("name", "penalty"),
    }
    assert all(value["depth"] in {3, 5} for value in seen if value["name"] == "tree")


def test_grid_is_the_product_with_nested_branches() -> None:
    """Two sizes times (two trees + one linear model without a free parameter) are six points."""
    model = dim(
        "choice", {"name": "tree", "depth": dim("choice", 3, 5, name="depth")}, "linear", name="m"
    )
    space = {"size": dim("choice", 1, 2, name="size"), "model": model}
    points = [cell.values for cell in cells(space)]
    assert len(points) == size(space) == 6
    assert points[0] == {"size": 1, "model": {"name": "tree", "depth": 3}}
    assert points[-1] == {"size": 2, "model": "linear"}


def test_grid_refuses_a_continuous_dimension() -> None:
    """It names the dimension and its line."""
    with pytest.raises(UserError) as refused:
        sampler_for(sweep({"x": dim("uniform", 0, 1)}, algorithm="grid"), 0).ask()
    assert refused.value.problems[0].code == "grid-needs-choices"
    assert refused.value.problems[0].place == HERE


def test_an_unknown_distribution_is_refused() -> None:
    """With exit code 33, not with a guess."""
    with pytest.raises(UserError) as refused:
        sample(dim("triangular", 0, 1), 1)
    assert refused.value.exit_code == Exit.CANNOT_HONOUR


def test_sobol_covers_the_space_evenly() -> None:
    """64 points fill 64 equal cells of a unit interval: each holds exactly one."""
    values = sample(dim("uniform", 0, 64), 64, seed=3, rule="sobol")
    assert sorted(int(value) for value in values) == list(range(64))


def test_sobol_has_a_lower_discrepancy_than_random_sampling() -> None:
    """128 points in three dimensions, by the centred L2 discrepancy, for each of ten seeds."""
    space = {name: dim("uniform", 0.0, 1.0, name=name) for name in "abc"}

    def discrepancy(rule: str, seed: int) -> float:
        sampler = sampler_for(sweep(space, rule=rule), seed)
        rows = [list(sampler.ask().values.values()) for _ in range(128)]
        return qmc.discrepancy(rows)

    for seed in range(10):
        assert discrepancy("sobol", seed) < 0.2 * discrepancy("random", seed)


def test_sobol_takes_every_distribution() -> None:
    """Also those that are not uniform, and nested choices."""
    space = {"model": NESTED, "x": dim("normal", 0, 1), "n": dim("randint", 3)}
    sampler = sampler_for(sweep(space, rule="sobol"), 0)
    drawn = [sampler.ask().values for _ in range(64)]
    normals = [values["x"] for values in drawn]
    assert fmean(normals) == pytest.approx(0, abs=0.2)
    assert pstdev(normals) == pytest.approx(1, abs=0.2)
    assert {values["n"] for values in drawn} == {0, 1, 2}


def test_branches_have_variables_of_their_own() -> None:
    """Two branches with a parameter of the same name are two parameters to the sampler."""
    asked = []

    def last(variable: Variable) -> float:
        asked.append(variable.path)
        return variable.high if variable.kind == "choice" else variable.low

    same = dim("choice", {"d": dim("uniform", 0, 1)}, {"d": dim("uniform", 5, 9)}, name="m")
    assert draw({"m": same}, last) == Candidate({"m": {"d": 5}}, {"m": 1, "m.1.d": 5})
    assert asked == ["m", "m.1.d"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "dimension",
    [
        dim("choice", "gbdt", 7, 0.5, True),
        dim("randint", 5),
        dim("uniform", -2.0, 3.0),
        dim("quniform", 0.1, 1.0, 0.05),
        dim("loguniform", -7.0, 2.0),
        dim("qloguniform", 0.0, 4.0, 2),
        dim("normal", 10.0, 3.0),
        dim("qnormal", 50, 10, 5),
        dim("lognormal", 0.5, 0.25),
        dim("qlognormal", 1.0, 0.5, 0.5),
        NESTED,
    ],
    ids=lambda value: value.kind if isinstance(value, Dimension) else "",
)
def test_every_sampled_value_may_be_a_hint(dimension: Dimension, seed: int) -> None:
    """Every value that a sampler draws may stand in a hint, and the trial gets exactly that."""
    for value in sample(dimension, 20, seed):
        known = locate({"x": dimension}, {"x": value})
        again = draw(
            {"x": dimension}, lambda variable: pytest.fail(f"{variable} was asked for"), known
        )
        assert again.values["x"] == value
        assert type(again.values["x"]) is type(value)


@pytest.mark.parametrize(
    ("dimension", "value", "allowed", "found"),
    [
        (dim("choice", 1, 2), 2, True, ""),
        (dim("choice", 1, 2), 3, False, "not a choice of `x`"),
        (dim("choice", 1, 2), True, False, "not a choice of `x`"),
        (dim("choice", "1"), 1, False, "not a choice of `x`"),
        (dim("uniform", 0, 1), 1.0, True, ""),
        (dim("uniform", 0, 1), 1.01, False, "outside of its uniform(0, 1)"),
        (dim("uniform", 0, 1), "0.5", False, "`x` is '0.5'"),
        (dim("uniform", 0, 1), math.nan, False, "nan"),
        (dim("loguniform", -3, 0), math.exp(-3), True, ""),
        (dim("loguniform", -3, 0), -1, False, "outside"),
        (dim("loguniform", -3, 0), 0, False, "outside"),
        (dim("quniform", 20, 100, 5), 35, True, ""),
        (dim("quniform", 20, 100, 5), 36, False, "never yields"),
        (dim("randint", 4), 3, True, ""),
        (dim("randint", 4), 4, False, "outside"),
        (dim("randint", 4), 1.5, False, "never yields"),
        (dim("normal", 0, 1), 5.9, True, ""),
        (dim("normal", 0, 1), 7, False, "outside"),
        (dim("lognormal", 0, 1), 0, False, "outside"),
        (NESTED, {"name": "tree"}, True, ""),
        (NESTED, {"penalty": 0.5}, True, ""),
        (NESTED, {"penalty": 2}, False, "outside"),
        (NESTED, {"name": "forest"}, False, "no branch"),
        (NESTED, {}, False, "2 branches"),
        (NESTED, "tree", False, "not a choice"),
    ],
)
def test_which_values_may_be_hints(
    dimension: Dimension, value: object, allowed: bool, found: str
) -> None:
    """Those that the distribution can yield, with their types."""
    if allowed:
        assert "x" in locate({"x": dimension}, {"x": value})
        return
    with pytest.raises(Misfit, match=re.escape(found)) as misfit:
        locate({"x": dimension}, {"x": value})
    assert misfit.value.expected


def test_a_hint_selects_the_branch_that_can_yield_it() -> None:
    """Two branches with the same name: only the second yields 7; both yield 5.5: refused."""
    both = dim("choice", {"d": dim("uniform", 0, 6)}, {"d": dim("uniform", 5, 9)}, name="m")
    assert locate({"m": both}, {"m": {"d": 7}})["m"].raw == 1
    with pytest.raises(Misfit, match="2 branches"):
        locate({"m": both}, {"m": {"d": 5.5}})
