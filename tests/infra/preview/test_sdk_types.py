"""Inputs that the SDK's types allow, and inputs that they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from infra.preview.capture import Resource
from infra.preview.sdk_types import problems

ACCOUNT = "azure-native:storage:StorageAccount"
COMPUTE = "azure-native:machinelearningservices:Compute"
GOOD = {
    "resourceGroupName": "${ResourceGroup:group.name}",
    "kind": "StorageV2",
    "sku": {"name": "Standard_ZRS"},
    "isHnsEnabled": True,
    "networkRuleSet": {"defaultAction": "Deny", "virtualNetworkRules": []},
}
CLUSTER = {
    "resourceGroupName": "rg",
    "workspaceName": "mlw",
    "properties": {
        "computeType": "AmlCompute",
        "properties": {"vmSize": "Standard_E4ds_v4", "scaleSettings": {"maxNodeCount": 2}},
    },
}


def _problems(kind: str, inputs: dict[str, Any]) -> list[str]:
    return problems([Resource("urn", kind, "it", "", inputs)])


@pytest.mark.parametrize(("kind", "inputs"), [(ACCOUNT, GOOD), (COMPUTE, CLUSTER)])
def test_valid_inputs_pass(kind: str, inputs: dict[str, Any]) -> None:
    assert _problems(kind, inputs) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"isHNSEnabled": True}, "it.isHNSEnabled: not an input"),
        ({"kind": "Storage V2"}, "not one of"),
        ({"isHnsEnabled": "yes"}, "it.isHnsEnabled: 'yes', not bool"),
        ({"sku": "Standard_ZRS"}, "it.sku: 'Standard_ZRS', not"),
        ({"sku": {"tier": "Standard"}}, "it.sku.name: required"),
        ({"networkRuleSet": {"defaultAction": "Refuse"}}, "it.networkRuleSet.defaultAction"),
        ({"networkRuleSet": {"virtualNetworkRules": {}}}, "a mapping, not"),
        ({"tags": ["ml"]}, "it.tags: a list, not"),
        ({"networkRuleSet": {"ipRules": [{"action": "Allow"}]}}, "ipRules[0].iPAddressOrRange"),
    ],
)
def test_invalid_inputs_are_refused(changed: dict[str, Any], said: str) -> None:
    found = _problems(ACCOUNT, {**GOOD, **changed})
    assert found and any(said in one for one in found), found


def test_a_missing_required_input_is_refused() -> None:
    without = {key: value for key, value in GOOD.items() if key != "resourceGroupName"}
    assert _problems(ACCOUNT, without) == ["it.resourceGroupName: required by StorageAccountArgs"]


def test_the_discriminator_selects_the_variant() -> None:
    """`maxNodeCount` is an input of a cluster and not of a compute instance."""
    wrong = {**CLUSTER, "properties": {**CLUSTER["properties"], "computeType": "ComputeInstance"}}  # type: ignore[dict-item]
    assert any("ComputeInstancePropertiesArgs" in one for one in _problems(COMPUTE, wrong))


def test_a_nested_type_is_of_its_own_module() -> None:
    """Storage and vault both have a SkuArgs."""
    vault = {"sku": {"family": "A", "name": "premium"}, "tenantId": "t"}
    inputs = {"resourceGroupName": "rg", "properties": vault}
    assert _problems(ACCOUNT, GOOD) == []
    assert _problems("azure-native:keyvault:Vault", inputs) == []


def test_an_unknown_type_is_refused() -> None:
    (found,) = _problems("azure-native:storage:Bucket", {})
    assert "no resource" in found
