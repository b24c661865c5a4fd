"""What a job would cost on Azure ML at most: `ml run --dry-run` says it, spot and dedicated.

The cluster that a spec names is looked up in the environments' stack files; the bound comes from
nodes and time limits alone, since nobody knows before how long a job takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.cost import prices
from infra.cost.formulas import Bound, single, sweep
from infra.cost.prices import PriceList
from infra.settings import loader
from infra.settings.model import Settings
from ml.core.errors import Refused
from ml.release.evidence.cost import CLUSTER, Prices
from ml.release.evidence.cost import Price as HourlyPrice
from ml.specs.plan.plan import CommandPlan, PipelinePlan, Plan, SweepPlan


@dataclass(frozen=True)
class Cost:
    """One cluster's part of a job; rates are for a node and an hour, None where nobody knows, and
    of spot nodes where Azure ML has none of that size.
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
            hourly = f"{_amounts(nodes, self)} an hour on {_nodes(nodes)}"
            amount = f"{hourly}; no time limit bounds the whole"
        else:
            amount = f"at most {_amounts(hours, self)} ({hours:.2f} node-hours)"
        return f"{where}: {amount}; {self.notes}"


def of(plan: Plan) -> list[Cost]:
    """What the plan would cost, cluster by cluster; empty where no stack file names its cluster."""
    try:
        price_list = prices.read()
        environments = [loader.load(stack) for stack in loader.stacks()]
    except Refused:
        return []  # `infra settings` and `infra cost` say what is wrong with them
    costs: list[Cost] = []
    for compute, bound in _bounds(plan).items():
        costs.extend(_costs_on(compute, bound, environments, price_list))
    return costs


def of_instance(environment: str) -> Prices:
    """The price by the hour, in the environment's region, of an instance or of a node of one of its
    clusters (`azureml:NAME`, dedicated or spot as the stack has it); None where nobody knows.

    An environment without a stack file (local) has no clusters; an instance for it is priced where
    the first stack is.
    """

    def hourly(wanted: str) -> HourlyPrice | None:
        try:
            price_list, stacks = prices.read(), loader.stacks()
            stack = environment if environment in stacks else next(iter(stacks), None)
            if stack is None:
                return None
            settings = loader.load(stack)
        except Refused:
            return None
        size, spot = wanted, False
        if wanted.startswith(CLUSTER):
            own = settings.clusters if environment in stacks else ()
            cluster = next(
                (cluster for cluster in own if cluster.name == _cluster_name(wanted)), None
            )
            if cluster is None:
                return None
            size, spot = cluster.vm_size, cluster.spot
        price = price_list.find(f"vm/{size}", settings.location, "spot" if spot else "dedicated")
        if price is None:
            return None
        source = f"{price.source} ({price.note})" if price.note else price.source
        return HourlyPrice(price.amount, price_list.currency, source, price.as_of, size)

    return hourly


def as_json(cost: Cost) -> dict[str, object]:
    """The figures for a program; `most` is None where nothing bounds the job."""
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


def _bounds(plan: Plan) -> dict[str, Bound]:
    """The bound of a plan by the name of its cluster."""
    bounds: dict[str, Bound] = {}
    for compute, bound in _parts(plan):
        bounds[compute] = bounds[compute] + bound if compute in bounds else bound
    return bounds


def _parts(plan: Plan) -> Iterator[tuple[str, Bound]]:
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
    elif isinstance(plan, CommandPlan):
        yield _cluster_name(plan.compute), single(plan.instance_count, plan.timeout_s)


def _costs_on(
    compute: str, bound: Bound, environments: list[Settings], price_list: PriceList
) -> Iterator[Cost]:
    """One for each size and region that an environment gives a cluster of that name."""
    seen = set()
    for settings in environments:
        for cluster in settings.clusters:
            if cluster.name != compute or (cluster.vm_size, settings.location) in seen:
                continue
            seen.add((cluster.vm_size, settings.location))
            item = f"vm/{cluster.vm_size}"
            dedicated = price_list.find(item, settings.location)
            lent = cluster.hardware.low_priority
            spot = price_list.find(item, settings.location, "spot") if lent else None
            price = spot or dedicated
            yield Cost(
                compute,
                cluster.vm_size,
                settings.location,
                bound,
                dedicated.amount if dedicated else None,
                spot.amount if spot else None,
                price_list.currency,
                "; ".join(filter(None, (f"{price.source}, {price.as_of}", price.note)))
                if price
                else "",
            )


def _cluster_name(compute: str) -> str:
    return compute.removeprefix("azureml:").partition(":")[0]


def _amounts(quantity: float, cost: Cost) -> str:
    text = f"{quantity * (cost.dedicated or 0.0):.2f} {cost.currency} dedicated"
    return text if cost.spot is None else f"{text}, {quantity * cost.spot:.2f} spot"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
