"""Azure resource ids of declared resources, and the API version to read each with.

The versions are those of the pinned provider's SDK; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from infra.preview.capture import Resource

_RG = "/subscriptions/{subscription}/resourceGroups/{resourceGroupName}"
_ML = f"{_RG}/providers/Microsoft.MachineLearningServices"
_WORKSPACE = f"{_ML}/workspaces/{{workspaceName}}"
_REDIS = f"{_RG}/providers/Microsoft.Cache/redisEnterprise/{{clusterName}}"
_CONNECTION = f"{_WORKSPACE}/connections/{{connectionName}}"
_USERS = f"{_REDIS}/databases/{{databaseName}}/accessPolicyAssignments"
_STORAGE = f"{_RG}/providers/Microsoft.Storage/storageAccounts/{{accountName}}"
_VAULT = f"{_RG}/providers/Microsoft.KeyVault/vaults/{{vaultName}}"
_VM = f"{_RG}/providers/Microsoft.Compute/virtualMachines/{{vmName}}"
_NET = f"{_RG}/providers/Microsoft.Network"
_ENDPOINT = f"{_NET}/privateEndpoints/{{privateEndpointName}}"
_ZONE = f"{_NET}/privateDnsZones/{{privateZoneName}}"
_INSIGHTS = f"{_RG}/providers/Microsoft.Insights"
_SCOPE = f"{_INSIGHTS}/privateLinkScopes/{{scopeName}}"
_LOGS = f"{_RG}/providers/Microsoft.OperationalInsights"
_REGISTRY = f"{_RG}/providers/Microsoft.ContainerRegistry/registries/{{registryName}}"
_IDENTITY = f"{_RG}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{{resourceName}}"
_CREDENTIAL = "federatedIdentityCredentials/{federatedIdentityCredentialResourceName}"
_AUTHORIZATION = "{scope}/providers/Microsoft.Authorization"
_DIAGNOSTICS = "{resourceUri}/providers/Microsoft.Insights/diagnosticSettings"
_DEFENDER = "{resourceId}/providers/Microsoft.Security/defenderForStorageSettings"

# API version → kind → id with placeholders for inputs; the last one is the resource's own name.
_BY_VERSION: Mapping[str, Mapping[str, str]] = {
    "2018-03-01": {"monitor:MetricAlert": f"{_INSIGHTS}/metricAlerts/{{ruleName}}"},
    "2020-02-02": {"applicationinsights:Component": f"{_INSIGHTS}/components/{{resourceName}}"},
    "2020-05-01": {"authorization:ManagementLockByScope": f"{_AUTHORIZATION}/locks/{{lockName}}"},
    "2021-05-01-preview": {"monitor:DiagnosticSetting": f"{_DIAGNOSTICS}/{{name}}"},
    "2022-04-01": {
        "authorization:RoleAssignment": f"{_AUTHORIZATION}/roleAssignments/{{roleAssignmentName}}"
    },
    "2023-01-01-preview": {"containerregistry:Registry": _REGISTRY},
    "2023-01-31": {
        "managedidentity:UserAssignedIdentity": _IDENTITY,
        "managedidentity:FederatedIdentityCredential": f"{_IDENTITY}/{_CREDENTIAL}",
    },
    "2023-09-01": {"operationalinsights:Workspace": f"{_LOGS}/workspaces/{{workspaceName}}"},
    "2023-06-01-preview": {
        "monitor:PrivateLinkScope": _SCOPE,
        "monitor:PrivateLinkScopedResource": f"{_SCOPE}/scopedResources/{{name}}",
    },
    "2024-01-01": {
        "storage:BlobContainer": f"{_STORAGE}/blobServices/default/containers/{{containerName}}",
        "storage:BlobServiceProperties": f"{_STORAGE}/blobServices/{{blobServicesName}}",
        "storage:FileShare": f"{_STORAGE}/fileServices/default/shares/{{shareName}}",
        "storage:FileServiceProperties": f"{_STORAGE}/fileServices/{{fileServicesName}}",
        "storage:ManagementPolicy": f"{_STORAGE}/managementPolicies/{{managementPolicyName}}",
        "storage:StorageAccount": _STORAGE,
    },
    "2024-03-01": {"resources:ResourceGroup": _RG},
    "2024-05-01": {
        "network:NatGateway": f"{_NET}/natGateways/{{natGatewayName}}",
        "network:PublicIPAddress": f"{_NET}/publicIPAddresses/{{publicIpAddressName}}",
        "network:NetworkInterface": f"{_NET}/networkInterfaces/{{networkInterfaceName}}",
        "network:NetworkSecurityGroup": (
            f"{_NET}/networkSecurityGroups/{{networkSecurityGroupName}}"
        ),
        "network:PrivateDnsZoneGroup": (
            f"{_ENDPOINT}/privateDnsZoneGroups/{{privateDnsZoneGroupName}}"
        ),
        "network:PrivateEndpoint": _ENDPOINT,
        "network:RouteTable": f"{_NET}/routeTables/{{routeTableName}}",
        "network:VirtualNetwork": f"{_NET}/virtualNetworks/{{virtualNetworkName}}",
    },
    "2024-06-01": {
        "privatedns:PrivateZone": _ZONE,
        "privatedns:VirtualNetworkLink": f"{_ZONE}/virtualNetworkLinks/{{virtualNetworkLinkName}}",
    },
    "2024-08-01": {
        "consumption:Budget": "{scope}/providers/Microsoft.Consumption/budgets/{budgetName}"
    },
    "2024-10-01-preview": {
        "monitor:ActionGroup": f"{_INSIGHTS}/actionGroups/{{actionGroupName}}",
        "security:DefenderForStorage": f"{_DEFENDER}/{{settingName}}",
    },
    "2024-11-01": {
        "compute:VirtualMachine": _VM,
        "compute:VirtualMachineExtension": f"{_VM}/extensions/{{vmExtensionName}}",
        "keyvault:Vault": _VAULT,
        "keyvault:Key": f"{_VAULT}/keys/{{keyName}}",
    },
    "2025-07-01": {
        "redisenterprise:RedisEnterprise": _REDIS,
        "redisenterprise:Database": f"{_REDIS}/databases/{{databaseName}}",
        "redisenterprise:AccessPolicyAssignment": f"{_USERS}/{{accessPolicyAssignmentName}}",
    },
    "2025-12-01": {
        "machinelearningservices:Compute": f"{_WORKSPACE}/computes/{{computeName}}",
        "machinelearningservices:Datastore": f"{_WORKSPACE}/datastores/{{name}}",
        "machinelearningservices:OnlineEndpoint": f"{_WORKSPACE}/onlineEndpoints/{{endpointName}}",
        "machinelearningservices:Registry": f"{_ML}/registries/{{registryName}}",
        "machinelearningservices:Workspace": _WORKSPACE,
        "machinelearningservices:WorkspaceConnection": _CONNECTION,
    },
}
# Kind → the template of its id, and its API version.
PLACES: Mapping[str, tuple[str, str]] = {
    kind: (id, version) for version, ids in _BY_VERSION.items() for kind, id in ids.items()
}
_REFERENCE = re.compile(r"\$\{(?P<type>\w+):(?P<name>[^}]+)\.(?P<output>\w+)\}")


class Unplaced(LookupError):
    """A resource id is unknown: the kind is not in PLACES, or it refers to an unknown output."""


class Place(NamedTuple):
    """A resource id and the API version to read it with."""

    id: str
    version: str


class Addresses:
    """The resource ids and API versions of all resources that a program declares."""

    def __init__(self, resources: Iterable[Resource], subscription: str) -> None:
        self._subscription = subscription
        self._declared = {
            (resource.type.rpartition(":")[2], resource.name): resource
            for resource in resources
            if resource.custom
        }

    def place(self, resource: Resource) -> Place:
        """Return the id and API version of a resource; raise Unplaced if the id is unknown."""
        template, version = self._template(resource)
        values = {"subscription": self._subscription}
        for name in re.findall(r"{(\w+)}", template):
            if name not in values:
                values[name] = self.resolved(str(resource.inputs.get(name, "")))
                if not values[name]:
                    raise Unplaced(f"{resource.name}: no {name}")
        return Place(template.format(**values), version)

    def resolved(self, text: str) -> str:
        """Replace references `${type:name.output}` in `text`; raise Unplaced for unknown ones."""
        return _REFERENCE.sub(self._output, text)

    def _output(self, match: re.Match[str]) -> str:
        referenced = self._declared.get((match["type"], match["name"]))
        if referenced is None or match["output"] not in ("id", "name"):
            raise Unplaced(match[0])
        if match["output"] == "id":
            return self.place(referenced).id
        template, _ = self._template(referenced)
        parameter = re.findall(r"{(\w+)}", template)[-1]
        return self.resolved(str(referenced.inputs[parameter]))

    def _template(self, resource: Resource) -> tuple[str, str]:
        if resource.kind not in PLACES:
            raise Unplaced(resource.kind)
        return PLACES[resource.kind]


def version(kind: str) -> str:
    """Return the API version of a kind, for other requests to its service."""
    return PLACES[kind][1]


def own_names(kind: str) -> frozenset[str]:
    """Return the names of the inputs that form the id of a kind; empty for an unknown kind."""
    template, _ = PLACES.get(kind, ("", ""))
    return frozenset(re.findall(r"{(\w+)}", template))
