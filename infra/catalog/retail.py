"""Azure's public price list: the Retail Prices API, which needs no sign-in.

learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices. Rows for Windows,
cloud services (the same size at Windows' price), DevTest and reservations are skipped.
`Low Priority` in `skuName` is the price of Azure ML's low-priority nodes; `Spot` is that of virtual
machines.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from infra.catalog.prices import AZURE, Price

ADDRESS = "https://prices.azure.com/api/retail/prices"
VERSION = "2023-01-01-preview"
MOST_PAGES = 50
Get = Callable[[str], Mapping[str, Any]]


class NoPrices(RuntimeError):
    """The price list could not be read; the message is the reason."""


def fetch(url: str) -> Mapping[str, Any]:
    """One page over HTTPS; raises NoPrices without a JSON answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # https, from ADDRESS alone
            page = json.load(answer)
    except (OSError, ValueError) as error:
        raise NoPrices(str(error)) from None
    if not isinstance(page, dict):
        raise NoPrices("the answer is not an object")
    return page


def vm_prices(size: str, region: str, get: Get | None = None) -> list[Price]:
    """Dedicated and low-priority price of a VM size for an hour; empty if Azure lists none.

    Raises NoPrices for an invalid answer and for two different prices of the same date.
    """
    latest: dict[str, Price] = {}
    for row in _rows(size, region, get or fetch):
        if _another_product(row):
            continue
        priority = "spot" if "Low Priority" in str(row.get("skuName")) else "dedicated"
        amount, since = row.get("retailPrice"), str(row.get("effectiveStartDate", ""))[:10]
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount <= 0:
            raise NoPrices(f"{size} in {region}: a price of {amount!r}")
        price = Price(
            f"vm/{size}",
            region,
            "hour",
            float(amount),
            AZURE,
            since or "unknown",
            "spot" if priority == "spot" else "dedicated",
        )
        before = latest.setdefault(priority, price)
        if before.amount != price.amount:
            # The list also holds former prices: the latest start counts.
            latest[priority] = max(before, price, key=lambda row: row.as_of)
            if before.as_of == price.as_of:
                raise NoPrices(f"{size} in {region}: {before.amount} and {price.amount}")
    return list(latest.values())


def refreshed(
    sizes: Iterable[str], region: str, get: Get | None = None
) -> tuple[list[Price], list[str]]:
    """The prices of all sizes, and the sizes without one."""
    prices: list[Price] = []
    missing: list[str] = []
    for size in sizes:
        listed = vm_prices(size, region, get)
        prices.extend(listed)
        if not listed:
            missing.append(size)
    return prices, missing


def _rows(size: str, region: str, get: Get) -> Iterator[Mapping[str, Any]]:
    condition = " and ".join(
        f"{name} eq '{value}'"
        for name, value in (
            ("serviceName", "Virtual Machines"),
            ("armRegionName", region),
            ("armSkuName", size),
            ("priceType", "Consumption"),
        )
    )
    query = {"api-version": VERSION, "currencyCode": "'USD'", "$filter": condition}
    url = f"{ADDRESS}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"
    for _ in range(MOST_PAGES):
        page = get(url)
        items = page.get("Items")
        if not isinstance(items, list):
            raise NoPrices("the answer has no Items")
        yield from items
        url = page.get("NextPageLink") or ""
        if not url:
            return
        # Azure's links name the port of https.
        if not url.replace(":443/", "/", 1).startswith(f"{ADDRESS}?"):
            raise NoPrices(f"the address of the next page is {url}")
    raise NoPrices(f"more than {MOST_PAGES} pages")


def _another_product(row: Mapping[str, Any]) -> bool:
    """Whether a row is not the price of a Linux node."""
    named = f"{row.get('productName')} {row.get('skuName')}".replace(" ", "")
    if row.get("type") != "Consumption" or row.get("unitOfMeasure") != "1 Hour":
        return True
    others = ("Windows", "CloudServices", "DevTest", "Spot", "Reservation")
    return any(word in named for word in others)
