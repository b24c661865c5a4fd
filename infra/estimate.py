"""What an environment costs a month, line by line, from its settings and the price list.

What has no price is listed as such: the total is then said to be at least so much. `LEFT_OUT` names
what no line counts, since nobody can know it before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.inventory import inventory
from infra.pricing import months
from infra.pricing.months import NOTHING, Month
from infra.pricing.prices import Price, PriceList
from infra.settings import Settings
from infra.sizes import SIZES
from infra.workloads import Cluster

DAYS = months.HOURS / 24
# How often the unit of a price is in a month, where the price is not a month's.
A_MONTH = {"hour": months.HOURS, "30 days": DAYS / 30}
# Of the daily cap of logs that a typical month fills, the tens of thousands of operations that it
# asks of the vault, and ten times as many at the worst: assumptions, stated with their lines.
TYPICAL_LOGS = 0.1
TYPICAL_OPERATIONS = 10
# Load balancers: concept-plan-manage-cost, "Costs might accrue before resource deletion".
LEFT_OUT = (
    "network traffic and data through private endpoints, gateways and firewalls",
    "operations on storage, and data beyond `stored_gb`",
    "logs that are kept beyond the 31 days that their price has in it",
    "what Defender scans for malware",
    "disks of machines for people",
    "a load balancer for each compute instance and each 50 nodes of a cluster, about 10 a month",
    "deployments of online endpoints, which are a release's",
    "images and data of the shared registry beyond its fee",
    "support and taxes",
)


@dataclass(frozen=True)
class Line:
    """One thing that costs; without a `price` nobody knows what, and `month` is nothing."""

    what: str
    basis: str
    month: Month
    price: Price | None

    @property
    def notes(self) -> str:
        """Where the price is not exact, and as of when it is."""
        if self.price is None:
            return "no price known"
        return "; ".join(filter(None, (f"as of {self.price.as_of}", self.price.note)))


@dataclass(frozen=True)
class Alternative:
    """A cluster with one node that stands, against none: money a month, and hours of waiting."""

    cluster: str
    at_zero: Month
    at_one: Month
    waiting_hours: float


@dataclass(frozen=True)
class Estimate:
    """All lines of one environment."""

    environment: str
    currency: str
    lines: tuple[Line, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def total(self) -> Month:
        """The sum of all lines that have a price."""
        return sum((line.month for line in self.lines), NOTHING)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """What the total leaves out."""
        return tuple(line.what for line in self.lines if line.price is None)


def estimate(settings: Settings, prices: PriceList) -> Estimate:
    """The month of an environment."""
    lines = (*_machines(settings, prices), *_pieces(settings, prices), *_data(settings, prices))
    return Estimate(
        settings.environment, prices.currency, lines, tuple(_alternatives(settings, prices))
    )


def _machines(settings: Settings, prices: PriceList) -> Iterator[Line]:
    """Clusters, the builder of images among them, and machines for people."""
    region = settings.location
    for cluster in settings.computes:
        price = _rate(cluster, region, prices)
        kind = "spot" if cluster.spot else "dedicated"
        usage = cluster.usage
        basis = (
            f"{cluster.vm_size} ({cluster.hardware}), {kind},"
            f" {cluster.min_nodes} to {cluster.max_nodes} nodes;"
            f" typically {usage.jobs} jobs of {usage.hours} h on {usage.nodes}"
        )
        month = _cluster(cluster, price.amount, cluster.min_nodes) if price else NOTHING
        yield Line(f"cluster {cluster.name}", basis, month, price)
    for one in settings.workstations:
        price = prices.find(f"vm/{one.size}", region)
        month = Month(0.0, 160 * price.amount, months.HOURS * price.amount) if price else NOTHING
        yield Line(
            f"workstation {one.name}",
            f"{one.size} ({SIZES[one.size]}); typically 160 h",
            month,
            price,
        )


def _pieces(settings: Settings, prices: PriceList) -> Iterator[Line]:
    """What is paid by the piece for as long as it is there."""
    counted, region = inventory(settings), settings.location

    def pieces(what: str, item: str, count: int, basis: str) -> Iterator[Line]:
        price = prices.find(item, region)
        units = A_MONTH.get(price.unit, 1.0) if price else 0.0
        month = months.level(price.amount * units * count) if price else NOTHING
        if count:
            yield Line(what, basis, month, price)

    images = f"Premium, {counted.registries}"
    if counted.registries > 1:
        images += ": one is the shared asset registry's"
    yield from pieces("container registry", "registry/Premium", counted.registries, images)
    ends = counted.endpoints + counted.outbound
    basis = f"{counted.endpoints} of the network, {counted.outbound} of the managed network"
    yield from pieces("private endpoints", "private-endpoint", ends, basis)
    yield from pieces("DNS zones", "private-dns-zone", counted.zones, f"{counted.zones}")
    if settings.private and settings.network.allowed_hosts:
        sku = settings.network.firewall
        basis = f"{sku}, because of allowed hosts"
        yield from pieces("firewall", f"firewall/{sku}", 1, basis)
    yield from pieces("way out", "nat-gateway", counted.gateways, "a NAT gateway and its address")
    accounts = f"{counted.accounts} storage accounts"
    yield from pieces("Defender", "defender-for-storage", counted.accounts, accounts)
    yield from pieces("alerts", "metric-alert", counted.alerts, f"{counted.alerts} metrics")
    if settings.storage.customer_managed_key:
        yield from pieces("storage key", "vault/hsm-key", 1, "one in a hardware module")


def _data(settings: Settings, prices: PriceList) -> Iterator[Line]:
    """What is paid by quantity."""
    region, storage = settings.location, settings.storage
    price = prices.find(f"blob/{storage.redundancy}", region)
    month = months.level(price.amount * storage.stored_gb) if price else NOTHING
    basis = f"{storage.stored_gb} GB ({storage.redundancy}), as `stored_gb` says"
    yield Line("stored data", basis, month, price)
    if storage.nfs_share_gib:
        price = prices.find("share/Premium_ZRS", region)
        month = months.level(price.amount * storage.nfs_share_gib) if price else NOTHING
        yield Line("NFS share", f"{storage.nfs_share_gib} GiB, used or not", month, price)
    price = prices.find("vault/operations", region)
    often = 10 * TYPICAL_OPERATIONS
    month = months.used(price.amount, TYPICAL_OPERATIONS, often) if price else NOTHING
    basis = f"typically {TYPICAL_OPERATIONS * 10_000:,} operations, at worst ten times as many"
    yield Line("vault", basis, month, price)
    price = prices.find("log-analytics", region)
    cap = settings.monitoring.daily_gb * DAYS
    month = months.used(price.amount, cap * TYPICAL_LOGS, cap) if price else NOTHING
    basis = f"at most {settings.monitoring.daily_gb} GB a day; typically {TYPICAL_LOGS:.0%} of it"
    yield Line("logs", basis, month, price)


def _alternatives(settings: Settings, prices: PriceList) -> Iterator[Alternative]:
    for cluster in settings.clusters:
        price = _rate(cluster, settings.location, prices)
        if price is not None:
            yield Alternative(
                cluster.name,
                _cluster(cluster, price.amount, 0),
                _cluster(cluster, price.amount, 1),
                months.waiting_hours(cluster.usage.jobs, 0, cluster.usage.nodes),
            )


def _rate(cluster: Cluster, region: str, prices: PriceList) -> Price | None:
    return prices.find(f"vm/{cluster.vm_size}", region, "spot" if cluster.spot else "dedicated")


def _cluster(cluster: Cluster, rate: float, min_nodes: int) -> Month:
    usage = cluster.usage
    return months.cluster(
        rate,
        min_nodes,
        cluster.max_nodes,
        cluster.idle_minutes,
        usage.jobs,
        usage.hours,
        usage.nodes,
    )
