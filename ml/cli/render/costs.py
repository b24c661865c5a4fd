"""What a job would cost on Azure ML at most: `ml run --dry-run` says it, spot and dedicated.

The cluster that a spec names is looked up in the environments' stack files; the bound comes from
nodes and time limits alone, since nobody knows before how long a job takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.catalog import prices
from infra.catalog.prices import PriceList
from infra.cost.formulas import Bound, single, sweep
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
            said = (
                f"{_both(nodes, self)} an hour on {_nodes(nodes)}; no time limit bounds the whole"
            )
        else:
            said = f"at most {_both(hours, self)} ({hours:.2f} node-hours)"
        return f"{where}: {said}; {self.notes}"


def of(plan: Plan) -> list[Cost]:
    """What the plan would cost, cluster by cluster; empty where no stack file names its cluster."""
    try:
        listed = prices.read()
        known = [loader.load(stack) for stack in loader.stacks()]
    except (prices.WrongPrices, Refused):
        return []  # `infra settings` and `infra cost` say what is wrong with them
    found: list[Cost] = []
    for compute, bound in _bounds(plan).items():
        found.extend(_priced(compute, bound, known, listed))
    return found


def of_instance(environment: str) -> Prices:
    """The price by the hour, in the environment's region, of an instance or of a node of one of its
    clusters (`azureml:NAME`, dedicated or spot as the stack has it); None where nobody knows.

    An environment without a stack file (local) has no clusters; an instance for it is priced where
    the first stack is.
    """

    def hourly(wanted: str) -> HourlyPrice | None:
        try:
            listed, stacks = prices.read(), loader.stacks()
            stack = environment if environment in stacks else next(iter(stacks), None)
            if stack is None:
                return None
            settings = loader.load(stack)
        except (prices.WrongPrices, Refused):
            return None
        size, spot = wanted, False
        if wanted.startswith(CLUSTER):
            own = settings.clusters if environment in stacks else ()
            cluster = next((one for one in own if one.name == _named(wanted)), None)
            if cluster is None:
                return None
            size, spot = cluster.vm_size, cluster.spot
        found = listed.find(f"vm/{size}", settings.location, "spot" if spot else "dedicated")
        if found is None:
            return None
        source = f"{found.source} ({found.note})" if found.note else found.source
        return HourlyPrice(found.amount, listed.currency, source, found.as_of, size)

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
    found: dict[str, Bound] = {}
    for compute, bound in _parts(plan):
        found[compute] = found[compute] + bound if compute in found else bound
    return found


def _parts(plan: Plan) -> Iterator[tuple[str, Bound]]:
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from _parts(step.plan)
    elif isinstance(plan, SweepPlan):
        trial = plan.trial
        yield (
            _named(trial.compute),
            sweep(
                trial.instance_count,
                plan.max_total_trials,
                plan.max_concurrent_trials,
                plan.trial_timeout_s or trial.timeout_s,
                plan.timeout_s,
            ),
        )
    elif isinstance(plan, CommandPlan):
        yield _named(plan.compute), single(plan.instance_count, plan.timeout_s)


def _priced(compute: str, bound: Bound, known: list[Settings], listed: PriceList) -> Iterator[Cost]:
    """One for each size and region that an environment gives a cluster of that name."""
    seen = set()
    for one in known:
        for cluster in one.clusters:
            if cluster.name != compute or (cluster.vm_size, one.location) in seen:
                continue
            seen.add((cluster.vm_size, one.location))
            item = f"vm/{cluster.vm_size}"
            dedicated = listed.find(item, one.location)
            lent = cluster.hardware.low_priority
            spot = listed.find(item, one.location, "spot") if lent else None
            told = spot or dedicated
            yield Cost(
                compute,
                cluster.vm_size,
                one.location,
                bound,
                dedicated.amount if dedicated else None,
                spot.amount if spot else None,
                listed.currency,
                "; ".join(filter(None, (f"{told.source}, {told.as_of}", told.note)))
                if told
                else "",
            )


def _named(compute: str) -> str:
    return compute.removeprefix("azureml:").partition(":")[0]


def _both(quantity: float, cost: Cost) -> str:
    said = f"{quantity * (cost.dedicated or 0.0):.2f} {cost.currency} dedicated"
    return said if cost.spot is None else f"{said}, {quantity * cost.spot:.2f} spot"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
