"""The estimate counts the same items as the program declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.cost.estimate import REQUIRED_ENDPOINTS, Inventory, inventory
from infra.preview.capture import Capture
from infra.settings.loader import load
from tests.infra.programs import LANDING_ZONE, SHARED, SPOKE, changed, own

pytestmark = pytest.mark.slow


def _declared(found: Capture) -> Inventory:
    counts: dict[str, int] = {}
    for one in found.provided:
        counts[one.kind] = counts.get(one.kind, 0) + 1
    workspace = next(
        (one.inputs for one in found.provided if one.inputs.get("kind") == "Default"),
        {},
    )
    rules = (workspace.get("managedNetwork") or {}).get("outboundRules") or {}
    ours = sum(rule["type"] == "PrivateEndpoint" for rule in rules.values())
    return Inventory(
        endpoints=counts.get("network:PrivateEndpoint", 0),
        outbound=ours + REQUIRED_ENDPOINTS * (workspace["publicNetworkAccess"] == "Disabled")
        if rules
        else 0,
        zones=counts.get("privatedns:PrivateZone", 0),
        accounts=counts.get("security:DefenderForStorage", 0),
        alerts=counts.get("monitor:MetricAlert", 0),
        registries=counts.get("containerregistry:Registry", 0)
        + counts.get("machinelearningservices:Registry", 0),
        gateways=counts.get("network:NatGateway", 0),
    )


@pytest.mark.parametrize("stack", ["dev", "prod", "shared", "staging"])
def test_every_stack(stack: str) -> None:
    assert inventory(load(stack)) == _declared(own()[stack])


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
    assert inventory(load("test", tmp_path / "infra")) == _declared(found)
