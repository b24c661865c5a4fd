"""What training a model and asking it cost: machine time always, money where a price is known.

No price is made up: whoever knows one hands in a `Prices`; without it the amounts are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ml.backends.runs import Run
from ml.serving.client import Timing

PREDICTIONS = 1000
# How a job names the cluster that it is to run on.
CLUSTER = "azureml:"


@dataclass(frozen=True)
class Price:
    """What an hour of an `instance_type` costs, in `currency`, as `source` had it on `as_of`."""

    per_hour: float
    currency: str
    source: str
    as_of: str
    instance_type: str = ""


# The price of an instance type, or of a node of a cluster (`azureml:NAME`); None where it is not
# known.
Prices = Callable[[str], Price | None]


def unknown(instance_type: str) -> Price | None:
    """No price list: every price is unknown."""
    return None


def of(
    trained: Run,
    timing: Timing,
    instance_type: str,
    prices: Prices = unknown,
    lineage: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, object]:
    """What evidence.json states under `cost`; `made` is the training run's lineage.

    A thousand predictions are counted one after another on one instance, at the mean latency that
    was measured: an instance that answers several at once costs less. The training is what its job
    asks for, `instance_count` nodes of its cluster, for as long as it took on this machine, which
    nobody pays by the hour and which those nodes may be faster or slower than.
    """
    compute = str(lineage.get("compute") or "")
    node = prices(compute) if compute.startswith(CLUSTER) else None
    price = prices(instance_type)
    why = (
        f"as if a node of {compute} were as fast as this machine"
        if node
        else f"it ran on this machine; nobody knows here what {compute or 'its compute'} costs"
    )
    type_of = node.instance_type if node else ""
    training = _spent(
        trained.active_s, timing.hardware, type_of, node, lineage.get("nodes") or 1, why
    )
    why = "" if price else f"nobody knows here what {instance_type or 'its instance'} costs"
    asking = PREDICTIONS * timing.mean_ms / 1000
    stated: dict[str, object] = {
        "training": training,
        "thousand_predictions": _spent(asking, timing.hardware, instance_type, price, 1, why),
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
