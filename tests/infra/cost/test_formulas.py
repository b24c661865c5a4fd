"""The formulas of cost, by hand-computed figures and by properties that hold for all values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cost.estimate import HOURS, Month, cluster_month, constant, priced
from infra.cost.prices import Price
from infra.settings.model import Cluster, Usage


def cluster(rate: float, least: int, most: int, *, idle: int, usage: Usage) -> Month:
    made = Cluster(
        name="made", preset="cpu", min_nodes=least, max_nodes=most, idle_minutes=idle, usage=usage
    )
    return cluster_month(made, rate, rate)


def test_a_cluster_at_zero_costs_its_jobs() -> None:
    """10 jobs of 2 h on 3 nodes, 5 minutes to start and 15 idle: 10 x 2 1/3 h x 3 nodes."""
    month = cluster(2.0, 0, 8, idle=15, usage=Usage(jobs=10, hours=2, nodes=3))
    assert month.typical == pytest.approx(2.0 * 10 * (2 + 20 / 60) * 3)
    assert (month.idle, month.worst) == (0.0, 2.0 * 730 * 8)


def test_a_node_that_is_always_on_is_counted_once() -> None:
    """Jobs on one node run on it."""
    month = cluster(2.0, 1, 8, idle=15, usage=Usage(jobs=10, hours=2, nodes=1))
    assert month.idle == month.typical == 2.0 * 730


def test_too_many_jobs_cost_all_nodes_for_the_whole_month() -> None:
    """The worst case bounds the typical one."""
    month = cluster(1.0, 0, 2, idle=15, usage=Usage(jobs=10_000, hours=10, nodes=2))
    assert month.typical == month.worst == 730 * 2


def test_the_worst_month_of_spot_nodes_is_at_the_dedicated_price() -> None:
    """The typical one is not, also where jobs take all nodes for the whole month."""
    made = Cluster(
        name="made", preset="t4", max_nodes=2, usage=Usage(jobs=10_000, hours=10, nodes=2)
    )
    month = cluster_month(made, 0.2, 0.5)
    assert (month.typical, month.worst) == (0.2 * 730 * 2, 0.5 * 730 * 2)


@given(
    rate=st.floats(0.01, 50),
    nodes=st.integers(1, 500),
    times=st.integers(2, 10),
    idle=st.integers(1, 1440),
)
def test_the_worst_case_is_linear_in_nodes(rate: float, nodes: int, times: int, idle: int) -> None:
    """Also with idle nodes."""
    one = cluster(rate, 0, nodes, idle=idle, usage=Usage())
    many = cluster(rate, 0, nodes * times, idle=idle, usage=Usage())
    assert many.worst == pytest.approx(one.worst * times)
    assert one.idle <= one.typical <= one.worst
    assert cluster(rate, nodes, nodes, idle=idle, usage=Usage()).idle == pytest.approx(
        rate * HOURS * nodes
    )


def test_sums() -> None:
    """Months add up by column."""
    three = Price("logs", "eastus", "GB", 3.0, "a list", "2026-11-01")
    by_quantity = priced("logs", "by the GB", three, Month(0, 1, 4)).month
    assert constant(146.0) + by_quantity == Month(146.0, 149.0, 158.0)
    assert priced("logs", "by the GB", None, Month(0, 1, 4)).month == Month(0, 0, 0)
