"""The price list: the price of an item in a region, with its source and date.

An item is `vm/<size>`, `private-endpoint`, `firewall/<sku>` and so on. An item without a price is
None, never zero, so that an estimate can name it.

Prices of VMs are refreshed from the Retail Prices API, which needs no sign-in (learn.microsoft.com/
rest/api/cost-management/retail-prices/azure-retail-prices). Rows for Windows, cloud services (the
same size at Windows' price), DevTest and reservations are skipped. Rows with `Low Priority` in
`skuName` price Azure ML's low-priority nodes; a size without such a row uses `Spot`.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from ml.core import documents, files, settings
from ml.core.errors import Exit, Problem, UserError

FILE = Path(__file__).with_name("prices.json")
# The `source` of prices fetched from Azure; all others are copied from third parties.
AZURE = "Azure Retail Prices API"
# An item without a price in a region gets this region's price, with a note.
DEFAULT_REGION = "eastus"
ADDRESS = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
MOST_PAGES = 50
Priority = Literal["dedicated", "spot"]
Get = Callable[[str], Mapping[str, Any]]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Price:
    """The price of an item in a region."""

    __pydantic_config__ = settings.CLOSED

    item: Text
    region: Text
    unit: Text  # such as `hour` or `GB-month`
    amount: Annotated[float, Field(ge=0, alias="price")]  # for one unit, in the list's currency
    source: Text
    as_of: Text  # a date, or words such as `2025 or before`
    priority: Priority = "dedicated"
    note: str = ""  # why it is inexact; not in the file, `PriceList.find` adds it


@dataclass(frozen=True)
class SpotShare:
    """The fraction of the dedicated price that estimates an unlisted spot price."""

    __pydantic_config__ = settings.CLOSED

    value: Annotated[float, Field(ge=0)]
    source: Text


@dataclass(frozen=True)
class PriceList:
    """Prices by item, region and priority."""

    __pydantic_config__ = settings.CLOSED

    currency: Text
    spot_share: SpotShare
    prices: tuple[Price, ...]

    def find(self, item: str, region: str, priority: Priority = "dedicated") -> Price | None:
        """Return the price or None; `note` marks another region's and an estimated spot price."""
        listed = {
            price.region: price
            for price in self.prices
            if (price.item, price.priority) == (item, priority)
        }
        if region in listed:
            return listed[region]
        if priority == "spot" and (dedicated := self.find(item, region)):
            share = self.spot_share
            note = f"low priority, estimated as {share.value:.0%} of dedicated ({share.source})"
            note = "; ".join(filter(None, (dedicated.note, note)))
            amount = dedicated.amount * share.value
            return replace(dedicated, amount=amount, priority="spot", note=note)
        if DEFAULT_REGION in listed:
            return replace(
                listed[DEFAULT_REGION],
                note=f"as in {DEFAULT_REGION} (no price is listed for {region})",
            )
        return None

    def updated(self, fresh: Sequence[Price]) -> PriceList:
        """Return the list, with `fresh` replacing older prices of the same items."""
        replaced = {(price.item, price.region, price.priority) for price in fresh}
        others = [o for o in self.prices if (o.item, o.region, o.priority) not in replaced]
        ordered = sorted(
            (*others, *fresh), key=lambda price: (price.item, price.region, price.priority)
        )
        return replace(self, prices=tuple(ordered))

    def write(self, path: Path | None = None) -> None:
        """Write the list to `path` (default: FILE) atomically."""
        without = {"prices": {"__all__": {"note"}}}
        document = TypeAdapter(PriceList).dump_python(self, by_alias=True, exclude=without)
        # One price per line keeps diffs readable.
        prices = ",\n".join(map(json.dumps, document.pop("prices")))
        text = f'{json.dumps(document)[:-1]},\n"prices": [\n{prices}\n]}}\n'
        files.replace(path or FILE, text)


def read(path: Path | None = None) -> PriceList:
    """Read the price list from `path` (default: FILE); raise UserError with every invalid entry."""
    path = path or FILE
    return settings.read(PriceList, documents.read(path))


def _no_prices(reason: str) -> UserError:
    hint = "run it without --refresh to use the list in the repository"
    problem = Problem("no-prices", reason, "a response of the price API", hint)
    return UserError(problem, exit_code=Exit.RUN_FAILED)


def fetch(url: str) -> Mapping[str, Any]:
    """Fetch one page over HTTPS; raise UserError if the response is not a JSON object."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # always ADDRESS, over https
            page = json.load(answer)
    except (OSError, ValueError) as error:
        raise _no_prices(str(error)) from None
    if not isinstance(page, dict):
        raise _no_prices("the response is not an object")
    return page


def vm_prices(size: str, region: str, get: Get | None = None) -> list[Price]:
    """Return the hourly prices of a VM size, dedicated and low-priority; [] if Azure lists none.

    Raise UserError for an invalid response and for two different prices of the same date.
    """
    latest: dict[str, Price] = {}
    rows = [row for row in _rows(size, region, get or fetch) if not _another_product(row)]
    if any("Low Priority" in str(row.get("skuName")) for row in rows):
        rows = [row for row in rows if "Spot" not in str(row.get("skuName"))]
    for row in rows:
        is_spot = re.search("Low Priority|Spot", str(row.get("skuName")))
        priority: Priority = "spot" if is_spot else "dedicated"
        amount, since = row.get("retailPrice"), str(row.get("effectiveStartDate", ""))[:10]
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount <= 0:
            raise _no_prices(f"{size} in {region}: a price of {amount!r}")
        date = since or "unknown"
        price = Price(f"vm/{size}", region, "hour", float(amount), AZURE, date, priority)
        before = latest.setdefault(priority, price)
        if before.amount != price.amount:
            # Azure also lists former prices: use the one with the latest start date.
            latest[priority] = max(before, price, key=lambda row: row.as_of)
            if before.as_of == price.as_of:
                raise _no_prices(f"{size} in {region}: {before.amount} and {price.amount}")
    return list(latest.values())


def refreshed(
    sizes: Iterable[str], region: str, get: Get | None = None
) -> tuple[list[Price], list[str]]:
    """Fetch the prices of all sizes; return them and the sizes that have none."""
    listed = {size: vm_prices(size, region, get) for size in sizes}
    prices = [price for of_size in listed.values() for price in of_size]
    return prices, [size for size, of_size in listed.items() if not of_size]


def _rows(size: str, region: str, get: Get) -> Iterator[Mapping[str, Any]]:
    node = f"armRegionName eq '{region}' and armSkuName eq '{size}'"
    condition = f"serviceName eq 'Virtual Machines' and {node} and priceType eq 'Consumption'"
    query = {"api-version": VERSION, "currencyCode": "'USD'", "$filter": condition}
    url = f"{ADDRESS}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"
    for _ in range(MOST_PAGES):
        page = get(url)
        items = page.get("Items")
        if not isinstance(items, list):
            raise _no_prices("the response has no Items")
        yield from items
        url = page.get("NextPageLink") or ""
        if not url:
            return
        # Azure's links contain the port `:443`.
        if not url.replace(":443/", "/", 1).startswith(f"{ADDRESS}?"):
            raise _no_prices(f"the address of the next page is {url}")
    raise _no_prices(f"more than {MOST_PAGES} pages")


def _another_product(row: Mapping[str, Any]) -> bool:
    """Return whether a row is not the price of a Linux node."""
    named = f"{row.get('productName')} {row.get('skuName')}".replace(" ", "")
    if row.get("type") != "Consumption" or row.get("unitOfMeasure") != "1 Hour":
        return True
    others = ("Windows", "CloudServices", "DevTest", "Reservation")
    return any(word in named for word in others)
