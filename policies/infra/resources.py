"""Rules of every resource: its kind, `ignoreChanges`, tags and region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from policies.infra.limits import Limits
from policies.infra.network import DNS_LINK
from policies.infra.rule import (
    ACCOUNT,
    APPLICATION_INSIGHTS,
    COMPUTE,
    CONTAINER_REGISTRY,
    DNS_ZONE,
    ENDPOINT,
    LOGS,
    MACHINE,
    ML_REGISTRY,
    NETWORK,
    NETWORK_CARD,
    PRIVATE_ENDPOINT,
    RESOURCE_GROUP,
    SECURITY_GROUP,
    VAULT,
    WORKSPACE,
    Item,
    Rules,
)

# Any other kind is refused: no rule would check it. Examples are a subnet declared apart from its
# network, another version of the API, another provider, a template or a command. To use a new kind,
# add it here together with its rules.
KINDS = frozenset(
    {
        "applicationinsights:Component",
        "authorization:ManagementLockByScope",
        "authorization:RoleAssignment",
        "compute:VirtualMachine",
        "compute:VirtualMachineExtension",
        "consumption:Budget",
        "containerregistry:Registry",
        "keyvault:Key",
        "keyvault:Vault",
        "machinelearningservices:Compute",
        "machinelearningservices:Datastore",
        "machinelearningservices:OnlineEndpoint",
        "machinelearningservices:Registry",
        "machinelearningservices:Workspace",
        "managedidentity:FederatedIdentityCredential",
        "managedidentity:UserAssignedIdentity",
        "monitor:ActionGroup",
        "monitor:DiagnosticSetting",
        "monitor:MetricAlert",
        "network:NatGateway",
        "network:NetworkInterface",
        "network:NetworkSecurityGroup",
        "network:PrivateDnsZoneGroup",
        "network:PrivateEndpoint",
        "network:PublicIPAddress",
        "network:VirtualNetwork",
        "operationalinsights:Workspace",
        "privatedns:PrivateZone",
        "privatedns:VirtualNetworkLink",
        "resources:ResourceGroup",
        "security:DefenderForStorage",
        "storage:BlobContainer",
        "storage:BlobServiceProperties",
        "storage:FileShare",
        "storage:ManagementPolicy",
        "storage:StorageAccount",
    }
)
# Groups of resources; the rules check their members.
_COMPONENTS = ("platform:", "pulumi:pulumi:Stack")
# Pulumi makes this provider from the stack's settings; another may lead to another subscription.
_PROVIDER, _DEFAULT = "pulumi:providers:azure-native", "default"
# Written by releases, not by Pulumi.
_MAY_IGNORE: Mapping[str, frozenset[str]] = {
    ENDPOINT: frozenset({"properties.traffic", "properties.mirrorTraffic", "tags"})
}
REGIONAL = (
    *(WORKSPACE, COMPUTE, ENDPOINT, ML_REGISTRY, ACCOUNT, VAULT, CONTAINER_REGISTRY),
    *(PRIVATE_ENDPOINT, MACHINE, RESOURCE_GROUP, "managedidentity:UserAssignedIdentity"),
    *(LOGS, APPLICATION_INSIGHTS, NETWORK, SECURITY_GROUP, NETWORK_CARD),
    *("network:NatGateway", "network:PublicIPAddress", "compute:VirtualMachineExtension"),
)
TAGGED = (
    *REGIONAL,
    *(DNS_ZONE, DNS_LINK, "keyvault:Key", "monitor:ActionGroup", "monitor:MetricAlert"),
)


RULES = Rules()


@RULES.resource("known-kind", "Every resource is of a kind that rules cover.", "own")
def _kind(item: Item, limits: Limits) -> Iterator[str]:
    default_provider = item.kind == _PROVIDER and item.name.startswith(_DEFAULT)
    if item.kind not in KINDS and not item.kind.startswith(_COMPONENTS) and not default_provider:
        yield f"no rule covers `{item.kind}`: add it to KINDS in policies/infra/resources.py"


@RULES.resource("known-changes", "Changes made by hand are undone.", "own")
def _ignored_changes(item: Item, limits: Limits) -> Iterator[str]:
    for path in item.ignores:
        if path not in _MAY_IGNORE.get(item.kind, frozenset()):
            yield f"`ignoreChanges` of `{path}`: a change made by hand would stay"


@RULES.resource("tags", "Resources have the required tags.", "AZR-000166", *TAGGED)
def _tags(item: Item, limits: Limits) -> Iterator[str]:
    missing = [tag for tag in limits.tags if not item.at("tags", {}).get(tag)]
    if missing:
        yield f"no tag {', '.join(missing)}"


@RULES.resource("regions", "Resources are in allowed regions.", "AZR-000167", *REGIONAL)
def _regions(item: Item, limits: Limits) -> Iterator[str]:
    for holder in (item, *item.each("regionDetails")):  # the replicas of a shared registry
        region = str(holder.at("location", "")).lower().replace(" ", "")
        if region not in limits.regions:
            allowed = ", ".join(limits.regions)
            yield f"`location` is {region or 'not set'}, must be one of {allowed}"
