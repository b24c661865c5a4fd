"""The monthly cost of an environment, line by line, from its settings and the price list.

A month has 730 hours, as in Azure's own calculator. A job is charged for its nodes from their start
until the cluster releases them after `idle_minutes`.

The text names items without a price, and its total then reads "at least". `EXCLUDED` lists costs
that cannot be known in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from infra.cost.prices import AZURE, Price, PriceList, Priority
from infra.settings.azure import ASSET_PARTS, DNS_ZONES, LAKE_PARTS, PARALLEL_PARTS, SIZES
from infra.settings.model import Cluster, Settings

HOURS = 730.0
DAYS = HOURS / 24
# Azure ML takes about this long to start a node of a cluster that is scaled to zero.
START_MINUTES = 5.0
# Unit of a price → number of these units in a month; every other unit is monthly.
UNITS_A_MONTH = {"hour": HOURS, "30 days": DAYS / 30}
# Assumptions, printed with their lines: the share of the daily cap that logs typically use, and
# the vault operations of a month in units of 10,000 (ten times as many in the worst month).
TYPICAL_LOGS = 0.1
TYPICAL_OPERATIONS = 10
# Private endpoints that a managed network adds itself (how-to-managed-network, "List of required
# rules"): to the workspace, its storage (blobs and files), its vault, its registry.
REQUIRED_ENDPOINTS = 5
# Alerts on the workspace and the vault; each online endpoint has one more.
ALERTS = 3
# Load balancers: concept-plan-manage-cost, "Costs might accrue before resource deletion".
EXCLUDED = (
    "network traffic and data through private endpoints, gateways and firewalls",
    "operations on storage, and data beyond `stored_gb`",
    "retention of logs beyond the 31 days that their price includes",
    "malware scans by Defender",
    "disks of workstations",
    "a load balancer for each compute instance and each 50 nodes of a cluster, about 10 a month",
    "deployments of online endpoints, which releases create",
    "images and data of the shared registry beyond its fee",
    "support and taxes",
)


@dataclass(frozen=True)
class Month:
    """The idle, typical and worst value of a month: money, or units of an item."""

    idle: float
    typical: float
    worst: float

    def __add__(self, other: Month) -> Month:
        return Month(self.idle + other.idle, self.typical + other.typical, self.worst + other.worst)

    def __str__(self) -> str:
        return f"{self.idle:,.0f}, {self.typical:,.0f}, {self.worst:,.0f}"


def constant(month: float) -> Month:
    """Return the same cost for idle, typical and worst: it does not depend on use."""
    return Month(month, month, month)


def cluster_month(cluster: Cluster, rate: float, highest: float) -> Month:
    """Return the cost of a cluster at `rate` per node and hour, for the usage in its settings.

    `min_nodes` always run. The other nodes are paid during a job, their start and the idle time
    before their release. The worst month has all nodes at the `highest` rate: a spot price may
    rise to the dedicated one.
    """
    usage = cluster.usage
    idle = rate * HOURS * cluster.min_nodes
    most = rate * HOURS * cluster.max_nodes
    extra = max(min(usage.nodes, cluster.max_nodes) - cluster.min_nodes, 0)
    busy = usage.jobs * (usage.hours + (START_MINUTES + cluster.idle_minutes) / 60) * extra
    return Month(
        idle, min(idle + rate * busy, most), max(rate, highest) * HOURS * cluster.max_nodes
    )


@dataclass(frozen=True)
class Inventory:
    """Counts of the resources that are billed per item; a test compares them with the program."""

    endpoints: int  # private endpoints in the environment's own network
    outbound: int  # private endpoints of the managed network, with those that Azure adds
    zones: int  # private DNS zones
    accounts: int  # storage accounts
    alerts: int  # metric alerts
    # Container registries; those of an asset registry count in the stack that creates it.
    registries: int
    gateways: int  # NAT gateways
    # Clusters, compute instances and VMs as (name, VM size, maximum nodes).
    machines: frozenset[tuple[str, str, int]] = frozenset()


def inventory(settings: Settings) -> Inventory:
    """Return the counts of the billed resources that the environment itself creates."""
    if settings.makes_registry:
        # The container registry has a replica in each further region, at the same price.
        registries = 1 + len(settings.asset_registry.regions)
        return Inventory(0, 0, 0, accounts=0, alerts=0, registries=registries, gateways=0)
    assets = [*ASSET_PARTS] * (settings.asset_registry.mode == "use")
    share = bool(settings.storage.nfs_share_gib)
    managed = settings.network.isolation == "managed"
    parts: list[str] = []
    if settings.private:
        parts = ["amlworkspace", "blob", "file", *LAKE_PARTS]
        parts += [] if settings.vault.id else ["vault"]
        parts += ["azuremonitor"] * settings.makes_scope
        parts += [] if settings.images.registry else ["registry"]
        parts += ["amlworkspace"] * settings.has_features + ["redisEnterprise"] * settings.has_redis
        parts += ["file"] * share + assets + ([] if managed else [*PARALLEL_PARTS])
    outbound = 0
    if managed:
        rules = len(LAKE_PARTS) + len(PARALLEL_PARTS) + share
        outbound = len(assets) + settings.private * (REQUIRED_ENDPOINTS + rules)
        outbound += settings.has_redis
    return Inventory(
        endpoints=len(parts),
        outbound=outbound,
        zones=0
        if settings.network.private_dns_zones
        else len({zone for part in parts for zone in DNS_ZONES[part]}),
        accounts=2 + share,
        alerts=ALERTS
        - bool(settings.vault.id)
        + len(settings.endpoints)
        + settings.has_features
        + settings.has_redis,
        registries=int(not settings.images.registry),
        gateways=int(settings.needs_nat),
        machines=frozenset(
            (
                *((item.name, item.vm_size, item.max_nodes) for item in settings.computes),
                *((item.name, item.size, 1) for item in settings.workstations),
            )
        ),
    )


@dataclass(frozen=True)
class Line:
    """The monthly cost of one item."""

    item: str
    basis: str  # the quantity and the assumptions, as text
    month: Month  # zero without a price
    price: Price | None  # None: the cost is unknown


@dataclass(frozen=True)
class Estimate:
    """All lines of one environment."""

    environment: str
    currency: str
    lines: tuple[Line, ...]

    @property
    def total(self) -> Month:
        """The sum of all lines with a price."""
        return sum((line.month for line in self.lines), Month(0.0, 0.0, 0.0))

    @property
    def unpriced(self) -> tuple[str, ...]:
        """The items without a price, which the total excludes."""
        return tuple(line.item for line in self.lines if line.price is None)


def priced(item: str, basis: str, price: Price | None, units: Month) -> Line:
    """Return the line of an item: its price times `units`, the units per month."""
    amount = price.amount if price else 0.0
    month = Month(amount * units.idle, amount * units.typical, amount * units.worst)
    return Line(item, basis, month, price)


def estimate(settings: Settings, prices: PriceList, declared: Inventory | None = None) -> Estimate:
    """Return the monthly cost by the counts in `declared`, or by those of the settings if None."""
    counts = declared or inventory(settings)
    lines = [*_machines(settings, prices), *_unstated(settings, prices, counts)]
    lines += [*_pieces(settings, prices, counts), *_data(settings, prices)]
    return Estimate(settings.environment, prices.currency, tuple(lines))


def _machines(settings: Settings, prices: PriceList) -> Iterator[Line]:
    region = settings.location
    for cluster in settings.computes:
        kind: Priority = "spot" if cluster.spot else "dedicated"
        price = prices.find(f"vm/{cluster.vm_size}", region, kind)
        usage = cluster.usage
        basis = (
            f"{cluster.vm_size} ({cluster.hardware}), {kind},"
            f" {cluster.min_nodes} to {cluster.max_nodes} nodes;"
            f" typically {usage.jobs} jobs of {usage.hours} h on {usage.nodes}"
        )
        dedicated = prices.find(f"vm/{cluster.vm_size}", region)
        rates = [item.amount if item else 0.0 for item in (price, dedicated)]
        month = cluster_month(cluster, rates[0], rates[1])
        yield Line(f"cluster {cluster.name}", basis, month, price)
    for machine in settings.workstations:
        price = prices.find(f"vm/{machine.size}", region)
        stops = machine.kind == "compute-instance"
        hours = "typically 160 h" if stops else "never stops by itself"
        basis = f"{machine.size} ({SIZES[machine.size]}); {hours}"
        month = Month(0, 160, HOURS) if stops else constant(HOURS)
        yield priced(f"workstation {machine.name}", basis, price, month)


def _unstated(settings: Settings, prices: PriceList, counts: Inventory) -> Iterator[Line]:
    """Yield machines declared by the program but not by a setting, costed as always on."""
    for name, size, nodes in sorted(counts.machines - inventory(settings).machines):
        price = prices.find(f"vm/{size}", settings.location)
        basis = f"{size}, {nodes} nodes, not in the stack file"
        yield priced(f"machine {name}", basis, price, constant(HOURS * nodes))


def _pieces(settings: Settings, prices: PriceList, counts: Inventory) -> Iterator[Line]:
    """Yield the lines of items billed per resource for as long as they exist."""
    registries = "Premium, of the shared asset registry" if settings.makes_registry else "Premium"
    ends = f"{counts.endpoints} of the network, {counts.outbound} of the managed network"
    sku = settings.network.firewall
    firewall = int(settings.private and bool(settings.network.allowed_hosts))
    key = int(settings.has_key and not settings.vault.id)
    protected = f"{counts.accounts} storage accounts"
    redis, nodes = settings.feature_store.redis, 1 + settings.feature_store.replicated
    for item, price_of, count, basis in (
        ("container registry", "registry/Premium", counts.registries, registries),
        ("private endpoints", "private-endpoint", counts.endpoints + counts.outbound, ends),
        ("DNS zones", "private-dns-zone", counts.zones, f"{counts.zones}"),
        ("firewall", f"firewall/{sku}", firewall, f"{sku}, because of allowed hosts"),
        ("NAT gateway", "nat-gateway", counts.gateways, "with a public address"),
        ("Defender", "defender-for-storage", counts.accounts, protected),
        ("alerts", "metric-alert", counts.alerts, f"{counts.alerts} metrics"),
        ("Redis", f"redis/{redis}", nodes * settings.has_redis, f"{redis}, {nodes} nodes"),
        ("storage key", "vault/hsm-key", key, "one in a hardware security module"),
    ):
        price = prices.find(price_of, settings.location)
        if count:
            units = UNITS_A_MONTH.get(price.unit, 1.0) if price else 0.0
            yield priced(item, basis, price, constant(units * count))


def _data(settings: Settings, prices: PriceList) -> Iterator[Line]:
    """Yield the lines of items billed by quantity."""
    region, storage = settings.location, settings.storage
    price = prices.find(f"blob/{storage.redundancy}", region)
    basis = f"{storage.stored_gb} GB ({storage.redundancy}), from `stored_gb`"
    yield priced("stored data", basis, price, constant(storage.stored_gb))
    if gib := storage.nfs_share_gib:
        price = prices.find("share/Premium_ZRS", region)
        yield priced("NFS share", f"{gib} GiB, used or not", price, constant(gib))
    if not settings.makes_registry:
        price = prices.find("vault/operations", region)
        basis = f"typically {TYPICAL_OPERATIONS * 10_000:,} operations, ten times as many at worst"
        units = Month(0, TYPICAL_OPERATIONS, 10 * TYPICAL_OPERATIONS)
        yield priced("vault", basis, price, units)
    price = prices.find("log-analytics", region)
    cap = settings.monitoring.daily_gb * DAYS
    basis = f"at most {settings.monitoring.daily_gb} GB a day; typically {TYPICAL_LOGS:.0%} of it"
    yield priced("logs", basis, price, Month(0, cap * TYPICAL_LOGS, cap))


def as_json(estimate: Estimate) -> dict[str, object]:
    """Return the estimate for JSON: lines with prices, the total `month`, `not_priced` items."""
    return {
        **asdict(estimate),
        "month": asdict(estimate.total),
        "not_priced": [*estimate.unpriced, *EXCLUDED],
    }


def as_text(estimate: Estimate) -> str:
    """Return a text table: a row per item, the total, then remarks."""
    rows: list[tuple[str, ...]] = []
    rows.append((f"a month in {estimate.currency}", "idle", "typical", "worst", ""))
    for line in estimate.lines:
        figures = str(line.month).split(", ") if line.price else ["?", "?", "?"]
        rows.append((line.item, *figures, line.basis))
    label = "at least" if estimate.unpriced else "total"
    rows.append((label, *str(estimate.total).split(", "), ""))
    width = max(len(row[0]) for row in rows)
    text = [estimate.environment]
    for item, idle, typical, worst, basis in rows:
        text.append(f"  {item:<{width}}  {idle:>8}  {typical:>8}  {worst:>8}  {basis}".rstrip())
    return "\n".join((*text, *_remarks(estimate)))


def price_notes(estimate: Estimate) -> Iterator[str]:
    """Yield notes on the sources, dates and inaccuracies of the prices, each with its items."""
    copied = "copied from third parties; `infra cost --refresh` downloads Azure's VM prices"
    sources: dict[str, list[str]] = {copied: []}
    remarks: dict[str, list[str]] = {}
    for line in estimate.lines:
        if line.price is None:
            continue
        if line.price.source != AZURE:
            sources[copied].append(line.item)
        source = f"from {line.price.source} ({line.price.as_of})"
        sources.setdefault(source, []).append(line.item)
        for remark in filter(None, line.price.note.split("; ")):
            remarks.setdefault(remark, []).append(line.item)
    for note, items in (*remarks.items(), *sources.items()):
        which = "every item" if len(items) == len(estimate.lines) else ", ".join(items)
        if items:
            yield f"price of {which}: {note}"


def _remarks(estimate: Estimate) -> Iterator[str]:
    if estimate.unpriced:
        yield f"  no price for {', '.join(estimate.unpriced)}; run `infra cost --refresh`"
    yield from (f"  {note}" for note in price_notes(estimate))
    yield f"  not included: {'; '.join(EXCLUDED)}"
