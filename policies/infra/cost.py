"""Rules for cost: the number of nodes, GPU sizes, idle time, and a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from policies.infra.limits import Limits
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings, is_cluster, sources_of

# Every size with an accelerator: virtual-machines/sizes/overview, "N".
GPU = re.compile(r"Standard_N", re.I)
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")
# Azure's own maximum in minutes: the reference of `idleTimeBeforeShutdown`.
_LONGEST_IDLE = 3 * 24 * 60
_SCALE = "properties.properties.scaleSettings"


RULES = Rules()


@RULES.resource("cost-node-cap", "Clusters stay within the limit of nodes.", "own", Kind.COMPUTE)
def _max_nodes(item: Item, limits: Limits) -> Iterator[str]:
    nodes = item.value(f"{_SCALE}.maxNodeCount")
    if is_cluster(item) and (not isinstance(nodes, int | float) or nodes > limits.max_nodes):
        yield f"`maxNodeCount` is {nodes}, at most {limits.max_nodes} here"


@RULES.stack("cost-gpu-nodes", "All clusters together stay within the limit of GPU nodes.", "own")
def _gpu_nodes(items: Sequence[Item], limits: Limits) -> StackFindings:
    """All GPU nodes have a limit, and dedicated nodes of clusters a second one."""
    total = dedicated = 0.0
    for item in items:
        size = str(item.value("properties.properties.vmSize", ""))
        if item.kind != Kind.COMPUTE or not GPU.match(size):
            continue
        stated = item.value(f"{_SCALE}.maxNodeCount", 1)
        nodes = stated if isinstance(stated, int | float) else math.inf
        total += nodes
        if total > limits.max_gpu_nodes:
            yield (
                item,
                f"brings GPU nodes to {total:g}, at most {limits.max_gpu_nodes} in the stack",
            )
        if is_cluster(item) and item.value("properties.properties.vmPriority") != "LowPriority":
            dedicated += nodes
            if dedicated > (most := limits.max_dedicated_gpu_nodes):
                yield item, f"brings dedicated GPU nodes to {dedicated:g}, at most {most}: use spot"


@RULES.resource("cost-budget-size", "The budget is within the limit.", "own", Kind.BUDGET)
def _budget_size(item: Item, limits: Limits) -> Iterator[str]:
    amount = item.value("amount")
    if not isinstance(amount, int | float) or amount > limits.max_budget:
        yield f"`amount` is {amount}, at most {limits.max_budget} here"
    if item.value("filter") or item.value("timeGrain", "Monthly") != "Monthly":
        yield "`filter` or `timeGrain`: it does not count the cost of everything in each month"


@RULES.resource(
    "cost-scale-to-zero", "Clusters without work have no nodes.", "CKV_AZURE_150", Kind.COMPUTE
)
def _min_nodes(item: Item, limits: Limits) -> Iterator[str]:
    nodes = item.value(f"{_SCALE}.minNodeCount", 0)
    if is_cluster(item) and nodes != 0:
        yield f"`minNodeCount` is {nodes}, must be 0: an idle node costs as much as a busy one"


@RULES.resource("cost-idle-time", "Idle nodes are released soon.", "own", Kind.COMPUTE)
def _idle_time(item: Item, limits: Limits) -> Iterator[str]:
    if not is_cluster(item):
        return
    duration = item.value(f"{_SCALE}.nodeIdleTimeBeforeScaleDown")
    if _minutes(duration) > limits.idle_minutes:
        yield f"`nodeIdleTimeBeforeScaleDown` is {duration}, at most {limits.idle_minutes} minutes"


@RULES.resource(
    "cost-gpu-sizes",
    "GPU sizes are those that the environment allows.",
    "own",
    Kind.COMPUTE,
    Kind.MACHINE,
)
def _gpu_size(item: Item, limits: Limits) -> Iterator[str]:
    path = "hardwareProfile.vmSize" if item.kind == Kind.MACHINE else "properties.properties.vmSize"
    size = str(item.value(path, UNKNOWN))
    allowed = {size.lower() for size in limits.gpu_sizes}
    if size == UNKNOWN or (GPU.match(size) and size.lower() not in allowed):
        choices = ", ".join(limits.gpu_sizes) or "none"
        yield f"`vmSize` is {size}; GPU sizes allowed here: {choices}"


@RULES.resource("cost-idle-instance", "Idle instances stop.", "own", Kind.COMPUTE)
def _idle_instance(item: Item, limits: Limits) -> Iterator[str]:
    instance = item.value("properties.computeType") == "ComputeInstance"
    duration = item.value("properties.properties.idleTimeBeforeShutdown")
    if instance and _minutes(duration) > _LONGEST_IDLE:
        yield f"`idleTimeBeforeShutdown` is {duration}, at most {_LONGEST_IDLE} minutes"


@RULES.stack("cost-budget", "A budget warns before it is spent.", "own")
def _budget(items: Sequence[Item], limits: Limits) -> StackFindings:
    in_budget = sources_of(
        items,
        Kind.BUDGET,
        "scope",
        lambda budget: any(map(_warns, budget.members("notifications"))),
    )
    for item in items:
        if item.kind == Kind.RESOURCE_GROUP and item.urn not in in_budget:
            yield item, "no budget warns of its cost"


def _warns(notification: Item) -> bool:
    """Return whether the notification warns somebody before the whole budget is spent."""
    percent = notification.value("threshold")
    contacts = notification.value("contactEmails") or notification.value("contactGroups")
    exceeds = str(notification.value("operator", "GreaterThan")).startswith("GreaterThan")
    in_time = isinstance(percent, int | float) and percent <= 100 and exceeds
    return bool(notification.value("enabled") is True and in_time and contacts)


def _minutes(duration: object) -> float:
    """Return a duration such as PT1H30M in minutes; infinity if it is unset or malformed."""
    match = _DURATION.fullmatch(str(duration))
    if not match or not any(match.groups()):
        return math.inf
    hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return hours * 60 + minutes + seconds / 60
