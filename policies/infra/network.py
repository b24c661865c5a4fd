"""Rules for networks, public addresses, private endpoints and virtual machines."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence

from policies.infra.limits import Limits
from policies.infra.rule import UNKNOWN, Item, Kind, Rules, StackFindings, sources_of

WEB_PORTS = frozenset({"80", "443"})
SIGN_IN = "Microsoft.Azure.ActiveDirectory.AADSSHLoginForLinux"
WORKSPACE_ZONES = ("privatelink.api.azureml.ms", "privatelink.notebooks.azure.net")
# RFC 1918. Python's `is_private` checks only both ends of a range, so it accepts 0.0.0.0/1.
PRIVATE_RANGES = tuple(
    ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
# Kind → sub-resources that each need a private endpoint; `_parts` has those of storage accounts.
PARTS: Mapping[str, tuple[str, ...]] = {
    Kind.WORKSPACE: ("amlworkspace",),
    Kind.ML_REGISTRY: ("amlregistry",),
    Kind.VAULT: ("vault",),
    Kind.CONTAINER_REGISTRY: ("registry",),
    Kind.REDIS: ("redisEnterprise",),
    Kind.SCOPE: ("azuremonitor",),
}
# Sub-resources of another stack's registry that need private endpoints, if the stack uses it.
SHARED_PARTS = ("amlregistry", "blob", "registry")
_REGISTRY = re.compile("/providers/Microsoft.MachineLearningServices/registries/[^/]+$", re.I)
_ELSEWHERE = "another stack"


# Service tags without resources of other tenants (virtual-network/service-tags-overview,
# how-to-access-azureml-behind-firewall). _REGIONAL_TAGS are narrow only with a region.
_TAGS = frozenset(
    (
        *("azureactivedirectory", "azuremachinelearning", "batchnodemanagement", "azuremonitor"),
        *("azureresourcemanager", "azurefrontdoor", "microsoftcontainerregistry"),
        *("virtualnetwork", "azureloadbalancer"),
    )
)
_REGIONAL_TAGS = ("storage", "azurekeyvault", "azurecontainerregistry")
# Security groups whose machines may reach the web: workstations, the image builder, runners.
_WEB = ("security-workstations", "security-builds", "security-runners")


RULES = Rules()


def is_narrow_tag(tag: str, limits: Limits) -> bool:
    """Return whether a tag covers no resources of other tenants, or is in `hosts` of limits.yml."""
    name, _, region = tag.lower().partition(".")
    regional = name in _REGIONAL_TAGS and region in limits.regions
    return name in _TAGS or regional or tag in limits.hosts


def is_internal(source: str) -> bool:
    """Return whether a source is an internal service tag or a range of private addresses."""
    if source.lower() in {"virtualnetwork", "azureloadbalancer"}:
        return True
    try:
        network = ipaddress.IPv4Network(source)
    except ValueError:
        return False
    return any(network.subnet_of(private) for private in PRIVATE_RANGES)


@RULES.resource(
    "subnet-security-group",
    "Every subnet has a security group.",
    "CKV2_AZURE_31 AZR-000263",
    Kind.NETWORK,
)
def _security_group(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.members("subnets"):
        if not subnet.value("networkSecurityGroup.id"):
            yield f"subnet `{subnet.value('name')}` has no security group"


@RULES.resource(
    "subnet-way-out", "Subnets do not use Azure's default outbound access.", "own", Kind.NETWORK
)
def _default_outbound(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.members("subnets"):
        if subnet.value("defaultOutboundAccess") is not False:
            yield f"`defaultOutboundAccess` of subnet `{subnet.value('name')}` must be false"


@RULES.resource(
    "security-group-closed",
    "The internet cannot connect to a subnet.",
    "CKV_AZURE_9 CKV_AZURE_10 CKV_AZURE_77 CKV_AZURE_160",
    Kind.SECURITY_GROUP,
)
def _inbound(item: Item, limits: Limits) -> Iterator[str]:
    """No security rule admits inbound traffic from outside private networks.

    Case is ignored, as by Azure. A security rule admits traffic unless it is outbound or denies.
    """
    for rule in item.members("securityRules"):
        if _lower(rule, "direction") == "outbound" or _lower(rule, "access") == "deny":
            continue
        sources = _values(rule, "sourceAddressPrefix", "sourceAddressPrefixes")
        if not sources and not rule.value("sourceApplicationSecurityGroups"):
            sources = ["anything"]
        if not all(map(is_internal, sources)):
            yield f"rule `{rule.value('name')}` admits traffic from {', '.join(sources)}"


@RULES.resource(
    "security-group-outbound",
    "Outbound traffic to the internet is denied, except to web ports.",
    "own",
    Kind.SECURITY_GROUP,
)
def _outbound(item: Item, limits: Limits) -> Iterator[str]:
    """A rule must deny the internet, which Azure allows by default; others open only web ports."""
    rules = [
        rule for rule in item.members("securityRules") if _lower(rule, "direction") != "inbound"
    ]
    if not any(map(_denies_internet, rules)):
        yield "no rule denies outbound traffic to the internet"
    for rule in rules:
        targets = _values(rule, "destinationAddressPrefix", "destinationAddressPrefixes")
        ports = _values(rule, "destinationPortRange", "destinationPortRanges")
        public = [target for target in targets if _is_public(target)]
        if _lower(rule, "access") != "deny" and public and not WEB_PORTS.issuperset(ports):
            target = f"{', '.join(public)} on {', '.join(ports) or 'any port'}"
            yield f"rule `{rule.value('name')}` lets out to {target}, not only to web ports"


@RULES.resource(
    "security-group-tags",
    "Nodes reach services of Azure, not what others rent there or the web.",
    "own",
    Kind.SECURITY_GROUP,
)
def _tags(item: Item, limits: Limits) -> Iterator[str]:
    for rule in item.members("securityRules"):
        if _lower(rule, "direction") == "inbound" or _lower(rule, "access") == "deny":
            continue
        for target in _values(rule, "destinationAddressPrefix", "destinationAddressPrefixes"):
            is_web = _is_public(target) and item.name in _WEB
            is_address = not _is_public(target) and target[:1].isdigit()
            if not (is_web or is_address or is_narrow_tag(target, limits)):
                yield f"rule `{rule.value('name')}` allows {target}, shared with other tenants"


@RULES.resource("endpoints-obey", "Private endpoints obey security groups.", "own", Kind.NETWORK)
def _obey(item: Item, limits: Limits) -> Iterator[str]:
    policies = [
        subnet.value("privateEndpointNetworkPolicies") for subnet in item.members("subnets")
    ]
    if policies and "Enabled" not in policies:
        yield "`privateEndpointNetworkPolicies` is Enabled in no subnet"


def _denies_internet(rule: Item) -> bool:
    """Return whether a rule denies all outbound traffic: any protocol, source and port."""
    everything = {
        "direction": {"outbound"},
        "access": {"deny"},
        "protocol": {"*"},
        "sourceAddressPrefix": {"*", "virtualnetwork"},
        "sourcePortRange": {"*"},
        "destinationAddressPrefix": {"*", "internet"},
        "destinationPortRange": {"*"},
    }
    return all(_lower(rule, key) in values for key, values in everything.items())


def _lower(rule: Item, key: str) -> str:
    return str(rule.value(key, "")).lower()


def _values(rule: Item, singular: str, plural: str) -> list[str]:
    """Return the values of a security rule's singular and plural property."""
    several = rule.value(plural, [])
    several = [several] if isinstance(several, str) else several
    return [str(value) for value in (rule.value(singular), *several) if value]


def _is_public(target: str) -> bool:
    """Return whether a destination is neither one service of Azure nor a private address."""
    if target == UNKNOWN or target.lower().partition(".")[0] in {"*", "internet", "azurecloud"}:
        return True
    try:
        network = ipaddress.ip_network(target, strict=False)
    except ValueError:
        return False  # a service tag
    return not any(
        network.subnet_of(private)
        for private in PRIVATE_RANGES
        if isinstance(network, type(private))
    )


@RULES.resource(
    "machine-no-password", "Virtual machines do not accept passwords.", "own", Kind.MACHINE
)
def _password(item: Item, limits: Limits) -> Iterator[str]:
    linux = "osProfile.linuxConfiguration.disablePasswordAuthentication"
    if item.value(linux) is not True or item.value("osProfile.adminPassword"):
        yield f"`{linux}` must be true, and `osProfile.adminPassword` not set"


@RULES.resource(
    "machine-no-address",
    "Virtual machines have no public address.",
    "own",
    Kind.NETWORK_CARD,
    Kind.MACHINE,
)
def _address(item: Item, limits: Limits) -> Iterator[str]:
    for configuration in item.members("ipConfigurations"):
        if configuration.value("publicIPAddress"):
            yield f"`{configuration.value('name')}` has a public address"
    if item.value("networkProfile.networkInterfaceConfigurations"):
        yield "`networkInterfaceConfigurations` makes network cards that no rule checks"


@RULES.resource(
    "machine-extension",
    "Virtual machines have no extension but the sign-in.",
    "own",
    Kind.MACHINE_EXTENSION,
)
def _extension(item: Item, limits: Limits) -> Iterator[str]:
    extension = f"{item.value('publisher')}.{item.value('type')}"
    if extension != SIGN_IN:
        yield f"the extension is {extension}, must be {SIGN_IN}"


@RULES.stack(
    "private-endpoints",
    "Resources that hold data have a private endpoint with a DNS name.",
    "CKV2_AZURE_32 CKV2_AZURE_33 AVM",
)
def _private_endpoints(items: Sequence[Item], limits: Limits) -> StackFindings:
    """Match each private endpoint to the resource that its input derives from.

    Ids are unknown in a preview. An endpoint whose input derives from no resource of this stack is
    assumed to belong to the shared registry.
    """
    endpoints: dict[str, list[Item]] = {}
    for item in items:
        if item.kind == Kind.PRIVATE_ENDPOINT:
            for urn in item.uses.get("privateLinkServiceConnections", ()) or (_ELSEWHERE,):
                endpoints.setdefault(urn, []).append(item)
    in_dns = sources_of(items, Kind.DNS_GROUP, "privateEndpointName")
    targets = [(item, item.urn, part) for item in items for part in _parts(item)]
    used = [item for item in items if _REGISTRY.search(str(item.value("scope", "")))]
    targets += [(item, _ELSEWHERE, part) for item in used[:1] for part in SHARED_PARTS]
    for item, urn, part in targets:
        what = "the shared registry's" if urn == _ELSEWHERE else "its"
        matching = [endpoint for endpoint in endpoints.get(urn, []) if part in _groups(endpoint)]
        if not matching:
            yield item, f"{what} `{part}` has no private endpoint"
        elif not limits.dns_by_policy and not any(endpoint.urn in in_dns for endpoint in matching):
            yield item, f"the private endpoint of {what} `{part}` is in no DNS zone"


def _parts(item: Item) -> tuple[str, ...]:
    """Return the sub-resources of an item that need a private endpoint; () if there is none."""
    if item.kind != Kind.ACCOUNT:
        return PARTS.get(item.kind, ())
    if item.value("kind") == "FileStorage":
        return ("file",)
    return ("blob", "dfs") if item.value("isHnsEnabled") is True else ("blob", "file")


def _groups(endpoint: Item) -> list[str]:
    connections = endpoint.members("privateLinkServiceConnections")
    return [group for connection in connections for group in connection.value("groupIds", [])]


@RULES.stack(
    "private-names", "The network resolves the names of private endpoints.", "CKV_AZURE_243 AVM"
)
def _dns_zones(items: Sequence[Item], limits: Limits) -> StackFindings:
    """A name resolves to the endpoint when its zone exists and is linked to the network."""
    zones = {item.urn for item in items if item.kind == Kind.DNS_ZONE}
    linked = sources_of(
        items,
        Kind.DNS_LINK,
        "privateZoneName",
        lambda link: (
            link.sources("virtualNetwork") or limits.allows_id(str(link.value("virtualNetwork.id")))
        ),
    )
    for item in items:
        if item.kind == Kind.DNS_GROUP:
            used = item.uses.get("privateDnsZoneConfigs", ())
            central = [str(zone.value("privateDnsZoneId")) for zone in _zones(item)]
            if not used and central and all(map(limits.allows_id, central)):
                continue  # the owner links central zones, which `infra doctor` checks
            if not used or any(urn not in zones for urn in used):
                yield (
                    item,
                    "names a DNS zone that is neither of the stack nor in `given` of limits.yml",
                )
            elif any(urn not in linked for urn in used):
                yield item, "names a DNS zone that is not linked to the network"


@RULES.stack(
    "workspace-names",
    "Both DNS zones of a workspace exist: api and notebooks.",
    "CKV_AZURE_243 AVM",
)
def _workspace_zones(items: Sequence[Item], limits: Limits) -> StackFindings:
    zones = {item.resource_name for item in items if item.kind == Kind.DNS_ZONE}
    central = [str(zone.value("privateDnsZoneId")) for item in items for zone in _zones(item)]
    zones |= {id.rpartition("/")[2] for id in central if limits.allows_id(id)}
    for item in items:
        if item.kind == Kind.WORKSPACE and not limits.dns_by_policy:
            yield from (
                (item, f"no DNS zone `{zone}`") for zone in WORKSPACE_ZONES if zone not in zones
            )


def _zones(item: Item) -> list[Item]:
    return item.members("privateDnsZoneConfigs") if item.kind == Kind.DNS_GROUP else []


@RULES.resource("route-private", "Routes lead to a private address.", "own", Kind.ROUTE_TABLE)
def _routes(item: Item, limits: Limits) -> Iterator[str]:
    """The next hops `Internet` and a gateway would bypass the hub's firewall."""
    for route in item.members("routes"):
        hop, address = route.value("nextHopType"), str(route.value("nextHopIpAddress", ""))
        if hop != "VirtualAppliance" or not is_internal(address):
            name = route.value("name")
            yield f"route `{name}` leads to {address or hop}, not to a private address"


for _name, _who, _sources, _kind, _path in (
    (
        "workspace",
        "The workspace does",
        "AZR-000406 CKV_AZURE_144 CKV2_AZURE_49",
        Kind.WORKSPACE,
        "",
    ),
    ("endpoint", "Endpoints do", "own", Kind.ENDPOINT, "properties."),
    ("assets", "The shared registry does", "own", Kind.ML_REGISTRY, ""),
    ("storage", "Storage does", "CKV_AZURE_59", Kind.ACCOUNT, ""),
    ("vault", "The vault does", "CKV_AZURE_189", Kind.VAULT, "properties."),
    ("registry", "The registry does", "CKV_AZURE_139", Kind.CONTAINER_REGISTRY, ""),
    ("redis", "Redis does", "own", Kind.REDIS, ""),
):
    _title = f"{_who} not answer on public addresses."
    RULES.resource(f"{_name}-public-access", _title, _sources, _kind).must(
        f"{_path}publicNetworkAccess", "Disabled", default="Enabled"
    )
RULES.resource(
    "machine-encrypted", "Disks of virtual machines are encrypted at the host.", "own", Kind.MACHINE
).must("securityProfile.encryptionAtHost", True, default=False)
