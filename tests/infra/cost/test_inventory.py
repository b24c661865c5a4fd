"""The estimate counts the same items as the program declares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.cost.estimate import estimate, inventory
from infra.cost.prices import read
from infra.preview.capture import Resource
from infra.preview.inventory import counted
from infra.settings.loader import load
from tests.infra.programs import LANDING_ZONE, SHARED, SPOKE, changed, own

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stack", ["dev", "prod", "shared", "staging"])
def test_every_stack(stack: str) -> None:
    assert inventory(load(stack)) == counted(own()[stack])


@pytest.mark.parametrize(
    "settings",
    [
        {"network": {"isolation": "own"}, "asset_registry": {"mode": "none"}},
        {"storage": {"nfs_share_gib": 100}, "endpoints": []},
        {"asset_registry": SHARED},
        {"asset_registry": SHARED, "network": {"isolation": "own"}},
        {"asset_registry": SHARED, "exposure": "starter", "network": {}},
        LANDING_ZONE,
        {"network": {"isolation": "own", "peer": f"{SPOKE}-hub", "hub_firewall": "10.0.0.4"}},
        {"feature_store": {"mode": "create"}},
        {"feature_store": {"mode": "create", "redis": "Balanced_B1"}},
        {
            "feature_store": {"mode": "create", "redis": "Balanced_B1"},
            "network": {"isolation": "own"},
        },
        {
            "workstations": [
                {
                    "name": "bob",
                    "person": "6f8d2c1e-0000-4000-8000-000000000002",
                    "kind": "data-science-vm",
                    "ssh_key": "ssh-ed25519 AAAA bob",
                }
            ]
        },
    ],
)
def test_every_option(settings: dict[str, Any], tmp_path: Path) -> None:
    found = changed(tmp_path, **settings)
    assert inventory(load("test", tmp_path / "infra")) == counted(found)


def test_what_only_the_program_declares_has_a_price() -> None:
    """More pieces of a kind, and a machine for as long as a month is."""
    stack, settings = own()["dev"], load("dev")
    inner = {"vmSize": "Standard_E4ds_v4", "scaleSettings": {"maxNodeCount": 3}}
    more = (
        ("network:NatGateway", {}),
        ("machinelearningservices:Compute", {"properties": {"properties": inner}}),
    )
    added = [Resource(f"u::{kind}", f"azure-native:{kind}", "it", "", of) for kind, of in more]
    counts = counted(replace(stack, resources=(*stack.resources, *added)))
    before = {line.item: line for line in estimate(settings, read(), counted(stack)).lines}
    after = {line.item: line for line in estimate(settings, read(), counts).lines}
    assert after.keys() - before.keys() == {"NAT gateway", "machine it"}
    machine = after["machine it"]
    assert machine.price and machine.month.typical == 3 * 730 * machine.price.amount
