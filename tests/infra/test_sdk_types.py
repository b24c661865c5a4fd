"""infra.preview.sdk_types: what the SDK's types allow, and what they do not."""

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
def test_sound_inputs_pass(kind: str, inputs: dict[str, Any]) -> None:
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
def test_what_the_types_refuse(changed: dict[str, Any], said: str) -> None:
    found = _problems(ACCOUNT, {**GOOD, **changed})
    assert found and any(said in one for one in found), found


def test_a_required_input_is_missed() -> None:
    without = {key: value for key, value in GOOD.items() if key != "resourceGroupName"}
    assert _problems(ACCOUNT, without) == ["it.resourceGroupName: required by StorageAccountArgs"]


def test_the_variant_is_the_one_that_its_discriminator_names() -> None:
    """`maxNodeCount` belongs to a cluster; of a compute instance it is not an input."""
    wrong = {**CLUSTER, "properties": {**CLUSTER["properties"], "computeType": "ComputeInstance"}}  # type: ignore[dict-item]
    assert any("ComputeInstancePropertiesArgs" in one for one in _problems(COMPUTE, wrong))


def test_a_nested_type_is_that_of_its_own_module() -> None:
    """Storage and vault both have a SkuArgs."""
    vault = {"sku": {"family": "A", "name": "premium"}, "tenantId": "t"}
    inputs = {"resourceGroupName": "rg", "properties": vault}
    assert _problems(ACCOUNT, GOOD) == []
    assert _problems("azure-native:keyvault:Vault", inputs) == []


def test_a_type_that_the_sdk_does_not_have() -> None:
    (found,) = _problems("azure-native:storage:Bucket", {})
    assert "no resource" in found
