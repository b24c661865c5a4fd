"""Settings of clusters and machines that are each sound and do not go together."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from datetime import date

from infra.network_agreement import Found
from infra.settings import Settings
from infra.sizes import PRESETS, SIZES, retired
from ml.core.documents import Key

# Most nodes of a cluster with InfiniBand (how-to-manage-quotas: an RDMA enabled VM family).
MOST_WITH_INFINIBAND = 100


def _sizes(settings: Settings) -> Found:
    for index, cluster in enumerate(settings.clusters):
        keys: tuple[Key, ...] = ("platform:clusters", index)
        if (cluster.preset is None) == (cluster.size is None):
            found = "both `preset` and `size`" if cluster.size else "neither `preset` nor `size`"
            expected = "one of the two; presets: " + ", ".join(PRESETS)
            hint = "delete one" if cluster.size else "add `preset: cpu`"
            yield "one-size", f"`{cluster.name}` has {found}", expected, hint, keys
        elif cluster.size:
            yield from _size(cluster.size, (*keys, "size"))
    for index, workstation in enumerate(settings.workstations):
        yield from _size(workstation.size, ("platform:workstations", index, "size"))
    builder, there = settings.images.builder_size, ("platform:images", "builder_size")
    yield from _size(builder, there)
    if builder in SIZES and SIZES[builder].gpus:
        found = f"`{builder}` has {SIZES[builder].gpus} GPUs, which building an image does not use"
        yield "builder-with-gpu", found, "a size without a GPU", f"use {PRESETS['cpu']}", there


def _size(size: str, keys: tuple[Key, ...]) -> Found:
    gone = retired(size, date.today())
    if gone:
        found = f"`{size}`: the {gone.family} series was retired on {gone.day}"
        yield "retired-size", found, "a size that Azure still has", f"use {gone.instead}", keys
    elif size not in SIZES:
        folded = {known.lower().removeprefix("standard_"): known for known in SIZES}
        near = difflib.get_close_matches(size.lower().removeprefix("standard_"), folded, 1, 0.8)
        hint = f"did you mean `{folded[near[0]]}`? " if near else ""
        hint += "a size that is missing here is added to infra/sizes.py, with its price"
        yield "unknown-size", f"`{size}` is not a known size", ", ".join(SIZES), hint, keys


def _nodes(settings: Settings) -> Found:
    for index, cluster in enumerate(settings.clusters):
        if cluster.min_nodes > cluster.max_nodes:
            found = f"`{cluster.name}`: min_nodes {cluster.min_nodes} > max_nodes"
            expected = f"at most {cluster.max_nodes}"
            keys: tuple[Key, ...] = ("platform:clusters", index, "min_nodes")
            yield "nodes", found, expected, "0 lets it scale to zero", keys
        if cluster.usage.nodes > cluster.max_nodes:
            found = f"`{cluster.name}`: a typical job takes {cluster.usage.nodes} nodes"
            expected = f"at most max_nodes, {cluster.max_nodes}"
            hint = "a typical month is for the estimate alone"
            yield "nodes", found, expected, hint, ("platform:clusters", index, "usage", "nodes")
        size = SIZES.get(cluster.vm_size)
        if size and size.infiniband and cluster.max_nodes > MOST_WITH_INFINIBAND:
            found = f"`{cluster.name}`: {cluster.max_nodes} nodes with InfiniBand"
            hint = "a second cluster has its own; one job runs on one of them"
            expected = f"at most {MOST_WITH_INFINIBAND}"
            yield "nodes", found, expected, hint, ("platform:clusters", index, "max_nodes")


def _spot(settings: Settings) -> Found:
    for index, cluster in enumerate(settings.clusters):
        size = SIZES.get(cluster.vm_size)
        if size and cluster.priority == "spot" and not size.low_priority:
            found = f"`{cluster.name}`: Azure ML has no low-priority nodes of {cluster.vm_size}"
            hint = "leave it out, or take another size"
            keys: tuple[Key, ...] = ("platform:clusters", index, "priority")
            yield "no-spot", found, "`priority: dedicated`", hint, keys


CHECKS: tuple[Callable[[Settings], Found], ...] = (_sizes, _spot, _nodes)
