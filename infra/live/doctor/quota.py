"""The quota of Azure ML in a region: cores of each family, and of all low-priority nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from infra.live.addresses import version
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.settings import Settings


def quota(settings: Settings, arm: Arm) -> Iterator[Check]:
    """Cores by family for dedicated nodes, one total for low-priority ones."""
    wanted: dict[str, int] = defaultdict(int)
    for cluster in settings.computes:
        cores = cluster.hardware.cores * cluster.max_nodes
        wanted["TotalLowPriorityCores" if cluster.spot else cluster.hardware.family] += cores
    if not wanted:
        return
    path = (
        f"/subscriptions/{arm.subscription}/providers/Microsoft.MachineLearningServices"
        f"/locations/{settings.location}/usages"
    )
    usages = {
        str(one["name"]["value"]).lower(): one
        for one in arm.all(path, version("machinelearningservices:Workspace"))
    }
    for family, cores in sorted(wanted.items()):
        yield _enough(family, cores, usages.get(family.lower()), settings.location)


def _enough(family: str, cores: int, usage: Mapping[str, Any] | None, region: str) -> Check:
    name = f"quota {family}"
    if usage is None:
        return Check(name, "warning", f"{region} reports none; {cores} cores are asked for")
    limit, used = int(usage["limit"]), int(usage["currentValue"])
    if limit < cores:
        hint = f"ask for {cores} in Azure ML's quota page, or fewer max_nodes"
        return Check(name, "error", f"{limit} cores, {cores} at most are asked for", hint)
    if limit - used < cores:
        said = f"{limit - used} of {limit} cores are free, {cores} at most are asked for"
        return Check(name, "warning", said)
    return Check(
        name, "ok", f"{limit - used} of {limit} cores are free, {cores} at most are needed"
    )
