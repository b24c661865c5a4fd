"""Settings of the network that are each sound and do not go together."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import TypeAlias

from infra.settings import Settings
from ml.core.documents import Key

# Code, found, expected, hint, keys.
Found: TypeAlias = Iterator[tuple[str, str, str, str, tuple[Key, ...]]]
KEY = "platform:network"
RANGE = (KEY, "address_space")
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
# What Docker bridges its containers with on every node.
_DOCKER = ipaddress.ip_network("172.17.0.0/16")
# Azure keeps five addresses of each subnet for itself:
# learn.microsoft.com/azure/virtual-network/virtual-networks-faq
_RESERVED = 5


def _address_space(settings: Settings) -> Found:
    found = f"`{'.'.join(RANGE)}` is '{settings.network.address_space}'"
    expected = "a private range (RFC 1918) from /16 to /24, such as 10.60.0.0/16"
    try:
        space = ipaddress.IPv4Network(settings.network.address_space)
    except ValueError as error:
        hint = "numbers up to 255, a slash, and 16 to 24"
        if "host bits" in str(error):
            meant = ipaddress.IPv4Network(settings.network.address_space, strict=False)
            hint = f"did you mean `{meant}`?"
        yield "wrong-setting", f"{found}: {error}", expected, hint, RANGE
        return
    private = any(space.subnet_of(one) for one in _PRIVATE if one.version == 4)
    if not 16 <= space.prefixlen <= 24 or not private:
        yield "wrong-setting", found, expected, "ask who keeps the network plan", RANGE
    elif space.overlaps(_DOCKER):
        hint = "take another range, such as 172.18.0.0/16"
        yield "wrong-setting", found, f"none of {_DOCKER}: nodes use it for Docker", hint, RANGE


def _room(settings: Settings) -> Found:
    """A node takes an address; where there is none, a cluster stays smaller than it was declared.

    Source: how-to-secure-training-vnet, "Prerequisites". The subnet of compute is a quarter.
    """
    if settings.network.isolation != "own":
        return
    try:
        space = ipaddress.IPv4Network(settings.network.address_space)
    except ValueError:
        return
    room = space.num_addresses // 4 - _RESERVED
    needed = sum(one.max_nodes for one in settings.clusters)
    needed += len(settings.machines("compute-instance"))
    if needed > room:
        found = f"`{space}` leaves {room} addresses to compute, which has {needed} nodes at most"
        expected = f"{needed} addresses: a quarter of the range, less {_RESERVED}"
        hint = "take a wider range (a smaller number after the /), or fewer nodes"
        yield "too-few-addresses", found, expected, hint, RANGE


def _hosts(settings: Settings) -> Found:
    hosts = settings.network.allowed_hosts
    for index, host in enumerate(hosts):
        if host in hosts[:index]:
            keys: tuple[Key, ...] = (KEY, "allowed_hosts", index)
            yield "same-name", f"`{host}` is there twice", "names that differ", "delete one", keys


def _starter(settings: Settings) -> Found:
    """Options that only a virtual network gives."""
    if settings.private:
        return
    if settings.storage.nfs_share_gib:
        yield _needs_network("an NFS share", ("platform:storage", "nfs_share_gib"))
    for index, workstation in enumerate(settings.workstations):
        if workstation.kind == "data-science-vm":
            yield _needs_network("a data-science VM", ("platform:workstations", index, "kind"))
    if settings.network.isolation == "own":
        yield _needs_network("a subnet of our own", (KEY, "isolation"))
    if settings.network.service_endpoints:
        yield _needs_network("service endpoints", (KEY, "service_endpoints"))
    if settings.network.allowed_hosts:
        yield _needs_network("`allowed_hosts`, which hold nobody back,", (KEY, "allowed_hosts"))


def _needs_network(what: str, keys: tuple[Key, ...]) -> tuple[str, str, str, str, tuple[Key, ...]]:
    found = f"{what} with `exposure: starter`"
    hint = "set `platform:exposure: private`, or leave it out"
    return "needs-network", found, "`platform:exposure: private`", hint, keys


def _isolation(settings: Settings) -> Found:
    """What only one of the two networks has (how-to-managed-network, "Limitations")."""
    network = settings.network
    if settings.private and network.isolation == "managed" and network.service_endpoints:
        found = "service endpoints with `isolation: managed`"
        hint = "set `isolation: own`, or leave service_endpoints out: private endpoints are there"
        expected = "`isolation: own`: a managed network has private endpoints alone"
        yield "needs-own-network", found, expected, hint, (KEY, "service_endpoints")
    if settings.private and network.isolation == "own" and network.allowed_hosts:
        found = "`allowed_hosts` with `isolation: own`, which would hold nobody back"
        hint = "leave them out: the routes and the firewall of our own network say what is reached"
        yield "needs-managed-network", found, "`isolation: managed`", hint, (KEY, "allowed_hosts")


CHECKS: tuple[Callable[[Settings], Found], ...] = (
    *(_address_space, _room, _hosts, _starter, _isolation),
)
