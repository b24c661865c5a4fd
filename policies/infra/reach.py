"""Rules of networks and machines: what can be reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from policies.infra.limits import Limits
from policies.infra.rule import Item, Rule

MACHINE = "compute:VirtualMachine"
# RFC 1918. Python's `is_private` asks whether both ends of a range are, and so allows 0.0.0.0/1.
PRIVATE = tuple(
    ipaddress.IPv4Network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)


def _subnets(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.each("subnets"):
        if not subnet.at("networkSecurityGroup.id"):
            yield f"subnet `{subnet.at('name')}` has no security group"


def _open(item: Item, limits: Limits) -> Iterator[str]:
    """Azure reads `inbound` as it reads `Inbound`: what is not outward or refused is let in."""
    for rule in item.each("securityRules"):
        outward = str(rule.at("direction")).lower() == "outbound"
        if outward or str(rule.at("access")).lower() == "deny":
            continue
        several = rule.at("sourceAddressPrefixes", [])
        listed = [several] if isinstance(several, str) else several
        sources = [str(one) for one in (rule.at("sourceAddressPrefix"), *listed) if one]
        if not sources and not rule.at("sourceApplicationSecurityGroups"):
            sources = ["anything"]
        if not all(map(_inside, sources)):
            yield f"rule `{rule.at('name')}` lets in {', '.join(sources)}"


def _inside(source: str) -> bool:
    """Whether a source is within our own networks: a tag of them, or private addresses."""
    if source.lower() in {"virtualnetwork", "azureloadbalancer"}:
        return True
    try:
        found = ipaddress.IPv4Network(source)
    except ValueError:
        return False
    return any(found.subnet_of(one) for one in PRIVATE)


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


RULES: tuple[Rule, ...] = (
    Rule(
        "subnet-security-group",
        "Every subnet is behind a security group.",
        "CKV2_AZURE_31 AZR-000263",
        ("network:VirtualNetwork",),
        _subnets,
    ),
    Rule(
        "security-group-closed",
        "No rule lets the internet in.",
        "CKV_AZURE_9 CKV_AZURE_10 CKV_AZURE_77 CKV_AZURE_160",
        ("network:NetworkSecurityGroup",),
        _open,
    ),
    Rule("machine-no-password", "Machines take no password.", "own", (MACHINE,), _password),
    Rule(
        "machine-no-address",
        "Machines have no public address.",
        "own",
        ("network:NetworkInterface", MACHINE),
        _address,
    ),
)
