"""Every resource of the program has an address and is compared with Azure's answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from infra.live.addresses import Addresses, own_names
from infra.live.arm import Arm
from infra.live.drift import drift, read_ignored
from infra.preview.capture import Resource
from infra.settings.loader import load
from tests.infra.programs import capture
from tests.stand_ins import arm_server
from tests.stand_ins.arm_server import SignedIn, State

# As azure-rest-api-specs has them.
OTHER_NAMES = {
    "storage:StorageAccount": {
        "enableHttpsTrafficOnly": "supportsHttpsTrafficOnly",
        "networkRuleSet": "networkAcls",
        "encryptionIdentity": "identity",
        "encryptionUserAssignedIdentity": "userAssignedIdentity",
    },
    "applicationinsights:Component": {
        "applicationType": "Application_Type",
        "flowType": "Flow_Type",
        "requestSource": "Request_Source",
        "workspaceResourceId": "WorkspaceResourceId",
        "disableLocalAuth": "DisableLocalAuth",
    },
}
ENVELOPED = {
    "ipConfigurations",
    "privateDnsZoneConfigs",
    "privateLinkServiceConnections",
    "securityRules",
    "subnets",
}


def as_azure_has_it(value: Any, addresses: Addresses) -> Any:
    """References filled in, those that only Azure knows with something of its own."""
    if isinstance(value, dict):
        return {key: as_azure_has_it(one, addresses) for key, one in value.items()}
    if isinstance(value, list):
        return [as_azure_has_it(one, addresses) for one in value]
    if not isinstance(value, str):
        return value
    known = re.sub(r"\$\{[^}]+\.(?!id\}|name\})\w+\}", "azures-own", value)
    return addresses.resolved(known)


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_an_environment_as_declared_has_no_drift(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every resource is read; a deleted one is missing."""
    subscription = load(stack).subscription
    declared = capture(stack).resources
    addresses = Addresses(declared, subscription)
    state = State()
    for one in declared:
        if one.custom:
            place = addresses.place(one)
            inputs = {k: v for k, v in one.inputs.items() if k not in own_names(one.kind)}
            state.resources[place.id] = reported(
                place.id, one.kind, as_azure_has_it(inputs, addresses)
            )
    with arm_server.running(state, tmp_path) as (address, certificate):
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        arm = Arm(SignedIn(), subscription, address)
        assert list(drift(declared, arm, read_ignored())) == []
        asked = {path.lower() for _, path, _ in state.asked}
        assert {id.lower() for id in state.resources} <= asked
        gone = places(declared, addresses, "storage:StorageAccount")
        for id in gone:
            del state.resources[id]
        assert {one.id for one in drift(declared, arm, read_ignored())} == set(gone)


def places(declared: tuple[Resource, ...], addresses: Addresses, kind: str) -> list[str]:
    return [addresses.place(one).id for one in declared if one.kind == kind]


def reported(id: str, kind: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Azure's nesting and names: what the SDK has flat is in `properties`, that of parts too."""
    top = {"location", "tags", "sku", "identity", "kind", "properties", "zones"}
    outer = {key: one for key, one in inputs.items() if key in top}
    inner = within(kind, {key: one for key, one in inputs.items() if key not in top})
    properties = {**outer.get("properties", {}), **inner}
    return {"id": id, "type": "Microsoft.X/y", "name": "z", **outer, "properties": properties}


def within(kind: str, value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        named = OTHER_NAMES.get(kind, {})
        if key == "subnet":  # where an endpoint is; Azure does not repeat what that subnet is like
            return {"id": value["id"]}
        return {named.get(name, name): within(kind, one, name) for name, one in value.items()}
    if isinstance(value, list):
        items = [within(kind, one) for one in value]
        if key in ENVELOPED:
            return [{"name": one.pop("name"), "properties": one} for one in items]
        return items
    return value
