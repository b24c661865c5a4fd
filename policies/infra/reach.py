"""Rules of networks and of rights: what can be reached, and by whom."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from policies.infra.limits import Limits
from policies.infra.rule import Item, Rule

# learn.microsoft.com/azure/role-based-access-control/built-in-roles
TOO_MUCH = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": "Role Based Access Control Administrator",
}


def _subnets(item: Item, limits: Limits) -> Iterator[str]:
    for subnet in item.at("subnets", []):
        if not subnet.get("networkSecurityGroup"):
            yield f"subnet `{subnet.get('name')}` has no security group"


def _open(item: Item, limits: Limits) -> Iterator[str]:
    for rule in item.at("securityRules", []):
        if rule.get("direction") != "Inbound" or rule.get("access") != "Allow":
            continue
        sources = [rule.get("sourceAddressPrefix"), *(rule.get("sourceAddressPrefixes") or [])]
        if any(one and not _inside(str(one)) for one in sources):
            let_in = ", ".join(str(one) for one in sources if one)
            yield f"rule `{rule.get('name')}` lets in {let_in}"


def _inside(source: str) -> bool:
    """Whether a source is within our own networks: a tag of them, or private addresses."""
    if source in {"VirtualNetwork", "AzureLoadBalancer"}:
        return True
    try:
        return ipaddress.ip_network(source).is_private and source != "0.0.0.0/0"
    except ValueError:
        return False


def _role(item: Item, limits: Limits) -> Iterator[str]:
    definition = str(item.at("roleDefinitionId", "")).rsplit("/", 1)[-1].lower()
    if definition in TOO_MUCH:
        yield f"grants {TOO_MUCH[definition]}, with which rights can be given to others"
    scope = str(item.at("scope", ""))
    if scope.startswith("/") and scope.strip("/").lower().count("/") < 3:
        yield f"is granted on `{scope}`: a subscription or more, not one resource"


def _lock(item: Item, limits: Limits) -> Iterator[str]:
    if any("resources:ResourceGroup::" in urn for urn in item.uses.get("scope", ())):
        yield "a lock on the resource group keeps clusters from giving nodes back"


def _password(item: Item, limits: Limits) -> Iterator[str]:
    linux = "osProfile.linuxConfiguration.disablePasswordAuthentication"
    if item.at(linux) is not True or item.at("osProfile.adminPassword"):
        yield "a machine takes no password"


def _address(item: Item, limits: Limits) -> Iterator[str]:
    for one in item.at("ipConfigurations", []):
        if one.get("publicIPAddress"):
            yield f"`{one.get('name')}` has a public address"


def _subject(item: Item, limits: Limits) -> Iterator[str]:
    subject = str(item.at("subject", ""))
    if "*" in subject or ":environment:" not in subject:
        yield f"`subject` is {subject}, must name one environment of one repository"


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
    Rule(
        "role-least",
        "A right is on one resource, and cannot be handed on.",
        "own",
        ("authorization:RoleAssignment",),
        _role,
    ),
    Rule(
        "lock-not-on-group",
        "Locks stand on what holds data, not on the resource group.",
        "own",
        ("authorization:ManagementLockByScope",),
        _lock,
    ),
    Rule(
        "federation-one-environment",
        "A workflow signs in from one environment of the repository.",
        "own",
        ("managedidentity:FederatedIdentityCredential",),
        _subject,
    ),
    Rule(
        "machine-no-password",
        "Machines take no password.",
        "own",
        ("compute:VirtualMachine",),
        _password,
    ),
    Rule(
        "machine-no-address",
        "Machines have no public address.",
        "own",
        ("network:NetworkInterface",),
        _address,
    ),
)
