"""The price list: found by region and priority, refused where an entry is not a price."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.cost import prices
from infra.cost.prices import Price, PriceList, SpotShare
from ml.core.errors import UserError


def price(item: str, region: str, amount: float, priority: prices.Priority = "dedicated") -> Price:
    return Price(item, region, "hour", amount, "a source", "2026-11", priority)


LISTED = PriceList(
    "USD",
    SpotShare(0.2, "a source"),
    (price("vm/A", "eastus", 1.0), price("vm/B", "eastus", 2.0), price("vm/B", "north", 3.0)),
)


def test_every_price_of_the_repository_has_a_source() -> None:
    """Read as it is; every preset of a cluster has a price."""
    listed = prices.read()
    assert all(one.source and one.as_of and one.amount > 0 for one in listed.prices)
    for size in ("Standard_E4ds_v4", "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"):
        assert listed.find(f"vm/{size}", "westeurope") is not None


def test_a_price_of_the_region_is_preferred() -> None:
    """Another region's price is used, and named, only if there is none."""
    assert LISTED.find("vm/B", "north") == price("vm/B", "north", 3.0)
    stand_in = LISTED.find("vm/A", "north")
    assert stand_in is not None
    assert (stand_in.amount, stand_in.note) == (1.0, "as in eastus (no price is listed for north)")


def test_an_item_without_a_price_is_none() -> None:
    """Never zero."""
    assert LISTED.find("vm/C", "eastus") is None
    assert LISTED.find("vm/C", "eastus", "spot") is None


def test_a_spot_price_is_estimated_until_one_is_listed() -> None:
    """The note names the share; a listed price replaces the estimate."""
    assumed = LISTED.find("vm/A", "eastus", "spot")
    assert assumed is not None
    assert (assumed.amount, assumed.note) == (
        0.2,
        f"low priority, estimated as 20% of dedicated ({LISTED.spot_share.source})",
    )
    known = LISTED.updated([price("vm/A", "eastus", 0.3, "spot")]).find("vm/A", "eastus", "spot")
    assert known is not None
    assert (known.amount, known.note) == (0.3, "")


def test_a_newer_price_replaces_the_old_one_in_the_file(tmp_path: Path) -> None:
    """Written and read again; nothing else differs."""
    LISTED.updated([price("vm/A", "eastus", 1.5)]).write(tmp_path / "prices.json")
    found = prices.read(tmp_path / "prices.json")
    assert found.find("vm/A", "eastus") == price("vm/A", "eastus", 1.5)
    assert len(found.prices) == 3
    assert found.updated([]) == found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"price": "cheap"}, r"`prices\[0\]\.price` is 'cheap'\n  expected: a number"),
        ({"price": -1}, r"`prices\[0\]\.price` is -1\n  expected: at least 0"),
        ({"price": float("nan")}, r"`prices\[0\]\.price` is 'NaN'\n  expected: a number"),
        ({"price": True}, r"`prices\[0\]\.price` is true\n  expected: a number"),
        ({"source": ""}, r"`prices\[0\]\.source` is ''\n  expected: a text that is not empty"),
        ({"as_of": None}, r"`prices\[0\]\.as_of` is empty\n  expected: a text"),
        (
            {"priority": "cheap"},
            r"`prices\[0\]\.priority` is 'cheap'\n  expected: 'dedicated' or 'spot'",
        ),
    ],
)
def test_an_invalid_entry_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    """The message names the entry, its line and the reason."""
    path = tmp_path / "prices.json"
    LISTED.write(path)
    document = json.loads(path.read_text())
    document["prices"][0] |= change
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=said):
        prices.read(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"currency": "USD"}', '{"prices": 3}'])
def test_an_invalid_price_file_is_refused(tmp_path: Path, text: str) -> None:
    """Broken JSON, or another structure."""
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"prices\.json:1: "):
        prices.read(path)
