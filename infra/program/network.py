"""The virtual network: subnets, security groups, private endpoints, DNS zones, the NAT gateway."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_azure_native import network, privatedns

from infra.program.site import Site
from infra.settings.azure import DNS_ZONES

Part = Literal["endpoints", "compute", "workstations", "builds"]
PARTS: tuple[Part, ...] = ("endpoints", "compute", "workstations", "builds")


@dataclass(frozen=True)
class Opening:
    """Open ports; `to` is a service tag, in which `{region}` is replaced."""

    name: str
    ports: Sequence[str]
    to: str = "VirtualNetwork"
    protocol: str = "Tcp"


# Allowed from the network itself.
INBOUND: Mapping[Part, Opening] = {
    # HTTPS and files: the workspace's by SMB, the share by NFS (how-to-secure-training-vnet,
    # "Limitations"; storage-files-networking-overview).
    "endpoints": Opening("services-from-the-network", ("443", "445", "2049")),
    # Nodes of a job communicate on any port (NCCL, Gloo, MPI).
    "compute": Opening("nodes-with-each-other", ("*",), protocol="*"),
    "workstations": Opening("ssh-from-the-network", ("22",)),
    "builds": Opening("https-from-the-network", ("443",)),
}
# Services that every node needs (how-to-access-azureml-behind-firewall, "Basic configuration").
AZURE: tuple[Opening, ...] = (
    Opening("sign-in", ("80", "443"), "AzureActiveDirectory"),
    Opening("azure-ml", ("443", "8787", "18881"), "AzureMachineLearning"),
    Opening("azure-ml-nodes", ("5831",), "AzureMachineLearning", "Udp"),
    Opening("batch", ("443",), "BatchNodeManagement.{region}", "*"),
    Opening("resource-manager", ("443",), "AzureResourceManager"),
    # Without files (445) Azure ML refused the subnet: MicrosoftDocs/azure-docs#91825.
    Opening("storage", ("443", "445"), "Storage.{region}"),
    Opening("front-door", ("443",), "AzureFrontDoor.FrontEnd"),
    # Microsoft's images, from any region, and their content delivery network.
    Opening("images", ("443",), "MicrosoftContainerRegistry"),
    Opening("images-front-door", ("443",), "AzureFrontDoor.FirstParty"),
    Opening("monitor", ("443",), "AzureMonitor"),
)
# Allowed out of the network. Jobs only reach Azure; packages arrive in images.
OUTBOUND: Mapping[Part, Sequence[Opening]] = {
    "endpoints": (),
    "compute": AZURE,
    "workstations": (Opening("web", ("80", "443"), "Internet"),),
    # Ubuntu's packages are signed and served by HTTP.
    "builds": (*AZURE, Opening("packages", ("80", "443"), "Internet")),
}


def rules(part: Part, region: str) -> Iterator[network.SecurityRuleArgs]:
    """The rules of a subnet's security group, inbound first; everything else is denied."""
    yield _rule(INBOUND[part], 100, "Inbound", source="VirtualNetwork", region=region)
    nothing = Opening("deny-inbound", ("*",), "*", "*")
    yield _rule(nothing, 4096, "Inbound", source="*", region=region)
    for at, opening in enumerate(OUTBOUND[part]):
        yield _rule(opening, 100 + 10 * at, "Outbound", source="VirtualNetwork", region=region)
    nothing = Opening("deny-outbound", ("*",), "Internet", "*")
    yield _rule(nothing, 4096, "Outbound", source="*", region=region)


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


class Network(pulumi.ComponentResource):
    """A virtual network of four subnets, each with a security group closed to the internet.

    `dns_records` are the DNS resources of the private endpoints created so far.
    """

    def __init__(self, name: str, site: Site) -> None:
        super().__init__("platform:network:Network", name)
        self._site, settings = site, site.settings.network
        self.service_endpoints = settings.service_endpoints
        space = ipaddress.ip_network(settings.address_space)
        groups = {part: self._security_group(part) for part in PARTS}
        # A machine without a public address cannot reach the internet by itself, and a node that
        # does not reach Azure never starts (how-to-secure-training-vnet, "no public IP").
        nat = site.settings.needs_nat
        gateway = network.SubResourceArgs(id=self._gateway().id) if nat else None
        # Subnets are inline: an update of the network without them would delete them.
        self.virtual = network.VirtualNetwork(
            "virtual-network",
            virtual_network_name=site.names.local("vnet"),
            **site.place,
            address_space=network.AddressSpaceArgs(address_prefixes=[str(space)]),
            subnets=[
                network.SubnetArgs(
                    name=part,
                    address_prefix=str(prefix),
                    default_outbound_access=False,
                    # Azure refused nodes without public addresses in a subnet with either policy:
                    # Azure/terraform#85.
                    private_endpoint_network_policies=_policies(part),
                    private_link_service_network_policies=_policies(part),
                    nat_gateway=gateway if part != "endpoints" else None,
                    network_security_group=network.NetworkSecurityGroupArgs(id=groups[part].id),
                    service_endpoints=[
                        network.ServiceEndpointPropertiesFormatArgs(service=service)
                        for service in (SERVICES if self.service_endpoints else ())
                    ],
                )
                for part, prefix in zip(PARTS, space.subnets(prefixlen_diff=2), strict=False)
            ],
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.security_groups = groups
        self._zones: dict[str, privatedns.PrivateZone] = {}
        self._endpoints: list[network.PrivateEndpoint] = []
        self.dns_records: list[pulumi.Resource] = []
        self.register_outputs({"id": self.virtual.id})

    def subnet(self, part: Part) -> pulumi.Output[str]:
        """The id of a subnet."""
        return pulumi.Output.concat(self.virtual.id, f"/subnets/{part}")

    def private_endpoint(
        self,
        name: str,
        target: pulumi.Input[str],
        part: str,
        *,
        after: Sequence[pulumi.Resource] = (),
    ) -> network.PrivateEndpoint:
        """A private address for a part of a resource; `part` is a key of `DNS_ZONES`.

        Azure also writes it to the resource, so it comes `after` other writes: a concurrent write
        of the account or vault makes it fail for good ("StorageAccountOperationInProgress",
        "ConflictError": Azure/bicep-registry-modules#6001, terraform-provider-azurerm#32095).
        """
        site = self._site
        full_name = f"{name}-{part}"
        endpoint = network.PrivateEndpoint(
            full_name,
            private_endpoint_name=site.names.local("pe", full_name),
            **site.place,
            subnet=network.SubnetArgs(id=self.subnet("endpoints")),
            private_link_service_connections=[
                network.PrivateLinkServiceConnectionArgs(
                    name=full_name, private_link_service_id=target, group_ids=[part]
                )
            ],
            # Azure refuses some of several concurrent ones in a subnet ("RetryableError"), and the
            # provider does not retry: pulumi/pulumi-azure-native#4509.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*self._endpoints[-1:], *after]),
        )
        self._endpoints.append(endpoint)
        records = network.PrivateDnsZoneGroup(
            f"{full_name}-names",
            private_dns_zone_group_name="default",
            private_endpoint_name=endpoint.name,
            resource_group_name=site.group,
            private_dns_zone_configs=[
                network.PrivateDnsZoneConfigArgs(
                    name=zone.replace(".", "-"), private_dns_zone_id=self._zone(zone).id
                )
                for zone in DNS_ZONES[part]
            ],
            opts=pulumi.ResourceOptions(parent=endpoint),
        )
        self.dns_records.append(records)
        return endpoint

    def _zone(self, zone: str) -> privatedns.PrivateZone:
        if zone not in self._zones:
            resource = self._zones[zone] = privatedns.PrivateZone(
                zone,
                private_zone_name=zone,
                resource_group_name=self._site.group,
                location="global",
                tags=self._site.tags,
                opts=pulumi.ResourceOptions(parent=self),
            )
            link = privatedns.VirtualNetworkLink(
                f"{zone}-link",
                virtual_network_link_name=self._site.names.local("link"),
                private_zone_name=resource.name,
                resource_group_name=self._site.group,
                location="global",
                tags=self._site.tags,
                registration_enabled=False,
                virtual_network=privatedns.SubResourceArgs(id=self.virtual.id),
                opts=pulumi.ResourceOptions(parent=resource),
            )
            self.dns_records.append(link)
        return self._zones[zone]

    def _security_group(self, part: Part) -> network.NetworkSecurityGroup:
        return network.NetworkSecurityGroup(
            f"security-{part}",
            network_security_group_name=self._site.names.local("nsg", part),
            **self._site.place,
            security_rules=[*rules(part, self._site.settings.location)],
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _gateway(self) -> network.NatGateway:
        """A NAT gateway: outbound only, by one address that others can allow."""
        site, opts = self._site, pulumi.ResourceOptions(parent=self)
        address = network.PublicIPAddress(
            "nat-address",
            public_ip_address_name=site.names.local("pip", "out"),
            **site.place,
            sku=network.PublicIPAddressSkuArgs(name="Standard"),
            public_ip_allocation_method="Static",
            opts=opts,
        )
        return network.NatGateway(
            "nat-gateway",
            nat_gateway_name=site.names.local("ng"),
            **site.place,
            sku=network.NatGatewaySkuArgs(name="Standard"),
            public_ip_addresses=[network.SubResourceArgs(id=address.id)],
            opts=opts,
        )


def _policies(part: Part) -> str:
    """Private endpoints obey the security group of their subnet."""
    return "Enabled" if part == "endpoints" else "Disabled"
