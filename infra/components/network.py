"""What can be reached: a virtual network, private endpoints, and the names that lead to them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import network, privatedns

from infra.components.security import PARTS, Part, rules
from infra.components.site import Site
from infra.foundations import Network as Settings
from infra.inventory import ZONES

SERVICES = ("Microsoft.Storage", "Microsoft.KeyVault")


@dataclass(frozen=True)
class NetworkArgs:
    """The settings of the virtual network; `way_out` is for machines that stand in it.

    A machine without a public address reaches nothing outside by itself, and a node that does not
    reach Azure never starts (how-to-secure-training-vnet, "no public IP").
    """

    site: Site
    settings: Settings
    way_out: bool


class Network(pulumi.ComponentResource):
    """A virtual network in quarters, each behind a security group that the internet cannot pass.

    `names` are how machines in it find the private endpoints that were asked for so far.
    """

    def __init__(self, name: str, args: NetworkArgs) -> None:
        super().__init__("platform:network:Network", name)
        site = self._site = args.site
        self.service_endpoints = args.settings.service_endpoints
        space = ipaddress.ip_network(args.settings.address_space)
        groups = {part: self._security_group(part) for part in PARTS}
        gateway = network.SubResourceArgs(id=self._gateway().id) if args.way_out else None
        # Subnets stand inline: an update of a network without them would delete them.
        self.virtual = network.VirtualNetwork(
            "virtual-network",
            virtual_network_name=site.names.local("vnet"),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            address_space=network.AddressSpaceArgs(address_prefixes=[str(space)]),
            subnets=[
                network.SubnetArgs(
                    name=part,
                    address_prefix=str(prefix),
                    default_outbound_access=False,
                    # Nodes without public addresses were refused a subnet that has either:
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
        self.names: list[pulumi.Resource] = []
        self.register_outputs({"id": self.virtual.id})

    def subnet(self, part: Part) -> pulumi.Output[str]:
        """The id of a part of the network."""
        return pulumi.Output.concat(self.virtual.id, f"/subnets/{part}")

    def private_endpoint(
        self,
        name: str,
        target: pulumi.Input[str],
        what: str,
        *,
        after: Sequence[pulumi.Resource] = (),
    ) -> network.PrivateEndpoint:
        """A private address for a resource; `what` is the part of it that is reached: a `ZONES`.

        It is written to the resource too, and comes `after` what else is: an account or a vault
        that is being written fails it for good ("StorageAccountOperationInProgress",
        "ConflictError": Azure/bicep-registry-modules#6001, terraform-provider-azurerm#32095).
        """
        site = self._site
        called = f"{name}-{what}"
        endpoint = network.PrivateEndpoint(
            called,
            private_endpoint_name=site.names.local("pe", called),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            subnet=network.SubnetArgs(id=self.subnet("endpoints")),
            private_link_service_connections=[
                network.PrivateLinkServiceConnectionArgs(
                    name=called, private_link_service_id=target, group_ids=[what]
                )
            ],
            # Of several in one subnet at a time Azure refuses some ("RetryableError"), and the
            # provider does not try again: pulumi/pulumi-azure-native#4509.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*self._endpoints[-1:], *after]),
        )
        self._endpoints.append(endpoint)
        names = network.PrivateDnsZoneGroup(
            f"{called}-names",
            private_dns_zone_group_name="default",
            private_endpoint_name=endpoint.name,
            resource_group_name=site.group,
            private_dns_zone_configs=[
                network.PrivateDnsZoneConfigArgs(
                    name=zone.replace(".", "-"), private_dns_zone_id=self._zone(zone).id
                )
                for zone in ZONES[what]
            ],
            opts=pulumi.ResourceOptions(parent=endpoint),
        )
        self.names.append(names)
        return endpoint

    def _zone(self, zone: str) -> privatedns.PrivateZone:
        if zone not in self._zones:
            made = self._zones[zone] = privatedns.PrivateZone(
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
                private_zone_name=made.name,
                resource_group_name=self._site.group,
                location="global",
                tags=self._site.tags,
                registration_enabled=False,
                virtual_network=privatedns.SubResourceArgs(id=self.virtual.id),
                opts=pulumi.ResourceOptions(parent=made),
            )
            self.names.append(link)
        return self._zones[zone]

    def _security_group(self, part: Part) -> network.NetworkSecurityGroup:
        return network.NetworkSecurityGroup(
            f"security-{part}",
            network_security_group_name=self._site.names.local("nsg", part),
            resource_group_name=self._site.group,
            location=self._site.location,
            tags=self._site.tags,
            security_rules=[*rules(part, self._site.location)],
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _gateway(self) -> network.NatGateway:
        """The way out: outward alone, by one address that others can let in."""
        site, opts = self._site, pulumi.ResourceOptions(parent=self)
        address = network.PublicIPAddress(
            "way-out-address",
            public_ip_address_name=site.names.local("pip", "out"),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            sku=network.PublicIPAddressSkuArgs(name="Standard"),
            public_ip_allocation_method="Static",
            opts=opts,
        )
        return network.NatGateway(
            "way-out",
            nat_gateway_name=site.names.local("ng"),
            resource_group_name=site.group,
            location=site.location,
            tags=site.tags,
            sku=network.NatGatewaySkuArgs(name="Standard"),
            public_ip_addresses=[network.SubResourceArgs(id=address.id)],
            opts=opts,
        )


def _policies(part: Part) -> str:
    """Private endpoints obey the security group of the part that they stand in."""
    return "Enabled" if part == "endpoints" else "Disabled"
