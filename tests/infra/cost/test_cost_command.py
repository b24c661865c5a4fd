"""`infra cost`: a table or JSON of every environment; a refresh that fails changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.cost import prices
from tests.infra.programs import ran


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the price list that a refresh may write."""
    path = tmp_path / "prices.json"
    path.write_bytes(prices.FILE.read_bytes())
    monkeypatch.setattr(prices, "FILE", path)
    return path


def test_every_environment_has_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """And the same as JSON."""
    code, text, _ = ran(capsys, "cost")
    json_code, out, _ = ran(capsys, "cost", "--json")
    found = json.loads(out)
    assert code == json_code == 0
    assert [one["environment"] for one in found] == ["dev", "prod", "shared", "staging"]
    for one in found:
        assert f"{one['month']['worst']:,.0f}" in text
        assert one["month"]["idle"] <= one["month"]["typical"] <= one["month"]["worst"]


def test_a_refresh_writes_azures_prices(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A size without a listed price is named and keeps its old price."""

    def answer(url: str) -> Mapping[str, Any]:
        if "Standard_E4ds_v4" not in url:
            return {"Items": []}
        return {
            "Items": [
                {
                    "retailPrice": 0.35,
                    "productName": "Virtual Machines Edsv4 Series",
                    "skuName": "E4ds v4",
                    "unitOfMeasure": "1 Hour",
                    "type": "Consumption",
                    "effectiveStartDate": "2026-01-01T00:00:00Z",
                }
            ]
        }

    monkeypatch.setattr(prices, "fetch", answer)
    code, _, err = ran(capsys, "cost", "dev", "--refresh")
    assert code == 0 and "lists no Standard_NC4as_T4_v3" in err
    fresh = prices.read(listed).find("vm/Standard_E4ds_v4", "westeurope")
    assert fresh is not None
    assert (fresh.amount, fresh.as_of, fresh.note) == (0.35, "2026-01-01", "")


def test_a_refresh_without_an_answer_leaves_the_list_alone(
    listed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1, one readable error."""

    def nothing(url: str) -> Mapping[str, Any]:
        raise prices._no_prices("the network is unreachable")

    monkeypatch.setattr(prices, "fetch", nothing)
    before = listed.read_bytes()
    code, _, err = ran(capsys, "cost", "--refresh")
    assert code == 1 and "error[no-prices]: the network is unreachable" in err
    assert listed.read_bytes() == before


def test_a_broken_price_list_is_a_readable_error(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2."""
    listed.write_text("{}")
    code, _, message = ran(capsys, "cost")
    assert code == 2
    assert "error[missing-field]: " in message and "prices.json:1: no `currency`" in message
