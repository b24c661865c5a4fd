"""The quota of Azure ML in a region: cores of each family, of all dedicated and all spot nodes.

Azure ML lists an entry of the same name for dedicated and for low-priority cores, and again for
each workspace and each cluster; the id and the type tell them apart, and -1 is no limit
(azure-rest-api-specs, Microsoft.MachineLearningServices, examples/Usage/list.json).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.live.addresses import version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.settings import Settings
from infra.sizes import SIZES

DEDICATED, SPOT = "TotalDedicatedCores", "TotalLowPriorityCores"


@dataclass
class _Wanted:
    """Cores that one quota has to hold: of all nodes, and at least those of one cluster's least."""

    most: int = 0
    least: int = 0


def quota(settings: Settings, arm: Arm) -> Iterator[Check]:
    """By family and in all for dedicated nodes, in all for low-priority ones."""
    wanted = _wanted(settings)
    if not wanted:
        return
    path = (
        f"/subscriptions/{arm.subscription}/providers/Microsoft.MachineLearningServices"
        f"/locations/{settings.location}/usages"
    )
    usages = {
        str((one.get("name") or {}).get("value")).lower(): one
        for one in arm.all(path, version("machinelearningservices:Workspace"))
        if "/workspaces/" not in str(one.get("id")).lower() and _counts(one)
    }
    for name, cores in sorted(wanted.items()):
        yield _enough(name, cores, usages.get(name.lower()), settings.location)


def _wanted(settings: Settings) -> Mapping[str, _Wanted]:
    wanted: dict[str, _Wanted] = {}

    def add(name: str, most: int, least: int) -> None:
        one = wanted.setdefault(name, _Wanted())
        one.most += most
        one.least = max(one.least, least)

    for cluster in settings.computes:
        size = cluster.hardware
        for name in (SPOT,) if cluster.spot else (size.family, DEDICATED):
            # Without room for one node a cluster is refused though it may begin with none.
            least = size.cores * max(cluster.min_nodes, 1)
            add(name, size.cores * cluster.max_nodes, least)
    for instance in settings.machines("compute-instance"):
        size = SIZES[instance.size]
        for name in (size.family, DEDICATED):
            add(name, size.cores, size.cores)
    return wanted


def _counts(usage: Mapping[str, Any]) -> bool:
    """Whether an entry of the subscription is one that is asked for: a family's low-priority cores
    have no limit but that of all.
    """
    spot = "lowpriority" in str(usage.get("type")).lower()
    return not spot or (usage.get("name") or {}).get("value") == SPOT


def _enough(quota: str, wanted: _Wanted, usage: Mapping[str, Any] | None, region: str) -> Check:
    name, asked = f"quota {quota}", f"{wanted.most} at most are asked for"
    if usage is None:
        said = f"{region} reports none; {wanted.most} cores are asked for"
        return Check(name, "warning", said)
    limit, used = usage.get("limit"), usage.get("currentValue")
    if limit is None:
        return Check(name, "warning", f"Azure does not say how many cores there are; {asked}")
    hint = f"ask for {wanted.most} in Azure ML's quota page, or fewer max_nodes"
    if limit == -1:
        return Check(name, "ok", "no limit of its own")
    if limit < wanted.least:
        said = f"{limit} cores, less than the {wanted.least} that a machine needs to be made"
        return Check(name, "error", said, hint)
    if limit < wanted.most:
        return Check(name, "warning", f"{limit} cores, {asked}", hint)
    if used is None:
        said = f"{limit} cores, how many are free is not said; {asked}"
        return Check(name, "warning", said)
    free = f"{limit - used} of {limit} cores are free"
    if limit - used < wanted.most:
        return Check(name, "warning", f"{free}, {asked}")
    return Check(name, "ok", f"{free}, {wanted.most} at most are needed")
