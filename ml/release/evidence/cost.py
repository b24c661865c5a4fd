"""Estimate the cost of training and of predictions: machine time, and money if a price is known.

The caller passes a `Prices`; without a price the amounts are left out.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from ml.backends.runs import Run
from policies.promotion.evidence import Latency

PREDICTIONS = 1000
# The prefix of a cluster in a job's `compute`.
CLUSTER = "azureml:"
# If set, this variable names this machine's Azure instance type (`Standard_DS3_v2`).
INSTANCE_TYPE = "MLOPS_INSTANCE_TYPE"


@dataclass(frozen=True)
class Price:
    """The price of an hour of a machine."""

    per_hour: float
    currency: str
    source: str  # the price list, with a note if the price is inexact
    as_of: str  # date of the price in the list
    instance_type: str = ""


# The price of an instance type, or of a node of a cluster (`azureml:NAME`); None if unknown.
Prices = Callable[[str], Price | None]


def unknown(instance_type: str) -> Price | None:
    """Return None for every instance: a price list without prices."""
    return None


def estimate(
    trained: Run,
    latency: Latency,
    prices: Prices = unknown,
    lineage: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, object]:
    """Return the field `cost` of evidence.json; `lineage` is the training run's.

    A thousand predictions cost the measured mean latency each, in sequence on one instance; an
    instance that answers several at once costs less. Training costs its duration on this machine
    times the nodes of its job, which may be faster or slower.
    """
    compute = str(lineage.get("compute") or "")
    hardware, instance_type = latency.hardware or "", latency.instance_type or ""
    node = prices(compute) if compute.startswith(CLUSTER) else None
    price = prices(instance_type)
    why = (
        f"as if a node of {compute} were as fast as this machine"
        if node
        else f"it ran on this machine; the price of {compute or 'its compute'} is unknown here"
    )
    type_of = node.instance_type if node else ""
    training = _spent(trained.active_s, hardware, type_of, node, lineage.get("nodes") or 1, why)
    why = "" if price else f"the price of {instance_type or 'its instance'} is unknown here"
    asking = PREDICTIONS * latency.mean_ms / 1000
    stated: dict[str, object] = {
        "training": training,
        "thousand_predictions": _spent(asking, hardware, instance_type, price, 1, why),
    }
    if source := price or node:
        stated |= {"currency": source.currency, "source": source.source, "as_of": source.as_of}
    return stated


def _spent(
    seconds: float, hardware: str, instance_type: str, price: Price | None, nodes: int, note: str
) -> Mapping[str, object]:
    entry: dict[str, object] = {"seconds": seconds, "nodes": nodes, "hardware": hardware}
    if instance_type:
        entry["instance_type"] = instance_type
    if price is not None:
        entry["price_per_hour"] = price.per_hour
        entry["amount"] = seconds / 3600 * nodes * price.per_hour
    if note:
        entry["note"] = note
    return entry


def hardware() -> str:
    """Return this machine's instance type (MLOPS_INSTANCE_TYPE), or its processor and memory."""
    if instance_type := os.environ.get(INSTANCE_TYPE, "").strip():
        return instance_type
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB"
