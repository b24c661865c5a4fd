"""Where a declared resource is in Azure: its id, and the version of the API that reads it.

The versions are those that the pinned provider's SDK uses; a test compares each with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.preview.captured import Resource

_RG = "/subscriptions/{subscription}/resourceGroups/{resourceGroupName}"
_ML = f"{_RG}/providers/Microsoft.MachineLearningServices"
_STORAGE = f"{_RG}/providers/Microsoft.Storage/storageAccounts/{{accountName}}"
_NET = f"{_RG}/providers/Microsoft.Network"
_MI = f"{_RG}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{{resourceName}}"

# kind → id, by the names of its inputs, and API version. The last input is its own name.
PLACES: Mapping[str, tuple[str, str]] = {
    "applicationinsights:Component": (
        f"{_RG}/providers/Microsoft.Insights/components/{{resourceName}}",
        "2020-02-02",
    ),
    "authorization:ManagementLockByScope": (
        "{scope}/providers/Microsoft.Authorization/locks/{lockName}",
        "2020-05-01",
    ),
    "authorization:RoleAssignment": (
        "{scope}/providers/Microsoft.Authorization/roleAssignments/{roleAssignmentName}",
        "2022-04-01",
    ),
    "compute:VirtualMachine": (
        f"{_RG}/providers/Microsoft.Compute/virtualMachines/{{vmName}}",
        "2024-11-01",
    ),
    "compute:VirtualMachineExtension": (
        f"{_RG}/providers/Microsoft.Compute/virtualMachines/{{vmName}}"
        "/extensions/{vmExtensionName}",
        "2024-11-01",
    ),
    "consumption:Budget": (
        "{scope}/providers/Microsoft.Consumption/budgets/{budgetName}",
        "2024-08-01",
    ),
    "containerregistry:Registry": (
        f"{_RG}/providers/Microsoft.ContainerRegistry/registries/{{registryName}}",
        "2023-01-01-preview",
    ),
    "keyvault:Vault": (f"{_RG}/providers/Microsoft.KeyVault/vaults/{{vaultName}}", "2024-11-01"),
    "keyvault:Key": (
        f"{_RG}/providers/Microsoft.KeyVault/vaults/{{vaultName}}/keys/{{keyName}}",
        "2024-11-01",
    ),
    "machinelearningservices:Compute": (
        f"{_ML}/workspaces/{{workspaceName}}/computes/{{computeName}}",
        "2025-12-01",
    ),
    "machinelearningservices:Datastore": (
        f"{_ML}/workspaces/{{workspaceName}}/datastores/{{name}}",
        "2025-12-01",
    ),
    "machinelearningservices:OnlineEndpoint": (
        f"{_ML}/workspaces/{{workspaceName}}/onlineEndpoints/{{endpointName}}",
        "2025-12-01",
    ),
    "machinelearningservices:Registry": (f"{_ML}/registries/{{registryName}}", "2025-12-01"),
    "machinelearningservices:Workspace": (f"{_ML}/workspaces/{{workspaceName}}", "2025-12-01"),
    "managedidentity:UserAssignedIdentity": (_MI, "2023-01-31"),
    "managedidentity:FederatedIdentityCredential": (
        f"{_MI}/federatedIdentityCredentials/{{federatedIdentityCredentialResourceName}}",
        "2023-01-31",
    ),
    "monitor:ActionGroup": (
        f"{_RG}/providers/Microsoft.Insights/actionGroups/{{actionGroupName}}",
        "2024-10-01-preview",
    ),
    "monitor:DiagnosticSetting": (
        "{resourceUri}/providers/Microsoft.Insights/diagnosticSettings/{name}",
        "2021-05-01-preview",
    ),
    "monitor:MetricAlert": (
        f"{_RG}/providers/Microsoft.Insights/metricAlerts/{{ruleName}}",
        "2018-03-01",
    ),
    "network:NatGateway": (f"{_NET}/natGateways/{{natGatewayName}}", "2024-05-01"),
    "network:PublicIPAddress": (
        f"{_NET}/publicIPAddresses/{{publicIpAddressName}}",
        "2024-05-01",
    ),
    "network:NetworkInterface": (
        f"{_NET}/networkInterfaces/{{networkInterfaceName}}",
        "2024-05-01",
    ),
    "network:NetworkSecurityGroup": (
        f"{_NET}/networkSecurityGroups/{{networkSecurityGroupName}}",
        "2024-05-01",
    ),
    "network:PrivateDnsZoneGroup": (
        f"{_NET}/privateEndpoints/{{privateEndpointName}}"
        "/privateDnsZoneGroups/{privateDnsZoneGroupName}",
        "2024-05-01",
    ),
    "network:PrivateEndpoint": (f"{_NET}/privateEndpoints/{{privateEndpointName}}", "2024-05-01"),
    "network:VirtualNetwork": (f"{_NET}/virtualNetworks/{{virtualNetworkName}}", "2024-05-01"),
    "operationalinsights:Workspace": (
        f"{_RG}/providers/Microsoft.OperationalInsights/workspaces/{{workspaceName}}",
        "2023-09-01",
    ),
    "privatedns:PrivateZone": (f"{_NET}/privateDnsZones/{{privateZoneName}}", "2024-06-01"),
    "privatedns:VirtualNetworkLink": (
        f"{_NET}/privateDnsZones/{{privateZoneName}}"
        "/virtualNetworkLinks/{virtualNetworkLinkName}",
        "2024-06-01",
    ),
    "resources:ResourceGroup": (_RG, "2024-03-01"),
    "security:DefenderForStorage": (
        "{resourceId}/providers/Microsoft.Security/defenderForStorageSettings/{settingName}",
        "2024-10-01-preview",
    ),
    "storage:BlobContainer": (
        f"{_STORAGE}/blobServices/default/containers/{{containerName}}",
        "2024-01-01",
    ),
    "storage:BlobServiceProperties": (
        f"{_STORAGE}/blobServices/{{blobServicesName}}",
        "2024-01-01",
    ),
    "storage:FileShare": (f"{_STORAGE}/fileServices/default/shares/{{shareName}}", "2024-01-01"),
    "storage:FileServiceProperties": (
        f"{_STORAGE}/fileServices/{{fileServicesName}}",
        "2024-01-01",
    ),
    "storage:ManagementPolicy": (
        f"{_STORAGE}/managementPolicies/{{managementPolicyName}}",
        "2024-01-01",
    ),
    "storage:StorageAccount": (_STORAGE, "2024-01-01"),
}
_REFERENCE = re.compile(r"\$\{(?P<type>\w+):(?P<name>[^}]+)\.(?P<output>\w+)\}")


class Unplaced(LookupError):
    """The id of a resource cannot be told: of no kind in PLACES, or it refers to what is not."""


@dataclass(frozen=True)
class Place:
    """The id of a resource, and the version of the API to read it with."""

    id: str
    version: str


class Addresses:
    """The places of everything that one program declared."""

    def __init__(self, resources: Iterable[Resource], subscription: str) -> None:
        self._subscription = subscription
        provided = [one for one in resources if one.custom]
        self._known = {(one.type.rpartition(":")[2], one.name): one for one in provided}

    def place(self, resource: Resource) -> Place:
        """Where a resource is; raises Unplaced."""
        template, version = self._template(resource)
        given = {"subscription": self._subscription}
        for name in re.findall(r"{(\w+)}", template):
            if name not in given:
                given[name] = self.resolved(str(resource.inputs.get(name, "")))
                if not given[name]:
                    raise Unplaced(f"{resource.name}: no {name}")
        return Place(template.format(**given), version)

    def resolved(self, text: str) -> str:
        """`text` with references to names and ids in place; raises Unplaced for any other."""
        return _REFERENCE.sub(self._output, text)

    def _output(self, found: re.Match[str]) -> str:
        other = self._known.get((found["type"], found["name"]))
        if other is None or found["output"] not in ("id", "name"):
            raise Unplaced(found[0])
        if found["output"] == "id":
            return self.place(other).id
        template, _ = self._template(other)
        own = re.findall(r"{(\w+)}", template)[-1]
        return self.resolved(str(other.inputs[own]))

    def _template(self, resource: Resource) -> tuple[str, str]:
        if resource.kind not in PLACES:
            raise Unplaced(resource.kind)
        return PLACES[resource.kind]


def version(kind: str) -> str:
    """The version of the API that a kind is read with, for what else its service is asked."""
    return PLACES[kind][1]


def own_names(kind: str) -> frozenset[str]:
    """The inputs of a kind that say where it is, not what it is."""
    template, _ = PLACES.get(kind, ("", ""))
    return frozenset(re.findall(r"{(\w+)}", template))
