"""The public price list, against recorded answers in the form that Azure documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.cost.prices import refreshed, vm_prices
from ml.core.errors import UserError

SIZE = "Standard_NC4as_T4_v3"


def row(price: object, sku: str = "NC4as T4 v3", **others: object) -> dict[str, object]:
    return {
        "currencyCode": "USD",
        "retailPrice": price,
        "armRegionName": "westeurope",
        "effectiveStartDate": "2024-02-01T00:00:00Z",
        "productName": "Virtual Machines NCasT4_v3 Series",
        "skuName": sku,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": SIZE,
        **others,
    }


FIRST = [
    row(0.658),
    row(0.842, productName="Virtual Machines NCasT4_v3 Series Windows"),
    row(0.2, "NC4as T4 v3 Spot"),
    row(2700.0, type="Reservation"),
    row(
        0.843,
        productName="NCasT4_v3 Series CloudServices",
        effectiveStartDate="2026-01-01T00:00:00Z",
    ),
    row(0.843, productName="NCasT4_v3 Series Cloud Services"),
]
SECOND = [
    row(0.132, "NC4as T4 v3 Low Priority"),
    row(0.5, type="DevTestConsumption"),
    row(0.6, effectiveStartDate="2021-01-01T00:00:00Z"),
]
# Azure names the port, which says no more than https does.
NEXT = "https://prices.azure.com:443/api/retail/prices?$skip=100"


class Recorded:
    """Answers page by page; keeps what it was asked."""

    def __init__(self, *pages: Mapping[str, Any]) -> None:
        self.pages = list(pages)
        self.asked: list[str] = []

    def __call__(self, url: str) -> Mapping[str, Any]:
        self.asked.append(url)
        return self.pages.pop(0)


def test_dedicated_and_low_priority_are_found_over_all_pages() -> None:
    """Windows, spot VMs, cloud services, reservations, DevTest and former prices are skipped."""
    get = Recorded({"Items": FIRST, "NextPageLink": NEXT}, {"Items": SECOND, "NextPageLink": None})
    found = {one.priority: one for one in vm_prices(SIZE, "westeurope", get)}
    assert {name: one.amount for name, one in found.items()} == {"dedicated": 0.658, "spot": 0.132}
    assert found["dedicated"].as_of == "2024-02-01"
    assert get.asked[1] == NEXT
    asked = parse_qs(urlsplit(get.asked[0]).query)
    assert asked["currencyCode"] == ["'USD'"]
    assert asked["$filter"] == [
        "serviceName eq 'Virtual Machines' and armRegionName eq 'westeurope'"
        f" and armSkuName eq '{SIZE}' and priceType eq 'Consumption'"
    ]


def test_the_spot_meter_counts_without_a_low_priority_one() -> None:
    """Azure retires low priority; a Windows row of Spot is still another product."""
    rows = [row(0.5), row(0.2, "NC4as T4 v3 Spot"), row(0.3, "Spot", productName="Windows")]
    found = {one.priority: one for one in vm_prices(SIZE, "westeurope", Recorded({"Items": rows}))}
    assert {name: one.amount for name, one in found.items()} == {"dedicated": 0.5, "spot": 0.2}


def test_a_size_that_azure_does_not_list_is_named() -> None:
    """An empty answer is not a price."""
    get = Recorded({"Items": FIRST}, {"Items": []})
    prices, missing = refreshed([SIZE, "Standard_Gone"], "westeurope", get)
    assert {one.item for one in prices} == {f"vm/{SIZE}"}
    assert missing == ["Standard_Gone"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"Error": "too many requests"}, "no Items"),
        ({"Items": [row("free")]}, "a price of 'free'"),
        ({"Items": [row(0.0)]}, "a price of 0.0"),
        ({"Items": [row(0.658), row(0.7)]}, "0.658 and 0.7"),
        ({"Items": [], "NextPageLink": "https://example.com/?x"}, "next page"),
        ({"Items": [], "NextPageLink": NEXT.replace("443", "8443")}, "next page"),
        ({"Items": [], "NextPageLink": NEXT.replace("https", "http")}, "next page"),
        ({"Items": [], "NextPageLink": NEXT.replace("://", "://a@")}, "next page"),
        ({"Items": [], "NextPageLink": NEXT}, "more than 50 pages"),
    ],
)
def test_an_answer_that_cannot_be_trusted_is_refused(page: dict[str, Any], said: str) -> None:
    """No list, no number, two prices for one item, another host, endless pages."""
    with pytest.raises(UserError, match=said):
        vm_prices(SIZE, "westeurope", Recorded(*([page] * 50)))
