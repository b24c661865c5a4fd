"""Azure's answers in the shapes of azure-rest-api-specs' examples: every input is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.drift import drift, read_ignored
from infra.preview.capture import Resource
from tests.infra.live.declared import GROUP, resource
from tests.stand_ins.arm_server import State

HERE = {"resourceGroupName": "rg-mlplat-dev"}
NETWORK = f"{GROUP}/providers/Microsoft.Network"
CASES: dict[str, tuple[Resource, str, Mapping[str, Any]]] = {
    "a storage account": (
        resource(
            "storage:StorageAccount",
            "x",
            accountName="stx",
            enableHttpsTrafficOnly=True,
            networkRuleSet={
                "defaultAction": "Deny",
                "virtualNetworkRules": [{"virtualNetworkResourceId": f"{NETWORK}/v/s"}],
                "ipRules": [{"iPAddressOrRange": "1.2.3.4"}],
            },
            encryption={
                "keySource": "Microsoft.Keyvault",
                "keyVaultProperties": {"keyName": "k", "keyVaultUri": "https://v"},
                "encryptionIdentity": {"encryptionUserAssignedIdentity": f"{GROUP}/i"},
            },
            **HERE,
        ),
        f"{GROUP}/providers/Microsoft.Storage/storageAccounts/stx",
        {
            "properties": {
                "supportsHttpsTrafficOnly": True,
                "networkAcls": {
                    "defaultAction": "Deny",
                    "virtualNetworkRules": [{"id": f"{NETWORK}/v/s", "action": "Allow"}],
                    "ipRules": [{"value": "1.2.3.4", "action": "Allow"}],
                },
                "encryption": {
                    "keySource": "Microsoft.Keyvault",
                    "keyvaultproperties": {"keyname": "k", "keyvaulturi": "https://v"},
                    "identity": {"userAssignedIdentity": f"{GROUP}/i"},
                },
            }
        },
    ),
    "a security group": (
        resource(
            "network:NetworkSecurityGroup",
            "x",
            networkSecurityGroupName="nsg",
            securityRules=[{"name": "a", "priority": 100.0, "access": "Deny"}],
            **HERE,
        ),
        f"{NETWORK}/networkSecurityGroups/nsg",
        {
            "properties": {
                "securityRules": [
                    {"name": "a", "id": "y", "properties": {"priority": 100, "access": "Deny"}}
                ]
            }
        },
    ),
    "a private endpoint": (
        resource(
            "network:PrivateEndpoint",
            "x",
            privateEndpointName="pe",
            privateLinkServiceConnections=[
                {"name": "c", "groupIds": ["blob"], "privateLinkServiceId": f"{GROUP}/a"}
            ],
            subnet={"id": f"{NETWORK}/s", "privateEndpointNetworkPolicies": "Disabled"},
            **HERE,
        ),
        f"{NETWORK}/privateEndpoints/pe",
        {
            "properties": {
                "privateLinkServiceConnections": [
                    {"name": "c", "properties": {
                        "groupIds": ["blob"], "privateLinkServiceId": f"{GROUP}/a",
                        "privateLinkServiceConnectionState": {"status": "Approved"},
                    }}
                ],
                "subnet": {"id": f"{NETWORK}/s"},
            }
        },
    ),
    "an extension of a machine": (
        resource(
            "compute:VirtualMachineExtension",
            "x",
            vmName="vm",
            vmExtensionName="sign-in",
            publisher="Microsoft.Azure.ActiveDirectory",
            type="AADSSHLoginForLinux",
            **HERE,
        ),
        f"{GROUP}/providers/Microsoft.Compute/virtualMachines/vm/extensions/sign-in",
        {
            "type": "Microsoft.Compute/virtualMachines/extensions",
            "properties": {
                "publisher": "Microsoft.Azure.ActiveDirectory", "type": "AADSSHLoginForLinux"
            },
        },
    ),
    "insights": (
        resource(
            "applicationinsights:Component",
            "x",
            resourceName="appi",
            applicationType="web",
            flowType="Bluefield",
            workspaceResourceId=f"{GROUP}/log",
            disableLocalAuth=True,
            **HERE,
        ),
        f"{GROUP}/providers/Microsoft.Insights/components/appi",
        {
            "properties": {
                "Application_Type": "web", "Flow_Type": "Bluefield", "DisableLocalAuth": True,
                "WorkspaceResourceId": f"{GROUP}/log",
            }
        },
    ),
    "an alert": (
        resource(
            "monitor:MetricAlert",
            "x",
            ruleName="alert",
            criteria={"odataType": "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria"},
            **HERE,
        ),
        f"{GROUP}/providers/Microsoft.Insights/metricAlerts/alert",
        {
            "properties": {
                "criteria": {
                    "odata.type": "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria"
                }
            }
        },
    ),
}  # fmt: skip


def changes(arm: Arm, declared: Resource) -> list[tuple[str, str]]:
    group = resource("resources:ResourceGroup", "group", resourceGroupName="rg-mlplat-dev")
    return [(one.kind, one.path) for one in drift([group, declared], arm, read_ignored())]


@pytest.mark.parametrize("case", CASES)
def test_an_answer_in_azures_shape_has_no_drift(direct: Arm, state: State, case: str) -> None:
    declared, id, reported = CASES[case]
    state.lists.clear()
    state.resources[id] = {"id": id, **reported}
    assert changes(direct, declared) == []


@pytest.mark.parametrize("case", CASES)
def others(value: Any) -> list[Any]:
    """Copies of what is reported, each with one value put to another; not of what nobody says."""
    if isinstance(value, dict):
        return [{**value, key: other} for key, one in value.items() for other in others(one)]
    if isinstance(value, list):
        return [[other] for other in others(value[0])]
    return [] if value in ("y", "Allow", "Approved") else ["another"]


@pytest.mark.parametrize("case", CASES)
def test_every_changed_value_is_found(direct: Arm, state: State, case: str) -> None:
    """Each reported value is changed in turn; the type of the resource is not an input."""
    declared, id, reported = CASES[case]
    state.lists.clear()
    tried = others(reported["properties"])
    assert tried
    for one in tried:
        state.resources[id] = {**reported, "id": id, "properties": one}
        assert {kind for kind, _ in changes(direct, declared)} == {"changed"}, one


def test_a_disabled_category_is_like_an_absent_one(direct: Arm, state: State) -> None:
    """Azure lists all categories of a storage account; an enabled one is drift."""
    declared = resource(
        "monitor:DiagnosticSetting",
        "x",
        name="to-logs",
        resourceUri=GROUP,
        metrics=[{"category": "Transaction", "enabled": True}],
        logs=[],
    )
    id = f"{GROUP}/providers/Microsoft.Insights/diagnosticSettings/to-logs"
    capacity = {"category": "Capacity", "enabled": False}
    audit = {"categoryGroup": "audit", "enabled": False}
    metrics = [{"category": "Transaction", "enabled": True, "timeGrain": None}, capacity]
    state.lists.clear()
    state.resources[id] = {"id": id, "properties": {"metrics": metrics, "logs": [audit]}}
    assert changes(direct, declared) == []
    audit["enabled"] = capacity["enabled"] = True
    assert changes(direct, declared) == [("changed", "metrics"), ("changed", "logs")]
    metrics[0]["enabled"] = capacity["enabled"] = audit["enabled"] = False
    assert changes(direct, declared) == [("changed", "metrics")]
