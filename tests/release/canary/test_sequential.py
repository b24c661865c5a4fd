"""The sequential test: the level holds at every look, and bad greens are detected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from ml.release.canary.verdict import EVEN, RARE, averaged, log_e_value

CANARIES = 4000
counts = some.integers(0, 2000).flatmap(
    lambda requests: some.tuples(some.integers(0, requests), some.just(requests))
)


def ever(p_green: float, p_blue: float, margin: float, level: float) -> float:
    """The share of canaries that are refused at any of 60 looks, each after 30 requests."""
    draw = np.random.default_rng(7)
    g = np.cumsum(draw.binomial(10, p_green, (CANARIES, 60)), axis=1)
    b = np.cumsum(draw.binomial(20, p_blue, (CANARIES, 60)), axis=1)
    n = 10 * np.arange(1, 61)
    logs = log_e_value(g, n, b, 2 * n, margin, RARE)
    return float((logs.max(axis=1) >= math.log(1 / level)).mean())


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.2])
def test_looking_every_time_keeps_the_level(rate: float) -> None:
    """Green at the very border of what is tolerated is refused in at most the level's share."""
    assert ever(rate + 0.02, rate, 0.02, 0.05) <= 0.05


def test_a_worse_green_is_seen() -> None:
    """2 % of errors against none, at a 300th: nearly always within 600 requests."""
    assert ever(0.05, 0.0, 0.002, 1 / 300) >= 0.99


@given(counts, counts, some.floats(0, 0.5))
def test_green_no_worse_than_tolerated_is_no_evidence(
    green: tuple[int, int], blue: tuple[int, int], margin: float
) -> None:
    """As long as the shares seen are within the margin, nothing speaks against green."""
    (g, n), (b, m) = green, blue
    if n == 0 or m == 0 or g / n <= b / m + margin:
        for prior in (EVEN, RARE):
            assert float(log_e_value(g, n, b, m, margin, prior)) <= 1e-9


@given(counts, counts, some.floats(0.001, 0.4))
def test_one_more_error_of_greens_is_never_for_it(
    green: tuple[int, int], blue: tuple[int, int], margin: float
) -> None:
    """Once it is worse than tolerated, evidence rises with green's errors (up to one in two)."""
    (g, n), (b, m) = green, blue
    if n > 0 and m > 0 and g + 1 <= n / 2 and g / n > b / m + margin:
        here = float(log_e_value(g, n, b, m, margin))
        assert float(log_e_value(g + 1, n, b, m, margin)) >= here - 1e-6


@pytest.mark.parametrize(
    ("g", "n", "b", "m"),
    [(2, 1, 0, 1), (-1, 1, 0, 1), (0, 1, math.nan, 1), (0, math.inf, 0, 1), (math.nan, 1, 0, 1)],
)
def test_what_are_no_counts_is_refused(g: float, n: float, b: float, m: float) -> None:
    """Instead of a number that compares false with every limit."""
    with pytest.raises(ValueError, match="counts"):
        log_e_value(g, n, b, m, 0.01)


def test_averages_are_of_the_evidence_not_of_its_logarithm() -> None:
    """One of four at 8 and three at 0 make 2; none make no evidence."""
    assert averaged([math.log(8), *[-math.inf] * 3]) == pytest.approx(math.log(2))
    assert averaged([]) == -math.inf
