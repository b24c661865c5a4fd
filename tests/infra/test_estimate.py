"""The month of an environment: each line, what is left out, and the comparison of none and one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra import costing
from infra.estimate import estimate
from infra.pricing import prices
from infra.settings import Settings, load
from infra.workloads import Cluster, Usage

LISTED = prices.read()


@pytest.fixture
def settings() -> Settings:
    dev = load("dev")
    usage = Usage(jobs=10, hours=2, nodes=1)
    cluster = Cluster(name="cpu-cluster", preset="cpu", max_nodes=4, usage=usage)
    return replace(dev, location="eastus", exposure="private", clusters=(cluster,), workstations=())


def test_lines_add_up(settings: Settings) -> None:
    """The cluster by its formula, endpoints by their number, no firewall without hosts."""
    made = estimate(settings, LISTED, private_endpoints=10)
    lines = {line.what: line for line in made.lines}
    cluster = lines["cluster cpu-cluster"]
    assert cluster.month.typical == pytest.approx(0.288 * 10 * (2 + 20 / 60))
    assert cluster.month.worst == pytest.approx(0.288 * 730 * 4)
    assert lines["private endpoints"].month.idle == pytest.approx(73.0)
    assert ("firewall" in lines) == bool(settings.network.allowed_hosts)
    for name in ("idle", "typical", "worst"):
        assert getattr(made.total, name) == pytest.approx(
            sum(getattr(line.month, name) for line in made.lines)
        )


def test_a_host_brings_a_firewall(settings: Settings) -> None:
    """And its cost, whether or not anything runs."""
    network = replace(settings.network, allowed_hosts=("pypi.org",), firewall="Standard")
    made = estimate(replace(settings, network=network), LISTED)
    firewall = next(line for line in made.lines if line.what == "firewall")
    assert firewall.month.idle == pytest.approx(1.25 * 730)
    basic = replace(settings, network=replace(network, firewall="Basic"))
    assert estimate(basic, LISTED).unpriced == ("firewall",)


def test_what_has_no_price_is_said_and_not_counted_as_nothing(settings: Settings) -> None:
    """The total is then at least so much."""
    large = replace(settings.clusters[0], preset=None, size="Standard_HB120rs_v3")
    made = estimate(replace(settings, clusters=(large,)), LISTED)
    assert made.unpriced == ("cluster cpu-cluster",)
    text = costing.as_text(made)
    assert "at least" in text
    assert "no price known: cluster cpu-cluster" in text
    said = costing.as_json(made)
    assert said["complete"] is False
    assert "at least" not in costing.as_text(estimate(settings, LISTED))


def test_a_node_that_stands_is_compared_with_none(settings: Settings) -> None:
    """It costs the month less what the jobs would have cost, and saves five minutes a job."""
    made = estimate(settings, LISTED)
    (one,) = made.alternatives
    assert one.at_one.idle == pytest.approx(0.288 * 730)
    assert one.at_zero.idle == 0
    assert one.waiting_hours == pytest.approx(10 * 5 / 60)
    more = one.at_one.typical - one.at_zero.typical
    assert f"would cost {more:,.0f} more" in costing.as_text(made)
