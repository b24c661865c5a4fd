"""The price list: the price of an item in a region, with its source and date.

An item is `vm/<size>`, `private-endpoint`, `firewall/<sku>` and so on. An item without a price is
None, never zero, so that an estimate can name it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("prices.json")
# Source of the prices that Azure itself gave; all others are copied from third parties.
AZURE = "Azure Retail Prices API"
# Its prices are used, with a note, for regions that are not listed.
DEFAULT_REGION = "eastus"
Priority = Literal["dedicated", "spot"]


class WrongPrices(ValueError):
    """The price list is invalid; names the entry."""


@dataclass(frozen=True)
class Price:
    """`amount` in the list's currency for one `unit`; `note` says why it is inexact."""

    item: str
    region: str
    unit: str
    amount: float
    source: str
    as_of: str
    priority: Priority = "dedicated"
    note: str = ""


@dataclass(frozen=True)
class PriceList:
    """Prices by item, region, priority; `spot_share` estimates spot prices that are not listed."""

    currency: str
    prices: tuple[Price, ...]
    spot_share: float
    spot_source: str

    def find(self, item: str, region: str, priority: Priority = "dedicated") -> Price | None:
        """The price, with a note where it is another region's or an estimated spot price."""
        listed = {
            price.region: price
            for price in self.prices
            if (price.item, price.priority) == (item, priority)
        }
        if region in listed:
            return listed[region]
        if priority == "spot" and (dedicated := self.find(item, region)):
            note = (
                f"low priority, estimated as {self.spot_share:.0%} of dedicated"
                f" ({self.spot_source})"
            )
            note = "; ".join(filter(None, (dedicated.note, note)))
            amount = dedicated.amount * self.spot_share
            return replace(dedicated, amount=amount, priority="spot", note=note)
        if DEFAULT_REGION in listed:
            return replace(
                listed[DEFAULT_REGION],
                note=f"as in {DEFAULT_REGION} (no price is listed for {region})",
            )
        return None

    def updated(self, fresh: Sequence[Price]) -> PriceList:
        """The list, with `fresh` replacing older prices of the same items."""
        replaced = {(price.item, price.region, price.priority) for price in fresh}
        others = [o for o in self.prices if (o.item, o.region, o.priority) not in replaced]
        ordered = sorted(
            (*others, *fresh), key=lambda price: (price.item, price.region, price.priority)
        )
        return replace(self, prices=tuple(ordered))

    def write(self, path: Path | None = None) -> None:
        """Replace the file (FILE) atomically."""
        path = path or FILE
        document = {
            "currency": self.currency,
            "spot_share": {"value": self.spot_share, "source": self.spot_source},
            "prices": [_entry(price) for price in self.prices],
        }
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)


def read(path: Path | None = None) -> PriceList:
    """The price list of a file (FILE); raises WrongPrices for an invalid entry."""
    path = path or FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        share = document["spot_share"]
        return PriceList(
            str(document["currency"]),
            tuple(_price(entry) for entry in document["prices"]),
            _amount(share["value"], "spot_share"),
            str(share["source"]),
        )
    except (OSError, json.JSONDecodeError) as error:
        raise WrongPrices(f"{path.name}: {error}") from None
    except (KeyError, TypeError) as error:
        raise WrongPrices(f"{path.name}: no {error}") from None


def _price(entry: Mapping[str, Any]) -> Price:
    """One entry; its source and date are required."""
    label = f"{entry.get('item', entry)} in {entry.get('region', 'no region')}"
    for name in ("item", "region", "unit", "price", "source", "as_of"):
        if entry.get(name) in (None, ""):
            raise WrongPrices(f"{label}: no {name}")
    priority: Priority = entry.get("priority", "dedicated")
    if priority not in ("dedicated", "spot"):
        raise WrongPrices(f"{label}: priority {priority}")
    return Price(
        str(entry["item"]),
        str(entry["region"]),
        str(entry["unit"]),
        _amount(entry["price"], label),
        str(entry["source"]),
        str(entry["as_of"]),
        priority,
    )


def _amount(value: Any, label: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongPrices(f"{label}: {value!r} is not a number")
    if not math.isfinite(value) or value < 0:
        raise WrongPrices(f"{label}: {value} is not a price")
    return float(value)


def _entry(price: Price) -> dict[str, object]:
    fields = {
        ("price" if name == "amount" else name): value for name, value in asdict(price).items()
    }
    return {name: value for name, value in fields.items() if name != "note"}
