"""ml.release.ab.sequence: the share of wrong verdicts and the power, by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ml.release.ab.sequence import (
    Flags,
    Floats,
    fixed_size,
    sample_size,
    score_deviation,
    sequence,
    width,
)

TESTS, ALPHA = 2000, 0.05
Draw = Callable[[np.random.Generator, Flags], Floats]


def rate(p: float, effect: float = 0.0) -> Draw:
    """Yes or no; B's rate is higher by the effect."""
    return lambda rng, is_b: (rng.random(is_b.shape) < p + effect * is_b).astype(np.float64)


def excludes(draw: Draw, share: float, records: int, planned: float, binary: bool) -> Flags:
    """(tests, records): whether the interval leaves out zero after each record."""
    rng = np.random.default_rng(3)
    is_b = rng.random((TESTS, records)) < share
    found = sequence(is_b, draw(rng, is_b), share, ALPHA, planned, binary)
    with np.errstate(invalid="ignore"):
        return np.asarray((found.low > 0) | (found.high < 0))


@pytest.mark.parametrize(
    ("draw", "share", "planned", "binary"),
    [
        pytest.param(rate(0.4), 0.5, 500, True, id="rate 0.4"),
        *(
            pytest.param(*case, id=name, marks=pytest.mark.slow)
            for name, *case in (
                ("planned far too short", rate(0.4), 0.5, 150, True),
                ("rate 0.01, a tenth for B", rate(0.01), 0.1, 500, True),
                ("rate 0.99, a tenth for B", rate(0.99), 0.1, 500, True),
                ("normal", lambda rng, b: rng.normal(500, 9, b.shape), 0.5, 500, False),
                ("skewed", lambda rng, b: rng.lognormal(0, 1, b.shape), 0.3, 500, False),
            )
        ),
    ],
)
def test_an_aa_test_is_wrong_no_more_often_than_stated(
    draw: Draw, share: float, planned: float, binary: bool
) -> None:
    """2,000 A/A tests, looked at after every one of 1,500 records: at most alpha ever err."""
    assert excludes(draw, share, 1500, planned, binary).any(axis=-1).mean() <= ALPHA


def test_the_power_is_what_was_calculated() -> None:
    """At the planned count the power is 0.8, to within four standard errors; sooner is a bonus."""
    p, effect = 0.4, 0.15
    spread = score_deviation((p * (1 - p)) ** 0.5, ((p + effect) * (1 - p - effect)) ** 0.5, 0.5)
    planned = sample_size(spread, effect, ALPHA, 0.8)
    hits = excludes(rate(p, effect), 0.5, planned, planned, True)
    assert abs(hits[:, -1].mean() - 0.8) <= 4 * (0.8 * 0.2 / TESTS) ** 0.5
    assert hits.any(axis=-1).mean() >= 0.8
    half_of_them = np.sort(np.where(hits.any(axis=-1), hits.argmax(axis=-1), planned))[TESTS // 2]
    assert half_of_them < 0.65 * planned


def test_a_single_look_needs_fewer() -> None:
    """The textbook's figure: 0.4 against 0.45 takes 3,062 in two halves, at 80 % and 5 %."""
    spread = score_deviation((0.4 * 0.6) ** 0.5, (0.45 * 0.55) ** 0.5, 0.5)
    assert fixed_size(spread, 0.05, 0.05, 0.8) == 3062
    assert 1.8 < sample_size(spread, 0.05, 0.05, 0.8) / 3062 < 2


def test_the_interval_is_tightest_where_it_was_planned() -> None:
    """Of all plans, that for n outcomes has the narrowest interval at n."""
    at = {planned: float(width(1000, ALPHA, planned)) for planned in (250, 800, 1000, 1250, 4000)}
    assert min(at, key=lambda planned: at[planned]) == 1000


@given(some.floats(-1e6, 1e6), some.floats(1e-3, 1e3))
def test_the_unit_of_the_outcome_does_not_matter(shift: float, scale: float) -> None:
    """Moved and stretched outcomes have the interval stretched."""
    rng = np.random.default_rng(0)
    is_b, values = rng.random(400) < 0.5, rng.normal(size=400)
    plain = sequence(is_b, values, 0.5, ALPHA, 500, False)
    other = sequence(is_b, shift + scale * values, 0.5, ALPHA, 500, False)
    np.testing.assert_allclose(other.low[-1], scale * plain.low[-1], rtol=1e-4, atol=1e-6 * scale)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_outcomes_that_are_all_the_same_say_nothing(value: float) -> None:
    """A rate of 0 in both is no proof that there is no difference."""
    is_b = np.arange(500) % 2 == 0
    assert np.isnan(sequence(is_b, np.full(500, value), 0.5, ALPHA, 500, True).low).all()


def test_nothing_is_said_of_a_version_with_few_outcomes() -> None:
    """Until each has enough, however many the other has."""
    rng = np.random.default_rng(0)
    is_b = np.arange(2000) % 100 == 0
    found = sequence(is_b, rng.normal(size=2000), 0.01, ALPHA, 500, False)
    assert np.isnan(found.low).all()
