"""The formulas of a month, by hand-computed figures and by what must hold for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cost.formulas import HOURS, Month, by_quantity, cluster, constant, waiting_hours


def test_a_cluster_at_zero_costs_what_its_jobs_take() -> None:
    """10 jobs of 2 h on 3 nodes, 5 minutes to start and 15 idle: 10 x 2 1/3 h x 3 nodes."""
    month = cluster(2.0, 0, 8, idle_minutes=15, jobs=10, hours=2, nodes=3)
    assert month.typical == pytest.approx(2.0 * 10 * (2 + 20 / 60) * 3)
    assert (month.idle, month.worst) == (0.0, 2.0 * 730 * 8)


def test_a_node_that_stands_is_paid_all_month_and_not_twice() -> None:
    """Jobs on one node run on the one that stands."""
    month = cluster(2.0, 1, 8, idle_minutes=15, jobs=10, hours=2, nodes=1)
    assert month.idle == month.typical == 2.0 * 730
    assert waiting_hours(12, 1, 1) == 0.0
    assert waiting_hours(12, 0, 1) == pytest.approx(1.0)


def test_more_jobs_than_a_month_has_room_for_cost_all_nodes_all_the_time() -> None:
    """The worst case bounds the typical one."""
    month = cluster(1.0, 0, 2, idle_minutes=15, jobs=10_000, hours=10, nodes=2)
    assert month.typical == month.worst == 730 * 2


@given(
    rate=st.floats(0.01, 50),
    nodes=st.integers(1, 500),
    times=st.integers(2, 10),
    idle=st.integers(1, 1440),
)
def test_the_worst_case_is_linear_in_nodes(rate: float, nodes: int, times: int, idle: int) -> None:
    """So many times the nodes, so many times the money; with idle nodes the same holds."""
    one = cluster(rate, 0, nodes, idle, 20, 2, 1)
    many = cluster(rate, 0, nodes * times, idle, 20, 2, 1)
    assert many.worst == pytest.approx(one.worst * times)
    assert one.idle <= one.typical <= one.worst
    assert cluster(rate, nodes, nodes, idle, 20, 2, 1).idle == pytest.approx(rate * HOURS * nodes)


def test_sums() -> None:
    """Months add up by column."""
    assert constant(146.0) + by_quantity(3.0, 1, 4) == Month(146.0, 149.0, 158.0)
