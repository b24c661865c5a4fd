"""The price list: what an item costs in a region, who says so, and as of when.

An item is `vm/<size>`, `private-endpoint`, `firewall/<sku>` and so on. What has no price is None,
never zero: an estimate says then what it leaves out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

FILE = Path(__file__).with_name("prices.json")
# The region of Azure's own examples; its price stands in, and this is said, where none is listed.
STAND_IN = "eastus"
Priority = Literal["dedicated", "spot"]


class WrongPrices(ValueError):
    """The price list is not one; says the entry and what is wrong with it."""


@dataclass(frozen=True)
class Price:
    """`amount` in the list's currency for one `unit`; `note` says in what it is not exact."""

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
    """Prices by item, region, priority; without a spot price `spot_share` of the dedicated one."""

    currency: str
    prices: tuple[Price, ...]
    spot_share: float
    spot_source: str

    def find(self, item: str, region: str, priority: Priority = "dedicated") -> Price | None:
        """The price in that region; else, with a note, that of `STAND_IN`, or a share for spot."""
        listed = {
            one.region: one for one in self.prices if (one.item, one.priority) == (item, priority)
        }
        if region in listed:
            return listed[region]
        if priority == "spot" and (dedicated := self.find(item, region)):
            note = (
                f"of low priority taken as {self.spot_share:.0%} of dedicated ({self.spot_source})"
            )
            note = "; ".join(filter(None, (dedicated.note, note)))
            amount = dedicated.amount * self.spot_share
            return replace(dedicated, amount=amount, priority="spot", note=note)
        if STAND_IN in listed:
            return replace(listed[STAND_IN], note=f"of {STAND_IN}, as none is listed for {region}")
        return None

    def updated(self, fresh: Sequence[Price]) -> PriceList:
        """The list with `fresh` in place of what they are a newer price of."""
        replaced = {(one.item, one.region, one.priority) for one in fresh}
        kept = [o for o in self.prices if (o.item, o.region, o.priority) not in replaced]
        ordered = sorted((*kept, *fresh), key=lambda one: (one.item, one.region, one.priority))
        return replace(self, prices=tuple(ordered))

    def write(self, path: Path | None = None) -> None:
        """Replace the file (FILE) as a whole: a reader finds the old list or the new one."""
        path = path or FILE
        document = {
            "currency": self.currency,
            "spot_share": {"value": self.spot_share, "source": self.spot_source},
            "prices": [_entry(one) for one in self.prices],
        }
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        fresh.replace(path)


def read(path: Path | None = None) -> PriceList:
    """The price list of a file (FILE); raises WrongPrices with the entry that is no price."""
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
    """One entry; every field that says where a price is from has to be there."""
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
        raise WrongPrices(f"{label}: {value!r} is no number")
    if not math.isfinite(value) or value < 0:
        raise WrongPrices(f"{label}: {value} is no price")
    return float(value)


def _entry(one: Price) -> dict[str, object]:
    given = {("price" if name == "amount" else name): value for name, value in asdict(one).items()}
    return {name: value for name, value in given.items() if name != "note"}
