"""Compute the maximum cost of a job on Azure ML, spot and dedicated, for `ml run --dry-run`.

The VM size of the job's cluster comes from the stack files. The maximum follows from nodes and time
limits, since the duration of a job is unknown before it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.cost import prices
from infra.cost.estimate import HOURS
from infra.cost.prices import PriceList
from infra.settings import loader
from infra.settings.model import Settings
from ml.core.errors import UserError
from ml.release.evidence.cost import CLUSTER, Prices, unknown
from ml.release.evidence.cost import Price as HourlyPrice
from ml.reports.formatting import count
from ml.specs.plan.plans import AutoMLPlan, PipelinePlan, Plan, SweepPlan
from ml.specs.yaml_node import YamlNode


@dataclass(frozen=True)
class Bound:
    """The maximum node-hours of a job; None if its spec sets no time limit.

    At most `nodes` run at the same time, so an hour costs at most `rate * nodes`.
    """

    nodes: int
    node_hours: float | None

    def __add__(self, other: Bound) -> Bound:
        """Return the bound of two parts of a job that may run in parallel."""
        total = None
        if self.node_hours is not None and other.node_hours is not None:
            total = self.node_hours + other.node_hours
        return Bound(self.nodes + other.nodes, total)


def single(nodes: int, limit_s: float | None) -> Bound:
    """Return the bound of a job on `nodes`; `limit_s` is in seconds, None for no limit."""
    return Bound(nodes, None if limit_s is None else nodes * limit_s / 3600)


def sweep(
    nodes: int, trials: int, concurrent: int, trial_s: float | None, limit_s: float | None
) -> Bound:
    """Return a sweep's bound: the smaller of its trials' time limits and its own, in node-hours.

    `trial_s` and `limit_s` are seconds; None for no limit.
    """
    concurrent = min(concurrent, trials)
    bounds = []
    if trial_s is not None:
        bounds.append(trials * nodes * trial_s / 3600)
    if limit_s is not None:
        bounds.append(concurrent * nodes * limit_s / 3600)
    return Bound(nodes * concurrent, min(bounds, default=None))


@dataclass(frozen=True)
class Cost:
    """The cost of a plan's jobs on one cluster.

    `dedicated` and `spot` are prices per node and hour. They are None if unknown; `spot` also if
    Azure ML has no spot nodes of that size.
    """

    compute: str
    size: str
    region: str
    bound: Bound
    dedicated: float | None
    spot: float | None
    currency: str
    notes: str

    def __str__(self) -> str:
        where = f"on Azure: {self.compute} ({self.size}, {self.region})"
        if self.dedicated is None:
            return f"{where}: no price known for {self.size}; `infra cost --refresh` asks Azure"
        hours, nodes = self.bound.node_hours, self.bound.nodes
        if hours is None:
            hourly = f"{_amounts(nodes, self)} an hour on {count(nodes, 'node')}"
            amount = f"{hourly}; no time limit bounds the total"
        else:
            amount = f"at most {_amounts(hours, self)} ({hours:.2f} node-hours)"
        return f"{where}: {amount}; {self.notes}"


def estimate(plan: Plan) -> list[Cost]:
    """Return the plan's cost per cluster, VM size and region; [] if no stack file declares them."""
    try:
        price_list = prices.read()
        environments = [loader.load(stack) for stack in loader.environments()]
    except UserError:
        return []  # `infra settings` and `infra cost` report the errors
    bounds: dict[str, Bound] = {}
    for compute, bound in _parts(plan):
        bounds[compute] = bounds[compute] + bound if compute in bounds else bound
    return [
        cost
        for compute, bound in bounds.items()
        for cost in _costs_on(compute, bound, environments, price_list)
    ]


def of_instance(environment: str) -> Prices:
    """Return a function that maps a VM size or `azureml:CLUSTER` to its hourly price.

    Prices are for the environment's region, and spot or dedicated as the stack file declares the
    cluster; None if unknown. An environment without a stack file (local) has no clusters and uses
    the first stack's region.
    """
    try:
        price_list, stacks = prices.read(), loader.environments()
        stack = environment if environment in stacks else next(iter(stacks), None)
        settings = loader.load(stack) if stack else None
    except UserError:
        settings = None
    if settings is None:
        return unknown
    declared = settings.clusters if environment in stacks else ()
    clusters = {cluster.name: (cluster.vm_size, cluster.spot) for cluster in declared}

    def hourly(wanted: str) -> HourlyPrice | None:
        size, spot = wanted, False
        if wanted.startswith(CLUSTER):
            size, spot = clusters.get(_cluster_name(wanted), ("", False))
        price = price_list.find(f"vm/{size}", settings.location, "spot" if spot else "dedicated")
        if price is None:
            return None
        source = f"{price.source} ({price.note})" if price.note else price.source
        return HourlyPrice(price.amount, price_list.currency, source, price.as_of, size)

    return hourly


def of_deployment(deployment: YamlNode) -> str:
    """Return a line of text with the hourly and monthly price of an online deployment.

    The price is for the first stack's region.
    """
    size, instances = str(deployment.get("instance_type")), deployment.get("instance_count") or 1
    where = f"on Azure: {count(int(instances), 'instance')} of {size}"
    if (price := of_instance("local")(size)) is None:
        return f"{where}: no price known for {size}; `infra cost --refresh` asks Azure"
    hourly = price.per_hour * int(instances)
    amounts = f"{hourly:.2f} {price.currency} an hour, {hourly * HOURS:.0f} a month"
    return f"{where}: {amounts}; prices from {price.source} ({price.as_of})"


def as_json(cost: Cost) -> dict[str, object]:
    """Return the cost as JSON values; `most`, the maximum, is None without a time limit."""
    hours = cost.bound.node_hours

    def most(rate: float | None) -> float | None:
        return None if rate is None or hours is None else round(rate * hours, 4)

    return {
        "compute": cost.compute,
        "size": cost.size,
        "region": cost.region,
        "nodes": cost.bound.nodes,
        "node_hours": hours,
        "currency": cost.currency,
        "dedicated": {"an_hour": cost.dedicated, "most": most(cost.dedicated)},
        "spot": {"an_hour": cost.spot, "most": most(cost.spot)},
        "notes": cost.notes,
    }


def _parts(plan: Plan) -> Iterator[tuple[str, Bound]]:
    """Yield (cluster name, bound) of each job of the plan."""
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from _parts(step.plan)
    elif isinstance(plan, SweepPlan):
        trial = plan.trial
        yield (
            _cluster_name(trial.compute),
            sweep(
                trial.instance_count,
                plan.max_total_trials,
                plan.max_concurrent_trials,
                plan.trial_timeout_s or trial.timeout_s,
                plan.timeout_s,
            ),
        )
    elif isinstance(plan, AutoMLPlan):
        trials, concurrent = plan.max_total_trials, plan.max_concurrent_trials
        yield (
            _cluster_name(plan.compute),
            sweep(1, trials, concurrent, plan.trial_timeout_s, plan.timeout_s),
        )
    else:
        yield _cluster_name(plan.compute), single(plan.instance_count, plan.timeout_s)


def _costs_on(
    compute: str, bound: Bound, environments: list[Settings], price_list: PriceList
) -> Iterator[Cost]:
    """Yield one cost for each VM size and region of the clusters named `compute`."""
    clusters = {
        (cluster.vm_size, settings.location): cluster.hardware.low_priority
        for settings in environments
        for cluster in settings.clusters
        if cluster.name == compute
    }
    for (size, region), has_spot in clusters.items():
        dedicated = price_list.find(f"vm/{size}", region)
        spot = price_list.find(f"vm/{size}", region, "spot") if has_spot else None
        price = spot or dedicated
        notes = (f"prices from {price.source} ({price.as_of})", price.note) if price else ()
        yield Cost(
            compute=compute,
            size=size,
            region=region,
            bound=bound,
            dedicated=dedicated.amount if dedicated else None,
            spot=spot.amount if spot else None,
            currency=price_list.currency,
            notes="; ".join(filter(None, notes)),
        )


def _cluster_name(compute: str) -> str:
    return compute.removeprefix("azureml:").partition(":")[0]


def _amounts(quantity: float, cost: Cost) -> str:
    text = f"{quantity * (cost.dedicated or 0.0):.2f} {cost.currency} dedicated"
    return text if cost.spot is None else f"{text}, {quantity * cost.spot:.2f} spot"
