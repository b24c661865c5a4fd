"""Read-only checks that the existing resources of a stack exist, fit and may be used."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.live.addresses import Addresses, version
from infra.live.arm import Arm
from infra.live.check import Check, granted
from infra.preview.capture import Resource
from infra.settings.checks import RESERVED
from infra.settings.model import Settings

# Usable addresses of a /28. GitHub requires one per concurrent job, and 30 % more
# (docs.github.com: configuring-private-networking-for-github-hosted-runners).
_RUNNERS = 16 - RESERVED
# The delegation of a subnet for GitHub-hosted runners; one for self-hosted runners has none.
_GITHUB = "GitHub.Network/networkSettings"
JOIN = ("Microsoft.Network/virtualNetworks/subnets/join/action", "Network Contributor")
# For peering with the hub: virtual-network-manage-peering, Permissions.
PEER = ("Microsoft.Network/virtualNetworks/peer/action", "Network Contributor")
ASSIGN = (
    "Microsoft.Authorization/roleAssignments/write",
    "Role Based Access Control Administrator",
)
RECORD = ("Microsoft.Network/privateDnsZones/join/action", "Private DNS Zone Contributor")
# For linking the stack's private DNS zones to the network.
LINK = ("Microsoft.Network/virtualNetworks/join/action", "Network Contributor")
# For diagnostic settings and Application Insights; Log Analytics Contributor lacks this action
# (MicrosoftDocs/azure-monitor-docs#297, JimGBritt/AzurePolicy#17).
LOG = ("Microsoft.OperationalInsights/workspaces/sharedKeys/action", "Monitoring Contributor")


def check_existing(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Yield the checks of all existing resources, and of the deployer's permissions on each."""
    network = settings.network
    if settings.resource_group:
        id = f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"
        yield from _exists("resource group", id, "resources:ResourceGroup", arm)
    for what, id, kind in (
        ("log workspace", settings.monitoring.workspace, "operationalinsights:Workspace"),
        ("container registry", settings.images.registry, "containerregistry:Registry"),
        ("vault", settings.vault.id, "keyvault:Vault"),
        ("private link scope", settings.monitoring.private_link_scope, "monitor:PrivateLinkScope"),
    ):
        if id:
            yield from _exists(what, id, kind, arm)
    if settings.vault.id and settings.storage.customer_managed_key:
        id, name = f"{settings.vault.id}/keys/{settings.vault.key}", settings.vault.key
        yield from _exists(f"key {name}", id, "keyvault:Key", arm)
    if settings.monitoring.private_link_scope:
        yield from _scope(settings, declared, arm)
    if network.virtual_network:
        yield from _network(settings, declared, arm)
    if network.runners_subnet:
        subnet = arm.get(network.runners_subnet, version("network:VirtualNetwork"))
        yield from _subnet("platform:network.runners_subnet", subnet, _RUNNERS, settings)
    if network.private_dns_zones not in ("", "none"):
        yield from _zones(settings, declared, arm)
    for need, id in required_permissions(settings):
        name = f"permission on {id.rpartition('/')[2]}"
        yield from granted(name, [need], arm, id, "ask its owner")


def required_permissions(settings: Settings) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the deployer's permissions on existing resources, as ((action, role), resource id).

    The owner of the resource assigns the role.
    """
    network = settings.network
    for need, ids in (
        (JOIN, (network.subnet, network.compute_subnet, network.runners_subnet)),
        (PEER, ("" if network.virtual_network else network.peer,)),
        (LINK, ("" if network.private_dns_zones else network.virtual_network,)),
        (RECORD, (network.private_dns_zones.removeprefix("none"),)),
        (LOG, (settings.monitoring.workspace,)),
        (ASSIGN, (settings.images.registry, settings.vault.id)),
    ):
        yield from ((need, id) for id in ids if id)


def _exists(what: str, id: str, kind: str, arm: Arm) -> Iterator[Check]:
    if arm.get(id, version(kind)) is None:
        message = f"{id} does not exist"
        yield Check(what, "error", message, "correct the id, or ask its owner for it")
    else:
        yield Check(what, "ok", f"{id.rpartition('/')[2]} exists")


def _scope(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Warn of each log resource outside the private link scope, where it cannot be queried."""
    scope = settings.monitoring.private_link_scope
    listed = arm.all(f"{scope}/scopedResources", version("monitor:PrivateLinkScopedResource"))
    linked = {
        str((item.get("properties") or {}).get("linkedResourceId")).lower() for item in listed
    }
    addresses = Addresses(declared, settings.subscription)
    for resource in declared:
        if resource.kind in ("operationalinsights:Workspace", "applicationinsights:Component"):
            id = addresses.place(resource).id
            if id.lower() not in linked:
                message, hint = f"does not contain {id}", "ask its owner to add it"
                yield Check(f"private link to {resource.name}", "warning", message, hint)


def _network(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    network = settings.network
    answer = arm.get(network.virtual_network, version("network:VirtualNetwork"))
    if answer is None:
        message = f"{network.virtual_network} does not exist"
        yield Check("network", "error", message, "correct the id, or ask its owner for it")
        return
    properties = answer.get("properties") or {}
    region = str(answer.get("location") or "").replace(" ", "").lower()
    if region != settings.location:
        message = f"the network is in {region}; private endpoints need one in {settings.location}"
        yield Check("network", "error", message, "use a virtual network in that region")
    if network.peer:
        yield _peering(network.peer, properties.get("virtualNetworkPeerings") or ())
    subnets = {str(subnet.get("id")).lower(): subnet for subnet in properties.get("subnets") or ()}
    endpoints = sum(resource.kind == "network:PrivateEndpoint" for resource in declared)
    nodes = sum(cluster.max_nodes for cluster in settings.computes)
    nodes += len(settings.machines("compute-instance"))
    for setting, id, needed in (
        ("subnet", network.subnet, endpoints),
        ("compute_subnet", network.compute_subnet, nodes),
    ):
        if id:
            name, subnet = f"platform:network.{setting}", subnets.get(id.lower())
            yield from _subnet(name, subnet, needed, settings)


def _peering(hub: str, peerings: Sequence[Mapping[str, Any]]) -> Check:
    name, hint = "peering with the hub", "ask the network team to peer both sides"
    for peering in peerings:
        properties = peering.get("properties") or {}
        remote = str((properties.get("remoteVirtualNetwork") or {}).get("id"))
        if remote.lower() == hub.lower():
            state = properties.get("peeringState")
            if state == "Connected":
                return Check(name, "ok", "connected")
            return Check(name, "error", f"its state is {state}", hint)
    return Check(name, "error", "the network has no peering with the hub", hint)


def _subnet(
    name: str, subnet: Mapping[str, Any] | None, needed: int, settings: Settings
) -> Iterator[Check]:
    """Check a subnet's free addresses, delegation, security group and service endpoints.

    A subnet of runners needs `needed` addresses in total; any other needs as many free ones.
    """
    if subnet is None:
        yield Check(name, "error", "the network has no such subnet", "ask its owner for it")
        return
    of_runners = name.endswith("runners_subnet")
    properties = subnet.get("properties") or {}
    prefixes = properties.get("addressPrefixes") or [properties.get("addressPrefix")]
    ranges = [ipaddress.ip_network(prefix) for prefix in prefixes if prefix]
    free = sum(range_.num_addresses - RESERVED for range_ in ranges)
    free -= 0 if of_runners else len(properties.get("ipConfigurations") or ())
    faults = []
    if free < needed:
        faults.append(f"{free} free addresses, {needed} are needed")
    if delegations := properties.get("delegations"):
        to = str((delegations[0].get("properties") or {}).get("serviceName"))
        if not of_runners or to.lower() != _GITHUB.lower():
            faults.append(f"it is delegated to {to}")
    if not properties.get("networkSecurityGroup"):
        faults.append("it has no security group")
    services = {str(service.get("service")) for service in properties.get("serviceEndpoints") or ()}
    if settings.network.service_endpoints and name.endswith("compute_subnet"):
        missing = {"Microsoft.Storage", "Microsoft.KeyVault"} - services
        faults += [f"it has no service endpoint {service}" for service in sorted(missing)]
    for fault in faults:
        yield Check(name, "error", fault, "ask the network team to change it")
    if not faults:
        yield Check(name, "ok", f"{free} free addresses, {needed} are needed")


def _zones(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Check that each DNS zone of a private endpoint exists and is linked to the network or hub."""
    named = {
        str(zone.get("privateDnsZoneId"))
        for resource in declared
        if resource.kind == "network:PrivateDnsZoneGroup"
        for zone in resource.inputs.get("privateDnsZoneConfigs") or ()
    }
    for id in sorted(named):
        name = f"zone {id.rpartition('/')[2]}"
        if arm.get(id, version("privatedns:PrivateZone")) is None:
            yield Check(name, "error", "does not exist", "ask its owner for it")
            continue
        links = arm.all(f"{id}/virtualNetworkLinks", version("privatedns:VirtualNetworkLink"))
        linked = {
            str(((link.get("properties") or {}).get("virtualNetwork") or {}).get("id")).lower()
            for link in links
        }
        networks = {settings.network.virtual_network.lower(), settings.network.peer.lower()} - {""}
        if linked & networks:
            yield Check(name, "ok", "exists, and is linked to the network or its hub")
        else:
            message = "is linked neither to the network nor to `peer`"
            hint = "ask its owner to link it, unless a DNS resolver in the hub resolves it"
            yield Check(name, "warning", message, hint)
