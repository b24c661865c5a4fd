"""Rules of cost: how many nodes, which GPUs, how long they idle; a budget."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from policies.infra.limits import Limits
from policies.infra.reach import MACHINE
from policies.infra.rule import UNKNOWN, Item, Rule
from policies.infra.workspace import COMPUTE

# All that accelerates: virtual-machines/sizes/overview, "N".
GPU = re.compile(r"Standard_N", re.I)
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")
# Azure's own longest: the reference of `idleTimeBeforeShutdown`.
_LONGEST = 3 * 24 * 60
_ALL = 100  # percent
_SCALE = "properties.properties.scaleSettings"


def _cap(item: Item, limits: Limits) -> Iterator[str]:
    nodes = item.at(f"{_SCALE}.maxNodeCount")
    if _cluster(item) and (not isinstance(nodes, int | float) or nodes > limits.max_nodes):
        yield f"`maxNodeCount` is {nodes}, at most {limits.max_nodes} here"


def _to_zero(item: Item, limits: Limits) -> Iterator[str]:
    nodes = item.at(f"{_SCALE}.minNodeCount", 0)
    if _cluster(item) and nodes != 0:
        yield f"`minNodeCount` is {nodes}, must be 0: an idle node costs as a busy one"


def _idle(item: Item, limits: Limits) -> Iterator[str]:
    if not _cluster(item):
        return
    stated = item.at(f"{_SCALE}.nodeIdleTimeBeforeScaleDown")
    if _minutes(stated) > limits.idle_minutes:
        yield f"`nodeIdleTimeBeforeScaleDown` is {stated}, at most {limits.idle_minutes} minutes"


def _gpu(item: Item, limits: Limits) -> Iterator[str]:
    where = "hardwareProfile.vmSize" if item.kind == MACHINE else "properties.properties.vmSize"
    size = str(item.at(where, UNKNOWN))
    known = {one.lower() for one in limits.gpu_sizes}
    if size == UNKNOWN or (GPU.match(size) and size.lower() not in known):
        allowed = ", ".join(limits.gpu_sizes) or "none"
        yield f"`vmSize` is {size}; GPU sizes allowed here: {allowed}"


def _instance(item: Item, limits: Limits) -> Iterator[str]:
    stopping = item.at("properties.properties.idleTimeBeforeShutdown")
    if item.at("properties.computeType") == "ComputeInstance" and _minutes(stopping) > _LONGEST:
        yield "a compute instance stops by itself when it is idle"


def _budget(items: Sequence[Item], limits: Limits) -> Iterator[tuple[Item, str]]:
    watched = {
        urn
        for item in items
        if item.kind == "consumption:Budget" and any(map(_warns, item.each("notifications")))
        for urn in item.uses.get("scope", ())
    }
    for item in items:
        if item.kind == "resources:ResourceGroup" and item.urn not in watched:
            yield item, "no budget warns of its cost"


def _warns(notice: Item) -> bool:
    """To somebody, before all is spent."""
    percent = notice.at("threshold")
    somebody = notice.at("contactEmails") or notice.at("contactGroups")
    in_time = isinstance(percent, int | float) and percent <= _ALL
    return bool(notice.at("enabled") is True and in_time and somebody)


def _minutes(stated: object) -> float:
    """A duration such as PT1H30M in minutes; without end where it says none."""
    found = _DURATION.fullmatch(str(stated))
    if not found or not any(found.groups()):
        return math.inf
    hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return hours * 60 + minutes + seconds / 60


def _cluster(item: Item) -> bool:
    return bool(item.at("properties.computeType") == "AmlCompute")


RULES: tuple[Rule, ...] = (
    Rule("cost-node-cap", "A cluster has at most so many nodes.", "own", (COMPUTE,), _cap),
    Rule(
        "cost-scale-to-zero",
        "A cluster without work has no node.",
        "CKV_AZURE_150",
        (COMPUTE,),
        _to_zero,
    ),
    Rule("cost-idle-time", "An idle node goes soon.", "own", (COMPUTE,), _idle),
    Rule(
        "cost-gpu-sizes",
        "Only GPU sizes that the environment allows.",
        "own",
        (COMPUTE, MACHINE),
        _gpu,
    ),
    Rule("cost-idle-instance", "An idle instance stops.", "own", (COMPUTE,), _instance),
    Rule("cost-budget", "A budget warns in time.", "own", whole=_budget),
)
