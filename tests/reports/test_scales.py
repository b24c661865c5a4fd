"""Scales: the kind for given values, the range that is drawn, and what Vega makes of its ends."""

from __future__ import annotations

import math
import sys

import altair as alt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ml.reports.charts import svg
from ml.reports.charts.scales import LABELS, axis, bounds, scale_of, scale_of_metric
from tests.reports.html_page import Page


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], "linear"),
        ([10.0**-power for power in range(8)], "log"),
        ([7, 15, 31, 7], "point"),
        (["adam", "sgd"], "point"),
        ([True, False], "point"),
        ([1, "auto", None], "point"),
        ([0.1, math.nan], "point"),
        ([10**400, 1], "point"),
    ],
)
def test_the_kind_of_scale(values: list[object], kind: str) -> None:
    """By the values; each of them has a place, and a missing one none."""
    scale = scale_of(values)
    assert scale.scale["type"] == kind
    assert {*scale.shares} == {str(value) for value in values if value is not None}
    assert all(0 <= share <= 1 for share in scale.shares.values())


def test_categories_are_in_order_and_apart() -> None:
    """Numbers by their size; names that are equal when they are shortened are shown in full."""
    scale = scale_of([31, 7, 15])
    assert scale.scale["domain"] == ["7", "15", "31"]
    assert scale.shares == {"7": 0.0, "15": 0.5, "31": 1.0}
    assert scale_of(["one"]).shares == {"one": 0.5}
    long = [f"{'x' * 40}{middle}{'x' * 40}" for middle in "ab"]
    assert scale_of(long).scale["domain"] == long
    assert len(scale_of([*range(100), "none"]).axis["values"]) <= LABELS


def test_an_outlier_does_not_flatten_the_others() -> None:
    """A diverged trial is drawn at the edge; without outliers the whole range is drawn."""
    values = [0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56, 1e6]
    low, high = bounds(values)
    assert high < 1
    assert scale_of_metric(values).shares["1000000.0"] == 1.0
    low, high = bounds([0.1, 0.5, 0.9])
    assert low < 0.1
    assert high > 0.9


@example([1.1e300])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_any_finite_values_can_be_drawn(values: list[float]) -> None:
    """No overflow, no division by zero."""
    low, high = bounds(values)
    assert math.isfinite(high - low) and low < high
    assert all(0 <= share <= 1 for share in scale_of_metric(values).shares.values())


@pytest.mark.parametrize(
    "values",
    [[0.0], [1e300, -1e300], [sys.float_info.max], [5e-324, 0.0], [1.0, 1.0], [1e-9, 2e-9], [-3.0]],
)
def test_the_ends_of_what_can_be_drawn(values: list[float]) -> None:
    """Vega draws each value in the chart, with a few ticks that fit into it."""
    x = alt.X("x:Q", **axis(-0.5, len(values)))
    y = alt.Y("y:Q", **axis(*bounds(values)))
    rows = svg.rows({"x": place, "y": value} for place, value in enumerate(values))
    chart = rows.mark_point(color="var(--best)").encode(x, y)
    page = Page(svg.figure("ends", chart, 400, 200))
    assert page.problems == []
    assert len(page.trials("best")) == len(values)
    assert not [of for _, of in page.elements if "NaN" in (of.get("transform") or "")]
    assert len([name for name, _ in page.elements if name == "text"]) < 30
