"""policies.promotion.champion_gates: the paired bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ml.measures.metrics import BINARY, Draws, ScoredRows
from policies.promotion.champion_gates import (
    FEWEST_GROUPS,
    STATISTIC_RESAMPLES,
    difference,
    difference_of_statistics,
)
from policies.promotion.evidence import Statistic


def units(values: list[float]) -> dict[str, float]:
    """Values by unit."""
    return {f"u{number}": value for number, value in enumerate(values)}


def test_equal_models_differ_by_nothing() -> None:
    """The same values give an interval of width zero at zero."""
    found = difference(units([1, 0, 1] * 50), units([1, 0, 1] * 50), 0.95)
    assert (found.mean, found.low, found.high, found.count) == (0, 0, 0, 150)


def test_the_pairing_is_by_unit_not_by_order() -> None:
    """The order of the units does not matter."""
    ours, theirs = units([1, 1, 0, 0] * 30), units([0, 1, 0, 1] * 30)
    backwards = dict(reversed(theirs.items()))
    assert difference(ours, theirs, 0.95) == difference(ours, backwards, 0.95)


def test_swapping_the_sides_mirrors_the_interval() -> None:
    """Candidate against champion is the mirror image, except for the bootstrap's noise."""
    chance = np.random.default_rng(1)
    ours = units(list(map(float, chance.integers(0, 2, 500))))
    theirs = units(list(map(float, chance.integers(0, 2, 500))))
    one, other = difference(ours, theirs, 0.95), difference(theirs, ours, 0.95)
    assert one.mean == pytest.approx(-other.mean)
    assert one.low == pytest.approx(-other.high, abs=0.004)


@pytest.mark.parametrize("spread", ["three values", "continuous"])
def test_it_equals_the_bootstrap_of_units(spread: str) -> None:
    """Drawing counts of distinct differences equals resampling units one by one."""
    chance = np.random.default_rng(2)
    if spread == "three values":
        ours, theirs = chance.random(400) < 0.8, chance.random(400) < 0.7
        values = ours.astype(float) - theirs.astype(float)
    else:
        values = chance.normal(0.1, 1, 400)
    found = difference(units(list(values)), units([0.0] * 400), 0.95)
    drawn = values[chance.integers(0, 400, size=(10_000, 400))].mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    width = high - low
    assert found.low == pytest.approx(low, abs=0.03 * width)
    assert found.high == pytest.approx(high, abs=0.03 * width)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Over 400 experiments with a known difference, about 95 % of the intervals cover it."""
    chance = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        values = list(chance.choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=200))
        found = difference(units(values), units([0.0] * 200), 0.95)
        covered += found.low <= 0.1 <= found.high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}),
        ({"a": math.nan}, {"a": 1.0}),
        ({"a": 1.0}, {"a": math.inf}),
    ],
)
def test_what_cannot_be_paired_raises(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """Other units, no units and values that are not finite are refused."""
    with pytest.raises(ValueError):
        difference(ours, theirs, 0.95)


def test_units_of_a_group_are_drawn_together() -> None:
    """Forty groups of ten units that agree: an interval about three times as wide."""
    rng = np.random.default_rng(0)
    values = np.repeat(rng.normal(size=40), 10)
    ours = {f"u{number:03}": float(value) for number, value in enumerate(values)}
    theirs = dict.fromkeys(ours, 0.0)
    groups = {unit: unit[:3] for unit in ours}
    alone, together = difference(ours, theirs, 0.95), difference(ours, theirs, 0.95, groups)
    assert alone.mean == together.mean and together.count == 400
    assert 2.5 < (together.high - together.low) / (alone.high - alone.low) < 3.8


def test_a_unit_without_a_group_and_too_few_groups_are_refused() -> None:
    """Neither has a fallback."""
    ours = {f"u{number}": 1.0 for number in range(20)}
    with pytest.raises(ValueError, match="no group"):
        difference(ours, ours, 0.95, {"u1": "a"})
    with pytest.raises(ValueError, match="2 groups"):
        difference(ours, ours, 0.95, {unit: (unit[1] < "5" and "a") or "b" for unit in ours})


def mean(values: np.ndarray) -> Statistic:
    """The mean of the units' values, which has a value a unit as well."""

    def statistic(names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
        own = values[[int(name[1:]) for name in names]]
        return lambda times: np.asarray(times @ own / times.sum(axis=1))

    return statistic


def area(labels: np.ndarray, scores: np.ndarray) -> Statistic:
    """The AUC of the units."""
    scored = ScoredRows(
        labels.astype(str), labels.astype(str), np.zeros(len(labels), np.int64), scores
    )
    of_all = BINARY["auc"].of_all
    assert of_all is not None

    def statistic(names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
        own = scored[[int(name[1:]) for name in names]]
        return lambda times: of_all(Draws(own, times))

    return statistic


@pytest.mark.parametrize("grouped", [False, True])
def test_a_mean_compared_as_a_statistic_is_compared_as_before(grouped: bool) -> None:
    """The same difference, and the same interval but for the draws."""
    chance = np.random.default_rng(4)
    ours, theirs = chance.normal(0.1, 1, 400), chance.normal(0, 1, 400)
    names = units([0.0] * 400)
    groups = {name: f"g{at // 8}" for at, name in enumerate(names)} if grouped else None
    one = difference(units(list(ours)), units(list(theirs)), 0.95, groups)
    other = difference_of_statistics(names, mean(ours), mean(theirs), 0.95, groups)
    width = one.high - one.low
    assert other.mean == pytest.approx(one.mean) and other.count == one.count == 400
    assert other.low == pytest.approx(one.low, abs=0.06 * width)
    assert other.high == pytest.approx(one.high, abs=0.06 * width)
    assert other == difference_of_statistics(names, mean(ours), mean(theirs), 0.95, groups)


def test_two_aucs_are_compared_on_the_same_draws() -> None:
    """As a loop over resamples does; the same model twice differs by nothing."""
    chance = np.random.default_rng(5)
    labels = chance.integers(0, 2, 200)
    ours, theirs = (np.clip(labels * by + chance.random(200), 0, 1.5) / 1.5 for by in (0.5, 0.3))
    names = units([0.0] * 200)
    same = difference_of_statistics(names, area(labels, ours), area(labels, ours), 0.95)
    assert (same.mean, same.low, same.high, same.count) == (0, 0, 0, 200)
    found = difference_of_statistics(names, area(labels, ours), area(labels, theirs), 0.95)
    drawn = []
    for _ in range(STATISTIC_RESAMPLES):  # by pairs: sklearn takes seconds for as many
        at = chance.integers(0, 200, 200)
        ones, zeros = at[labels[at] == 1], at[labels[at] == 0]
        won = [np.sign(np.subtract.outer(of[ones], of[zeros])).mean() for of in (ours, theirs)]
        drawn.append((won[0] - won[1]) / 2)
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert found.mean == roc_auc_score(labels, ours) - roc_auc_score(labels, theirs)
    assert found.low == pytest.approx(low, abs=0.08 * (high - low))
    assert found.high == pytest.approx(high, abs=0.08 * (high - low))


def test_a_statistic_that_is_not_defined_is_not_compared() -> None:
    """On units of one label; on few groups; on units of which most draws have one label."""
    labels, scores = np.array([1] * 50 + [0] * 50), np.linspace(0, 1, 100)
    auc, every = area(labels, scores), list(units([0.0] * 100))
    with pytest.raises(ValueError, match="not defined on these units"):
        difference_of_statistics(every[:50], auc, auc, 0.95)
    groups = {name: f"g{at % (FEWEST_GROUPS - 1)}" for at, name in enumerate(every)}
    with pytest.raises(ValueError, match="groups"):
        difference_of_statistics(every, auc, auc, 0.95, groups)

    def rarely(names: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
        return lambda times: np.where(times.min(axis=1) > 0, auc(names)(times), np.nan)

    with pytest.raises(ValueError, match="most draws"):
        difference_of_statistics(every, rarely, auc, 0.95)
