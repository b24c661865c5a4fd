"""Rules of networks and machines: what can be reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from policies.infra.limits import Limits
from policies.infra.rule import UNKNOWN, Item, Rule, must

WEB = frozenset({"80", "443"})
MACHINE = "compute:VirtualMachine"
SIGN_IN = "Microsoft.Azure.ActiveDirectory.AADSSHLoginForLinux"
# RFC 1918. Python's `is_private` asks whether both ends of a range are, and so allows 0.0.0.0/1.
PRIVATE = tuple(
    ipaddress.IPv4Network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)


def _subnets(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.each("subnets"):
        if not subnet.at("networkSecurityGroup.id"):
            yield f"subnet `{subnet.at('name')}` has no security group"


def _way_out(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.each("subnets"):
        if subnet.at("defaultOutboundAccess") is not False:
            yield f"subnet `{subnet.at('name')}` goes out by an address of Azure's choice"


def _open(item: Item, limits: Limits) -> Iterator[str]:
    """Azure reads `inbound` as it reads `Inbound`: what is not outward or refused is let in."""
    for rule in item.each("securityRules"):
        outward = str(rule.at("direction")).lower() == "outbound"
        if outward or str(rule.at("access")).lower() == "deny":
            continue
        sources = _both(rule, "sourceAddressPrefix", "sourceAddressPrefixes")
        if not sources and not rule.at("sourceApplicationSecurityGroups"):
            sources = ["anything"]
        if not all(map(inside, sources)):
            yield f"rule `{rule.at('name')}` lets in {', '.join(sources)}"


def inside(source: str) -> bool:
    """Whether a source is within our own networks: a tag of them, or private addresses."""
    if source.lower() in {"virtualnetwork", "azureloadbalancer"}:
        return True
    try:
        found = ipaddress.IPv4Network(source)
    except ValueError:
        return False
    return any(found.subnet_of(one) for one in PRIVATE)


def _leaving(item: Item, limits: Limits) -> Iterator[str]:
    """Azure lets everything leave for the internet that no rule refuses."""
    outward = [one for one in item.each("securityRules") if _said(one, "direction") != "inbound"]
    if not any(map(_refuses_the_rest, outward)):
        yield "no rule refuses what leaves for the internet"
    for rule in outward:
        to = _both(rule, "destinationAddressPrefix", "destinationAddressPrefixes")
        ports = _both(rule, "destinationPortRange", "destinationPortRanges")
        everywhere = [one for one in to if _anywhere(one)]
        if _said(rule, "access") != "deny" and everywhere and not WEB.issuperset(ports):
            through = f"{', '.join(everywhere)} on {', '.join(ports) or 'any port'}"
            yield f"rule `{rule.at('name')}` lets out to {through}, not to the web alone"


def _refuses_the_rest(rule: Item) -> bool:
    """Whether nothing that leaves for the internet is left out: any protocol, machine and port."""
    everything = {
        "direction": {"outbound"},
        "access": {"deny"},
        "protocol": {"*"},
        "sourceAddressPrefix": {"*", "virtualnetwork"},
        "sourcePortRange": {"*"},
        "destinationAddressPrefix": {"*", "internet"},
        "destinationPortRange": {"*"},
    }
    return all(_said(rule, key) in values for key, values in everything.items())


def _said(rule: Item, key: str) -> str:
    return str(rule.at(key, "")).lower()


def _both(rule: Item, alone: str, several: str) -> list[str]:
    """What a rule says in the singular and in the plural."""
    listed = rule.at(several, [])
    one = [listed] if isinstance(listed, str) else listed
    return [str(each) for each in (rule.at(alone), *one) if each]


def _anywhere(to: str) -> bool:
    """Whether a destination is neither one service of Azure nor an address of our own."""
    if to == UNKNOWN or to.lower().partition(".")[0] in {"*", "internet", "azurecloud"}:
        return True
    try:
        found = ipaddress.ip_network(to, strict=False)
    except ValueError:
        return False  # a service tag
    private = (found.subnet_of(one) for one in PRIVATE if isinstance(found, type(one)))
    return not any(private)


def _password(item: Item, limits: Limits) -> Iterator[str]:
    linux = "osProfile.linuxConfiguration.disablePasswordAuthentication"
    if item.at(linux) is not True or item.at("osProfile.adminPassword"):
        yield "a machine takes no password"


def _address(item: Item, limits: Limits) -> Iterator[str]:
    for one in item.each("ipConfigurations"):
        if one.at("publicIPAddress"):
            yield f"`{one.at('name')}` has a public address"
    if item.at("networkProfile.networkInterfaceConfigurations"):
        yield "`networkInterfaceConfigurations` makes network cards that no rule sees"


def _extension(item: Item, limits: Limits) -> Iterator[str]:
    found = f"{item.at('publisher')}.{item.at('type')}"
    if found != SIGN_IN:
        yield f"runs {found}, which is not {SIGN_IN}"


RULES: tuple[Rule, ...] = (
    Rule(
        "subnet-security-group",
        "Every subnet is behind a security group.",
        "CKV2_AZURE_31 AZR-000263",
        ("network:VirtualNetwork",),
        _subnets,
    ),
    Rule(
        "subnet-way-out",
        "`defaultOutboundAccess` is off: what goes out goes by a way that we made.",
        "own",
        ("network:VirtualNetwork",),
        _way_out,
    ),
    Rule(
        "security-group-closed",
        "No rule lets the internet in.",
        "CKV_AZURE_9 CKV_AZURE_10 CKV_AZURE_77 CKV_AZURE_160",
        ("network:NetworkSecurityGroup",),
        _open,
    ),
    must(
        "machine-encrypted",
        MACHINE,
        "securityProfile.encryptionAtHost",
        (True,),
        "Disks of machines are encrypted where they are read.",
        "own",
        False,
    ),
    Rule(
        "machine-extension",
        "Nothing but the sign-in is put on a machine.",
        "own",
        ("compute:VirtualMachineExtension",),
        _extension,
    ),
    Rule("machine-no-password", "Machines take no password.", "own", (MACHINE,), _password),
    Rule(
        "security-group-outbound",
        "What leaves for the internet is for the web, or a rule refuses it.",
        "own",
        ("network:NetworkSecurityGroup",),
        _leaving,
    ),
    Rule(
        "machine-no-address",
        "Machines have no public address.",
        "own",
        ("network:NetworkInterface", MACHINE),
        _address,
    ),
)
