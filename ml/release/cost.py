"""What training a model and asking it cost: machine time always, money where a price is known.

No price is made up: whoever knows one hands in a `Prices`; without it the amounts are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ml.backends.base import Run
from ml.serving.client import Timing

PREDICTIONS = 1000


@dataclass(frozen=True)
class Price:
    """What an hour of an instance type costs, in `currency`, as `source` had it on `as_of`."""

    per_hour: float
    currency: str
    source: str
    as_of: str


# The price of an instance type; None where it is not known.
Prices = Callable[[str], Price | None]


def unknown(instance_type: str) -> Price | None:
    """No price list: every price is unknown."""
    return None


def of(
    trained: Run, timing: Timing, instance_type: str, prices: Prices = unknown
) -> Mapping[str, object]:
    """What evidence.json states under `cost`.

    A thousand predictions are counted one after another on one instance, at the mean latency that
    was measured: an instance that answers several at once costs less. The training ran on this
    machine, for which nobody pays by the hour.
    """
    price = prices(instance_type)
    stated: dict[str, object] = {
        "training": _spent(trained.active_s, timing.hardware, "", None),
        "thousand_predictions": _spent(
            PREDICTIONS * timing.mean_ms / 1000, timing.hardware, instance_type, price
        ),
    }
    if price is not None:
        stated |= {"currency": price.currency, "source": price.source, "as_of": price.as_of}
    return stated


def _spent(
    seconds: float, hardware: str, instance_type: str, price: Price | None, nodes: int = 1
) -> Mapping[str, object]:
    found: dict[str, object] = {"seconds": seconds, "nodes": nodes, "hardware": hardware}
    if instance_type:
        found["instance_type"] = instance_type
    if price is not None:
        found["price_per_hour"] = price.per_hour
        found["amount"] = seconds / 3600 * nodes * price.per_hour
    return found
