"""Scales: the kind for given values, and the ticks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.reports.charts.scales import Category, Linear, Log, bounds, scale_of


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], Linear),
        ([10.0**-power for power in range(8)], Log),
        ([7, 15, 31, 7], Category),
        (["adam", "sgd"], Category),
        ([True, False], Category),
        ([1, "auto"], Category),
        ([0.1, math.nan], Category),
        ([10**400, 1], Category),
    ],
)
def test_the_kind_of_scale(values: list[object], kind: type) -> None:
    """By the values; each of them has a pixel."""
    scale = scale_of(values, 300.0, 50.0)
    assert isinstance(scale, kind)
    assert all(50 <= scale(value) <= 300 for value in values)
    assert scale.ticks(5)


def test_ticks_are_round() -> None:
    """At 1, 2 or 5 times a power of ten, with as many digits as they need."""
    assert [label for _, label in Linear(0.613, 0.687, 0, 100).ticks(4)] == [
        "0.62",
        "0.64",
        "0.66",
        "0.68",
    ]
    assert [label for _, label in Linear(0, 1000, 0, 100).ticks(2)] == ["0", "500", "1,000"]
    assert [label for _, label in Log(0.001, 1.0, 0, 100).ticks(5)] == ["0.001", "0.01", "0.1", "1"]
    assert [label for _, label in Category((7, 15, 31), 0, 100).ticks()] == ["7", "15", "31"]
    assert len(Category(tuple(range(100)), 0, 100).ticks()) <= 12


def test_an_outlier_does_not_flatten_the_others() -> None:
    """A diverged trial is drawn at the edge; without outliers the whole range is drawn."""
    low, high = bounds([0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 1e6])
    assert high < 1
    assert Linear(low, high, 0.0, 100.0)(1e6) == 100.0
    low, high = bounds([0.1, 0.5, 0.9])
    assert low < 0.1
    assert high > 0.9


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_any_finite_values_can_be_drawn(values: list[float]) -> None:
    """No overflow, no division by zero, a bounded number of ticks."""
    low, high = bounds(values)
    scale = Linear(low, high, 250.0, 34.0)
    assert all(34 <= scale(value) <= 250 for value in values)
    assert len(scale.ticks(5)) <= 12
