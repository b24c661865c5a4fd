"""A few declared resources, as the program registers them, and Azure's answers about them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from infra.preview.capture import Resource

SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg-mlplat-dev"
STORAGE = f"{GROUP}/providers/Microsoft.Storage/storageAccounts/stlkmlplatdev"
WORKSPACE = f"{GROUP}/providers/Microsoft.MachineLearningServices/workspaces/mlw-mlplat-dev"
IDENTITY = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/id-ws"
VAULT = f"{GROUP}/providers/Microsoft.KeyVault/vaults/kvmlplatdev"

# The registry that another stack makes.
REGISTRY = {"name": "mlplat-shared", "properties": {"regionDetails": [{"location": "West Europe"}]}}


def resource(kind: str, name: str, /, **inputs: Any) -> Resource:
    return Resource(f"urn:pulumi:dev::platform::{name}", f"azure-native:{kind}", name, "", inputs)


def resources() -> list[Resource]:
    """A group, an identity, storage with a container, a vault, a workspace and a cluster."""
    group = {"resourceGroupName": "${ResourceGroup:group.name}"}
    return [
        resource(
            "resources:ResourceGroup",
            "group",
            resourceGroupName="rg-mlplat-dev",
            location="westeurope",
            tags={"environment": "dev"},
        ),
        resource("managedidentity:UserAssignedIdentity", "ws", resourceName="id-ws", **group),
        resource(
            "storage:StorageAccount",
            "lake",
            accountName="stlkmlplatdev",
            allowSharedKeyAccess=False,
            minimumTlsVersion="TLS1_2",
            networkRuleSet={"defaultAction": "Deny", "bypass": "AzureServices"},
            sku={"name": "Standard_ZRS"},
            **group,
        ),
        resource(
            "storage:BlobContainer",
            "raw",
            accountName="${StorageAccount:lake.name}",
            containerName="raw",
            publicAccess="None",
            **group,
        ),
        resource(
            "keyvault:Vault",
            "vault",
            vaultName="kvmlplatdev",
            properties={"enablePurgeProtection": True, "softDeleteRetentionInDays": 90},
            **group,
        ),
        resource(
            "machinelearningservices:Workspace",
            "workspace",
            workspaceName="mlw-mlplat-dev",
            publicNetworkAccess="Disabled",
            storageAccount="${StorageAccount:lake.id}",
            identity={
                "type": "UserAssigned",
                "userAssignedIdentities": ["${UserAssignedIdentity:ws.id}"],
            },
            **group,
        ),
        resource(
            "machinelearningservices:Compute",
            "cpu",
            workspaceName="${Workspace:workspace.name}",
            computeName="cpu-cluster",
            properties={
                "computeType": "AmlCompute",
                "disableLocalAuth": True,
                "properties": {
                    "vmSize": "Standard_E4ds_v4",
                    "scaleSettings": {
                        "minNodeCount": 0.0,
                        "maxNodeCount": 4.0,
                        "nodeIdleTimeBeforeScaleDown": "PT15M",
                    },
                },
            },
            **group,
        ),
    ]


_REPORTED: dict[str, Any] = {
    GROUP: {"location": "West Europe", "tags": {"environment": "dev"}, "properties": {}},
    IDENTITY: {"properties": {"principalId": "x"}},
    STORAGE: {
        "sku": {"name": "Standard_ZRS", "tier": "Standard"},
        "properties": {
            "allowSharedKeyAccess": False,
            "minimumTlsVersion": "TLS1_2",
            "networkAcls": {"defaultAction": "deny", "bypass": "AzureServices", "ipRules": []},
            "provisioningState": "Succeeded",
        },
    },
    f"{STORAGE}/blobServices/default/containers/raw": {"properties": {"publicAccess": "None"}},
    VAULT: {"properties": {"enablePurgeProtection": True, "softDeleteRetentionInDays": 90, "x": 1}},
    WORKSPACE: {
        "identity": {
            "type": "UserAssigned",
            "userAssignedIdentities": {IDENTITY.upper(): {"principalId": "x"}},
        },
        "properties": {"publicNetworkAccess": "Disabled", "storageAccount": STORAGE.lower()},
    },
    f"{WORKSPACE}/computes/cpu-cluster": {
        "properties": {
            "computeType": "AmlCompute",
            "disableLocalAuth": True,
            "properties": {
                "vmSize": "STANDARD_E4DS_V4",
                "scaleSettings": {
                    "minNodeCount": 0,
                    "maxNodeCount": 4,
                    "nodeIdleTimeBeforeScaleDown": "PT900S",
                },
                "nodeStateCounts": {"idleNodeCount": 0},
            },
        }
    },
}


def reported() -> dict[str, Any]:
    """The same as Azure gives it back: nested, filled up, in another case, with a name and id."""
    return {
        id: {"id": id, "name": id.rpartition("/")[2], **deepcopy(body)}
        for id, body in _REPORTED.items()
    }
