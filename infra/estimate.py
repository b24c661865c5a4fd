"""What an environment costs a month, line by line, from its settings and the price list.

What has no price is listed as such: the total is then said to be at least so much. Traffic, stored
data beyond what a line names and support are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.pricing import months
from infra.pricing.months import NOTHING, Month
from infra.pricing.prices import Price, PriceList
from infra.settings import Settings
from infra.workloads import Cluster

DAYS = months.HOURS / 24
# Of the daily cap of logs that a typical month fills: an assumption, stated with the line.
TYPICAL_LOGS = 0.1


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


def estimate(settings: Settings, prices: PriceList, private_endpoints: int = 0) -> Estimate:
    """The month of an environment with so many private endpoints (which the program counts)."""
    return Estimate(
        settings.environment,
        prices.currency,
        tuple(_lines(settings, prices, private_endpoints)),
        tuple(_alternatives(settings, prices)),
    )


def _lines(settings: Settings, prices: PriceList, private_endpoints: int) -> Iterator[Line]:
    region = settings.location
    for cluster in settings.clusters:
        price = _rate(cluster, region, prices)
        kind = "spot" if cluster.spot else "dedicated"
        usage = cluster.usage
        basis = (
            f"{cluster.vm_size}, {kind}, {cluster.min_nodes} to {cluster.max_nodes} nodes;"
            f" typically {usage.jobs} jobs of {usage.hours} h on {usage.nodes}"
        )
        month = _cluster(cluster, price.amount, cluster.min_nodes) if price else NOTHING
        yield Line(f"cluster {cluster.name}", basis, month, price)
    for one in settings.workstations:
        price = prices.find(f"vm/{one.size}", region)
        month = Month(0.0, 160 * price.amount, months.HOURS * price.amount) if price else NOTHING
        yield Line(f"workstation {one.name}", f"{one.size}; typically 160 h", month, price)
    price = prices.find("registry/Premium", region)
    month = months.standing(price.amount / (30 * 24)) if price else NOTHING
    yield Line("container registry", "Premium", month, price)
    if private_endpoints:
        price = prices.find("private-endpoint", region)
        month = months.standing(price.amount, private_endpoints) if price else NOTHING
        yield Line("private endpoints", f"{private_endpoints}, without their data", month, price)
    if settings.private and settings.network.allowed_hosts:
        sku = settings.network.firewall
        price = prices.find(f"firewall/{sku}", region)
        month = months.standing(price.amount) if price else NOTHING
        yield Line("firewall", f"{sku}, because of allowed hosts", month, price)
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
