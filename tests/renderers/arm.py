"""A capture as an ARM template, so that tools which read templates can judge it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.preview.capture import Capture, Resource

# kind → ARM type, API version, and the inputs that its name is made of, outermost first.
TYPES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "storage:StorageAccount": ("Microsoft.Storage/storageAccounts", "2024-01-01", ("accountName",)),
    "storage:BlobContainer": (
        "Microsoft.Storage/storageAccounts/blobServices/containers",
        "2024-01-01",
        ("accountName", "=default", "containerName"),
    ),
    "storage:BlobServiceProperties": (
        "Microsoft.Storage/storageAccounts/blobServices",
        "2024-01-01",
        ("accountName", "blobServicesName"),
    ),
    "keyvault:Vault": ("Microsoft.KeyVault/vaults", "2024-11-01", ("vaultName",)),
    "keyvault:Key": ("Microsoft.KeyVault/vaults/keys", "2024-11-01", ("vaultName", "keyName")),
    "containerregistry:Registry": (
        "Microsoft.ContainerRegistry/registries",
        "2023-01-01-preview",
        ("registryName",),
    ),
    "machinelearningservices:Workspace": (
        "Microsoft.MachineLearningServices/workspaces",
        "2025-12-01",
        ("workspaceName",),
    ),
    "machinelearningservices:Compute": (
        "Microsoft.MachineLearningServices/workspaces/computes",
        "2025-12-01",
        ("workspaceName", "computeName"),
    ),
    "machinelearningservices:Datastore": (
        "Microsoft.MachineLearningServices/workspaces/datastores",
        "2025-12-01",
        ("workspaceName", "name"),
    ),
    "machinelearningservices:OnlineEndpoint": (
        "Microsoft.MachineLearningServices/workspaces/onlineEndpoints",
        "2025-12-01",
        ("workspaceName", "endpointName"),
    ),
    "machinelearningservices:Registry": (
        "Microsoft.MachineLearningServices/registries",
        "2025-12-01",
        ("registryName",),
    ),
    "network:VirtualNetwork": (
        "Microsoft.Network/virtualNetworks",
        "2024-05-01",
        ("virtualNetworkName",),
    ),
    "network:NetworkSecurityGroup": (
        "Microsoft.Network/networkSecurityGroups",
        "2024-05-01",
        ("networkSecurityGroupName",),
    ),
    "network:PrivateEndpoint": (
        "Microsoft.Network/privateEndpoints",
        "2024-05-01",
        ("privateEndpointName",),
    ),
    "operationalinsights:Workspace": (
        "Microsoft.OperationalInsights/workspaces",
        "2023-09-01",
        ("workspaceName",),
    ),
    "applicationinsights:Component": (
        "Microsoft.Insights/components",
        "2020-02-02",
        ("resourceName",),
    ),
    "managedidentity:UserAssignedIdentity": (
        "Microsoft.ManagedIdentity/userAssignedIdentities",
        "2023-01-31",
        ("resourceName",),
    ),
}
TOP = frozenset({"location", "tags", "sku", "kind", "identity", "zones"})
# Where the provider's name of an input is not ARM's.
RENAMED = {
    "Microsoft.Storage/storageAccounts": {
        "enableHttpsTrafficOnly": "supportsHttpsTrafficOnly",
        "networkRuleSet": "networkAcls",
    }
}
# Lists whose members have `properties` of their own in ARM and are flat in the provider.
ENVELOPED = frozenset({"subnets", "securityRules", "privateLinkServiceConnections"})
OUTSIDE = frozenset({"name", "id", "type", "tags", "location"})


def template(capture: Capture) -> dict[str, Any]:
    """The template; kinds that ARM templates declare otherwise (rights, budgets) are left out."""
    schema = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
    return {
        "$schema": schema,
        "contentVersion": "1.0.0.0",
        "resources": [_resource(one) for one in capture.provided if one.kind in TYPES],
    }


def _resource(resource: Resource) -> dict[str, Any]:
    kind, version, naming = TYPES[resource.kind]
    inputs = {key: one for key, one in resource.inputs.items() if key != "resourceGroupName"}
    words = [one[1:] if one.startswith("=") else str(inputs.pop(one)) for one in naming]
    found: dict[str, Any] = {"type": kind, "apiVersion": version, "name": "/".join(words)}
    properties = dict(inputs.pop("properties", {}))
    identity = inputs.get("identity")
    if isinstance(identity, dict) and isinstance(identity.get("userAssignedIdentities"), list):
        members = {one: {} for one in identity["userAssignedIdentities"]}
        inputs["identity"] = {**identity, "userAssignedIdentities": members}
    renamed = RENAMED.get(kind, {})
    for key, value in inputs.items():
        if key in TOP:
            found[key] = value
        else:
            properties[renamed.get(key, key)] = _enveloped(key, value)
    return {**found, "properties": properties}


def _enveloped(key: str, value: Any) -> Any:
    if key not in ENVELOPED or not isinstance(value, list):
        return value
    return [
        {
            **{name: one for name, one in member.items() if name in OUTSIDE},
            "properties": {
                name: _enveloped(name, one) for name, one in member.items() if name not in OUTSIDE
            },
        }
        for member in value
    ]
