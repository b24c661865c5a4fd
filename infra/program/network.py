"""The virtual network: subnets, security groups, private endpoints, DNS zones, the NAT gateway."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pulumi
from pulumi_azure_native import network, privatedns

from infra.program.site import Component, Options, Site
from infra.settings.azure import DNS_ZONES

SubnetRole = Literal["endpoints", "compute", "workstations", "builds", "runners"]
SUBNET_ROLES: tuple[SubnetRole, ...] = get_args(SubnetRole)


@dataclass(frozen=True)
class Opening:
    """Allowed or denied traffic: ports, destination and protocol of a security rule."""

    name: str
    ports: Sequence[str]
    to: str = "VirtualNetwork"  # a service tag, in which `{region}` is replaced
    protocol: str = "Tcp"


# Inbound traffic that each subnet allows from the network itself.
INBOUND: Mapping[SubnetRole, Opening] = {
    # HTTPS; SMB for the workspace's file share; NFS for `nfs_share_gib`
    # (how-to-secure-training-vnet, "Limitations"; storage-files-networking-overview).
    "endpoints": Opening("services-from-the-network", ("443", "445", "2049")),
    # Nodes of a job communicate on any port (NCCL, Gloo, MPI).
    "compute": Opening("nodes-with-each-other", ("*",), protocol="*"),
    "workstations": Opening("ssh-from-the-network", ("22",)),
    "builds": Opening("https-from-the-network", ("443",)),
    "runners": Opening("ssh-from-the-network", ("22",)),
}
# Azure Managed Redis (azure/redis/architecture).
REDIS = Opening("redis-from-the-network", ("10000",))
# Services that every node needs (how-to-access-azureml-behind-firewall, "Basic configuration").
AZURE: tuple[Opening, ...] = (
    Opening("sign-in", ("80", "443"), "AzureActiveDirectory"),
    Opening("azure-ml", ("443", "8787", "18881"), "AzureMachineLearning"),
    Opening("azure-ml-nodes", ("5831",), "AzureMachineLearning", "Udp"),
    Opening("batch", ("443",), "BatchNodeManagement.{region}", "*"),
    Opening("resource-manager", ("443",), "AzureResourceManager"),
    # Azure ML rejected a subnet without SMB (445): MicrosoftDocs/azure-docs#91825.
    Opening("storage", ("443", "445"), "Storage.{region}"),
    Opening("front-door", ("443",), "AzureFrontDoor.FrontEnd"),
    # Microsoft's images, from any region, and their content delivery network.
    Opening("images", ("443",), "MicrosoftContainerRegistry"),
    Opening("images-front-door", ("443",), "AzureFrontDoor.FirstParty"),
    Opening("monitor", ("443",), "AzureMonitor"),
)
# Outbound traffic that each subnet allows. Jobs reach only Azure; their images hold the packages.
OUTBOUND: Mapping[SubnetRole, Sequence[Opening]] = {
    "endpoints": (),
    "compute": AZURE,
    "workstations": (Opening("web", ("80", "443"), "Internet"),),
    # Ubuntu's packages are signed and served by HTTP.
    "builds": (*AZURE, Opening("packages", ("80", "443"), "Internet")),
    "runners": (Opening("web", ("80", "443"), "Internet"),),
}


def rules(role: SubnetRole, region: str, redis: bool = False) -> Iterator[network.SecurityRuleArgs]:
    """Yield the security rules of a subnet; they deny all other inbound and internet traffic."""
    yield _rule(INBOUND[role], 100, "Inbound", source="VirtualNetwork", region=region)
    nothing = Opening("deny-inbound", ("*",), "*", "*")
    yield _rule(nothing, 4096, "Inbound", source="*", region=region)
    for number, opening in enumerate(OUTBOUND[role]):
        yield _rule(opening, 100 + 10 * number, "Outbound", source="VirtualNetwork", region=region)
    nothing = Opening("deny-outbound", ("*",), "Internet", "*")
    yield _rule(nothing, 4096, "Outbound", source="*", region=region)
    if redis and role == "endpoints":
        yield _rule(REDIS, 110, "Inbound", source="VirtualNetwork", region=region)


def _rule(
    opening: Opening, priority: int, direction: str, *, source: str, region: str
) -> network.SecurityRuleArgs:
    ports = opening.ports
    single, several = (ports[0], None) if len(ports) == 1 else (None, ports)
    return network.SecurityRuleArgs(
        name=opening.name,
        priority=priority,
        direction=direction,
        access="Allow" if source != "*" else "Deny",
        protocol=opening.protocol,
        source_address_prefix=source,
        source_port_range="*",
        destination_address_prefix=opening.to.format(region=region),
        destination_port_range=single,
        destination_port_ranges=several,
    )


SERVICES = ("Microsoft.Storage", "Microsoft.KeyVault")


class Network(Component):
    """The virtual network: a new one with a security group per subnet, or an existing one.

    An existing network is not changed, and `created` is None. `dns_records` are the DNS resources
    of the private endpoints created so far.
    """

    def __init__(self, name: str, site: Site, opts: Options = None) -> None:
        super().__init__("network:Network", name, opts, "network")
        self._site, self._settings = site, site.settings.network
        self.service_endpoints = self._settings.service_endpoints
        self.security_groups: dict[SubnetRole, network.NetworkSecurityGroup] = {}
        self.created = None if self._settings.virtual_network else self._virtual()
        self.id: pulumi.Input[str] = (
            self.created.id if self.created else self._settings.virtual_network
        )
        self._zones: dict[str, privatedns.PrivateZone] = {}
        self._endpoints: list[network.PrivateEndpoint] = []
        self.dns_records: list[pulumi.Resource] = []
        self.register_outputs({"id": self.id})

    def _virtual(self) -> network.VirtualNetwork:
        site, settings = self._site, self._settings
        space = ipaddress.ip_network(settings.address_space)
        ranges = [*space.subnets(prefixlen_diff=2)]
        if settings.runners:  # share the last quarter with builds
            ranges[3:] = ranges[3].subnets()
        subnets = dict(zip(SUBNET_ROLES, ranges, strict=False))
        groups = self.security_groups = {role: self._security_group(role) for role in subnets}
        # A machine without a public address cannot reach the internet by itself, and a node that
        # does not reach Azure never starts (how-to-secure-training-vnet, "no public IP").
        nat = site.settings.needs_nat
        gateway = network.SubResourceArgs(id=self._gateway().id) if nat else None
        route = self._route() if settings.hub_firewall else None
        # Subnets and peerings are inline: an update of the network without them deletes them.
        return network.VirtualNetwork(
            self.child("virtual-network"),
            virtual_network_name=site.names.local("vnet"),
            **site.place,
            address_space=network.AddressSpaceArgs(address_prefixes=[str(space)]),
            virtual_network_peerings=[
                network.VirtualNetworkPeeringArgs(
                    name="hub",
                    remote_virtual_network=network.SubResourceArgs(id=settings.peer),
                    allow_virtual_network_access=True,
                    allow_forwarded_traffic=True,
                    allow_gateway_transit=False,
                    use_remote_gateways=False,
                )
            ]
            if settings.peer
            else None,
            subnets=[
                network.SubnetArgs(
                    name=role,
                    address_prefix=str(prefix),
                    default_outbound_access=False,
                    # Azure rejected nodes without public addresses in a subnet where either policy
                    # is enabled: Azure/terraform#85.
                    private_endpoint_network_policies=_policies(role),
                    private_link_service_network_policies=_policies(role),
                    nat_gateway=gateway if role != "endpoints" else None,
                    route_table=route if role != "endpoints" else None,
                    network_security_group=network.NetworkSecurityGroupArgs(id=groups[role].id),
                    service_endpoints=[
                        network.ServiceEndpointPropertiesFormatArgs(service=service)
                        for service in (SERVICES if self.service_endpoints else ())
                    ],
                )
                for role, prefix in subnets.items()
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )

    def subnet(self, role: SubnetRole) -> pulumi.Output[str]:
        """Return the id of a subnet; for an existing network it comes from the settings."""
        existing = self._settings.subnet if role == "endpoints" else self._settings.compute_subnet
        if self.created is None:
            return pulumi.Output.from_input(existing)
        return pulumi.Output.concat(self.created.id, f"/subnets/{role}")

    def private_endpoint(
        self,
        name: str,
        target: pulumi.Input[str],
        part: str,
        *,
        after: Sequence[pulumi.Resource] = (),
    ) -> network.PrivateEndpoint:
        """Create a private endpoint for a sub-resource of `target`; `part` is a key of `DNS_ZONES`.

        Azure also writes to the target, so the endpoint is created `after` other writes. A
        concurrent write makes it fail permanently ("StorageAccountOperationInProgress",
        "ConflictError": Azure/bicep-registry-modules#6001, terraform-provider-azurerm#32095).
        """
        site = self._site
        full_name = f"{name}-{part}"
        endpoint = network.PrivateEndpoint(
            self.child(full_name),
            private_endpoint_name=site.names.local("pe", full_name),
            **site.place,
            subnet=network.SubnetArgs(id=self.subnet("endpoints")),
            private_link_service_connections=[
                network.PrivateLinkServiceConnectionArgs(
                    name=full_name, private_link_service_id=target, group_ids=[part]
                )
            ],
            # One after another: Azure rejects concurrent endpoints in a subnet ("RetryableError"),
            # and the provider does not retry (pulumi/pulumi-azure-native#4509).
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*self._endpoints[-1:], *after]),
        )
        self._endpoints.append(endpoint)
        if self._settings.private_dns_zones == "none":
            return endpoint
        records = network.PrivateDnsZoneGroup(
            self.child(f"{full_name}-names"),
            private_dns_zone_group_name="default",
            private_endpoint_name=endpoint.name,
            resource_group_name=site.group,
            private_dns_zone_configs=[
                network.PrivateDnsZoneConfigArgs(
                    name=zone.replace(".", "-"), private_dns_zone_id=self._zone(zone)
                )
                for zone in DNS_ZONES[part]
            ],
            opts=pulumi.ResourceOptions(parent=endpoint),
        )
        self.dns_records.append(records)
        return endpoint

    def _zone(self, zone: str) -> pulumi.Output[str]:
        """Return the id of a private DNS zone: an existing central one, or a new, linked one."""
        if central := self._settings.private_dns_zones:
            id = f"{central}/providers/Microsoft.Network/privateDnsZones/{zone}"
            return pulumi.Output.from_input(id)
        if zone not in self._zones:
            resource = self._zones[zone] = privatedns.PrivateZone(
                self.child(zone),
                private_zone_name=zone,
                resource_group_name=self._site.group,
                location="global",
                tags=self._site.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
            link = privatedns.VirtualNetworkLink(
                self.child(f"{zone}-link"),
                virtual_network_link_name=self._site.names.local("link"),
                private_zone_name=resource.name,
                resource_group_name=self._site.group,
                location="global",
                tags=self._site.tags,
                registration_enabled=False,
                virtual_network=privatedns.SubResourceArgs(id=self.id),
                opts=pulumi.ResourceOptions(parent=resource),
            )
            self.dns_records.append(link)
        return pulumi.Output.from_input(self._zones[zone].id)

    def _security_group(self, role: SubnetRole) -> network.NetworkSecurityGroup:
        return network.NetworkSecurityGroup(
            self.child(f"security-{role}"),
            network_security_group_name=self._site.names.local("nsg", role),
            **self._site.place,
            security_rules=[
                *rules(role, self._site.settings.location, self._site.settings.has_redis)
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _route(self) -> network.RouteTableArgs:
        """Create the route table that sends all outbound traffic to the hub's firewall."""
        table = network.RouteTable(
            self.child("routes"),
            route_table_name=self._site.names.local("rt"),
            **self._site.place,
            disable_bgp_route_propagation=True,
            routes=[
                network.RouteArgs(
                    name="to-the-hub",
                    address_prefix="0.0.0.0/0",
                    next_hop_type="VirtualAppliance",
                    next_hop_ip_address=self._settings.hub_firewall,
                )
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        return network.RouteTableArgs(id=table.id)

    def _gateway(self) -> network.NatGateway:
        """Create a NAT gateway: outbound only, with one static address that firewalls can allow."""
        site, opts = self._site, pulumi.ResourceOptions(parent=self)
        address = network.PublicIPAddress(
            self.child("nat-address"),
            public_ip_address_name=site.names.local("pip", "out"),
            **site.place,
            sku=network.PublicIPAddressSkuArgs(name="Standard"),
            public_ip_allocation_method="Static",
            opts=opts,
        )
        return network.NatGateway(
            self.child("nat-gateway"),
            nat_gateway_name=site.names.local("ng"),
            **site.place,
            sku=network.NatGatewaySkuArgs(name="Standard"),
            public_ip_addresses=[network.SubResourceArgs(id=address.id)],
            opts=opts,
        )


def _policies(role: SubnetRole) -> str:
    """Return the subnet's network policies for private endpoints and private link services.

    "Enabled" for `endpoints`, so that its security group applies to private endpoints.
    """
    return "Enabled" if role == "endpoints" else "Disabled"
