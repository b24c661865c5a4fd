"""The monthly estimate: each line, and the exclusions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from infra.cost import estimate as costing
from infra.cost import prices
from infra.cost.estimate import EXCLUDED, estimate
from infra.cost.prices import AZURE
from infra.preview.capture import Capture
from infra.preview.report import Format, Report, rendered
from infra.settings.azure import SIZES, Preset
from infra.settings.loader import load
from infra.settings.model import AssetRegistry, Cluster, FeatureStore, Settings, Usage, Workstation

LISTED = prices.read()
PERSON = "6f8d2c1e-0000-4000-8000-000000000002"


@pytest.fixture
def settings() -> Settings:
    dev = load("dev")
    usage = Usage(jobs=10, hours=2, nodes=1)
    cluster = Cluster(name="cpu-cluster", preset="cpu", max_nodes=4, usage=usage)
    return replace(dev, location="eastus", exposure="private", clusters=(cluster,), workstations=())


def test_lines_add_up(settings: Settings) -> None:
    """The cluster by its formula, pieces by their number, no firewall without hosts."""
    made = estimate(settings, LISTED)
    lines = {line.item: line for line in made.lines}
    cluster = lines["cluster cpu-cluster"]
    assert cluster.month.typical == pytest.approx(0.288 * 10 * (2 + 20 / 60))
    assert cluster.month.worst == pytest.approx(0.288 * 730 * 4)
    assert lines["private endpoints"].month.idle == pytest.approx(0.01 * 730 * (11 + 12))
    assert lines["container registry"].month.idle == pytest.approx(50 * 730 / 24 / 30)
    assert lines["DNS zones"].month.idle == pytest.approx(0.5 * 11)
    assert lines["Defender"].month.idle == pytest.approx(10 * 2)
    assert lines["stored data"].month.worst == pytest.approx(0.0208 * 100)
    assert lines["logs"].month.worst == pytest.approx(2.3 * 5 * 730 / 24)
    assert "firewall" not in lines and "storage key" not in lines and "NFS share" not in lines
    for name in ("idle", "typical", "worst"):
        assert getattr(made.total, name) == pytest.approx(
            sum(getattr(line.month, name) for line in made.lines)
        )


ROUND = (
    ("vm/Standard_E4ds_v4", "hour", 0.30, "dedicated"),
    ("vm/Standard_E8ds_v4", "hour", 0.60, "dedicated"),
    ("vm/Standard_NC4as_T4_v3", "hour", 0.50, "dedicated"),
    ("vm/Standard_NC4as_T4_v3", "hour", 0.10, "spot"),
    ("registry/Premium", "30 days", 48.0, "dedicated"),
    ("private-endpoint", "hour", 0.01, "dedicated"),
    ("firewall/Standard", "hour", 1.25, "dedicated"),
    ("log-analytics", "GB", 2.40, "dedicated"),
    ("blob/GZRS", "GB", 0.04, "dedicated"),
    ("redis/Balanced_B0", "hour", 0.10, "dedicated"),
)


@pytest.mark.parametrize(
    ("item", "when", "figure"),
    [
        # 10 jobs of 2 h on a node, each 5 minutes of start and 15 idle: 23 h 20 min at 0.30.
        ("cluster cpu", "typical", 7.00),
        ("cluster cpu", "worst", 876.00),  # 4 nodes for 730 h
        ("cluster spot", "typical", 5.20),  # 8 jobs of 3 h on 2 nodes, 15 minutes more: 52 h
        ("cluster spot", "worst", 730.00),  # 2 nodes for 730 h at the dedicated price
        ("cluster always", "idle", 438.00),  # a node that never stops
        ("workstation ada", "typical", 48.00),  # 160 h
        ("workstation ada", "worst", 219.00),  # never stopped
        ("workstation bob", "typical", 219.00),  # a VM, which nothing stops
        ("firewall", "idle", 912.50),
        ("container registry", "idle", 48.67),  # 730 h are 30 days and 10 hours
        ("private endpoints", "idle", 189.80),  # 13 of ours, 13 of the managed network
        ("logs", "worst", 365.00),  # 5 GB on each of 30.4 days
        ("stored data", "typical", 10.00),  # 250 GB
        ("Redis", "idle", 146.00),  # two nodes
    ],
)
def test_a_figure_is_the_one_computed_by_hand(
    settings: Settings, item: str, when: str, figure: float
) -> None:
    """At round prices of the stack's own region; other prices are of another."""
    always = Cluster(name="always", size="Standard_E8ds_v4", min_nodes=1, max_nodes=1)
    spot = Usage(jobs=8, hours=3, nodes=2)
    made = replace(
        settings,
        location="westeurope",
        clusters=(
            replace(settings.clusters[0], name="cpu"),
            Cluster(name="spot", preset="t4", max_nodes=2, idle_minutes=10, usage=spot),
            always,
        ),
        workstations=(
            Workstation(name="ada", person=PERSON),
            Workstation(name="bob", person=PERSON, kind="data-science-vm"),
        ),
        network=replace(settings.network, allowed_hosts=("pypi.org",)),
        storage=replace(settings.storage, redundancy="GZRS", stored_gb=250),
        feature_store=FeatureStore(mode="create", redis="Balanced_B0"),
    )
    listed = [
        prices.Price(item, region, unit, amount * times, "me", "2026-11", priority)
        for item, unit, amount, priority in ROUND
        for region, times in (("westeurope", 1.0), ("eastus", 3.0))
    ]
    lines = estimate(made, replace(LISTED, prices=tuple(listed))).lines
    (line,) = (line for line in lines if line.item == item)
    assert round(getattr(line.month, when), 2) == figure


def test_an_allowed_host_adds_a_firewall(settings: Settings) -> None:
    """With its cost, whether or not anything runs."""
    network = replace(settings.network, allowed_hosts=("pypi.org",), firewall="Standard")
    made = estimate(replace(settings, network=network), LISTED)
    firewall = next(line for line in made.lines if line.item == "firewall")
    assert firewall.month.idle == pytest.approx(1.25 * 730)


@pytest.mark.parametrize(("replicated", "nodes"), [(True, 2), (False, 1)])
def test_redis_costs_each_node_by_the_hour(
    settings: Settings, replicated: bool, nodes: int
) -> None:
    """Used or not; a feature store alone adds its endpoint and its alert."""
    assert "Redis" not in {line.item for line in estimate(settings, LISTED).lines}
    store = FeatureStore(mode="create", redis="Balanced_B1", replicated=replicated)
    made = estimate(replace(settings, feature_store=store), LISTED)
    redis = next(line for line in made.lines if line.item == "Redis")
    assert redis.month == costing.constant(0.032 * 730 * nodes)
    assert not made.unpriced


def test_our_own_network_adds_a_nat_gateway(settings: Settings) -> None:
    """A managed network includes its own."""
    assert "NAT gateway" not in {line.item for line in estimate(settings, LISTED).lines}
    network = replace(settings.network, isolation="own")
    made = estimate(replace(settings, network=network), LISTED)
    way_out = next(line for line in made.lines if line.item == "NAT gateway")
    assert way_out.month.idle == pytest.approx(0.05 * 730)


def test_options_that_cost_have_lines(settings: Settings) -> None:
    """A share, a customer-managed key, the image builder."""
    storage = replace(settings.storage, nfs_share_gib=200, customer_managed_key=True)
    made = estimate(replace(settings, storage=storage), LISTED)
    lines = {line.item: line for line in made.lines}
    assert lines["NFS share"].month.idle == pytest.approx(0.22 * 200)
    assert lines["storage key"].month.idle == pytest.approx(5)
    assert lines["container registry"].month.idle == pytest.approx(50 * 730 / 24 / 30)
    assert lines["Defender"].month.idle == pytest.approx(10 * 3)
    assert lines["cluster image-builder"].month.idle == 0
    assert lines["cluster image-builder"].month.worst == pytest.approx(0.226 * 730)
    alone = replace(settings, exposure="starter", asset_registry=AssetRegistry())
    starter = estimate(alone, LISTED)
    assert not {"cluster image-builder", "DNS zones", "private endpoints"} & {
        line.item for line in starter.lines
    }


def test_the_worst_month_is_linear_in_nodes(settings: Settings) -> None:
    """Twice the nodes, twice the cluster's worst month, and nothing else changes."""
    few, many = (
        estimate(replace(settings, clusters=(replace(settings.clusters[0], max_nodes=n),)), LISTED)
        for n in (4, 8)
    )
    assert many.total.worst - few.total.worst == pytest.approx(0.288 * 730 * 4)
    assert (many.total.idle, many.total.typical) == (few.total.idle, few.total.typical)


@pytest.mark.parametrize("size", sorted(SIZES))
def test_every_size_has_a_price(size: str) -> None:
    """Of its own, and as a low-priority node."""
    for priority in ("dedicated", "spot"):
        assert LISTED.find(f"vm/{size}", "westeurope", priority)


def test_an_item_without_a_price_makes_the_total_at_least(settings: Settings) -> None:
    """In every format."""
    unlisted = [one for one in LISTED.prices if one.item != "vm/Standard_HB120rs_v3"]
    large = replace(settings.clusters[0], preset=None, size="Standard_HB120rs_v3")
    made = estimate(replace(settings, clusters=(large,)), replace(LISTED, prices=tuple(unlisted)))
    assert made.unpriced == ("cluster cpu-cluster",)
    text = costing.as_text(made)
    assert "at least" in text
    assert "no price for cluster cpu-cluster" in text
    assert costing.as_json(made)["not_priced"] == ["cluster cpu-cluster", *EXCLUDED]
    assert "at least" not in costing.as_text(estimate(settings, LISTED))


def test_exclusions_are_named(settings: Settings) -> None:
    """In the table, in JSON and in a pull request."""
    made = estimate(settings, LISTED)
    report = Report(Capture("dev", (), {}), made)
    forms: tuple[Format, ...] = ("text", "md", "json")
    for shown in (costing.as_text(made), *(rendered([report], form) for form in forms)):
        assert all(one in shown for one in EXCLUDED)


def test_sources_and_approximations_of_prices_are_shown(settings: Settings) -> None:
    """Third-party copies, another region's price, an estimated spot price: each with its lines."""
    spot = replace(settings.clusters[0], name="gpu-spot", preset="t4")
    here = replace(settings, location="uksouth", clusters=(spot,))
    fresh = prices.Price("vm/Standard_NC4as_T4_v3", "uksouth", "hour", 0.6, AZURE, "2026-01-01")
    before, after = (estimate(here, one) for one in (LISTED, LISTED.updated([fresh])))
    report = Report(Capture("dev", (), {}), before)
    forms: tuple[Format, ...] = ("text", "md")
    for shown in (costing.as_text(before), *(rendered([report], form) for form in forms)):
        assert "copied from third parties" in shown
        assert "price of every item: as in eastus (no price is listed for uksouth)" in shown
        share = f"low priority, estimated as 20% of dedicated ({LISTED.spot_share.source})"
        assert f"price of cluster gpu-spot: {share}" in shown
    copied = next(one for one in costing.price_notes(after) if "third parties" in one)
    assert "cluster gpu-spot" not in copied and "stored data" in copied
    (line, *_) = json.loads(json.dumps(costing.as_json(after)))["lines"]
    stated = {"amount": pytest.approx(0.12), "unit": "hour", "region": "uksouth"}
    stated |= {"priority": "spot", "as_of": "2026-01-01", "source": AZURE}
    assert {name: line["price"][name] for name in stated} == stated


def test_a_line_describes_the_hardware_of_a_node(settings: Settings) -> None:
    """Cores, memory, GPUs, InfiniBand."""
    kinds: tuple[Preset, ...] = ("cpu", "t4", "infiniband")
    clusters = tuple(Cluster(name=f"c-{kind}", preset=kind) for kind in kinds)
    made = estimate(replace(settings, clusters=clusters), LISTED)
    assert [line.basis.partition(", 0 to")[0] for line in made.lines[:3]] == [
        "Standard_E4ds_v4 (4 cores, 32 GiB), dedicated",
        "Standard_NC4as_T4_v3 (4 cores, 28 GiB, 1 T4), spot",
        "Standard_ND96amsr_A100_v4 (96 cores, 1900 GiB, 8 A100 80GB, InfiniBand), spot",
    ]


@pytest.mark.parametrize("redundancy", ["LRS", "ZRS", "GRS", "GZRS", "RAGRS", "RAGZRS"])
def test_every_redundancy_has_a_price(redundancy: str) -> None:
    """Whatever the settings allow."""
    assert LISTED.find(f"blob/{redundancy}", "westeurope")
