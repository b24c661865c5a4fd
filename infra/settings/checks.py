"""Checks of settings beyond the schema: invalid combinations of valid values.

Also VM sizes, regions and address ranges.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from infra.settings.azure import NO_PAIR, NO_ZONES, PRESETS, REGIONS, SIZES, retired
from infra.settings.model import (
    BUILDER,
    FEATURES,
    IDLE_MINUTES,
    FeatureStore,
    Images,
    Monitoring,
    Network,
    Settings,
    Storage,
    Vault,
    Workspace,
)
from ml.core.documents import Document, Key
from ml.core.errors import Problem

CLUSTERS, WORKSTATIONS = "platform:clusters", "platform:workstations"
ENDPOINTS, NETWORK, STORAGE = "platform:endpoints", "platform:network", "platform:storage"
ADDRESS_SPACE, TAGS = (NETWORK, "address_space"), "platform:tags"
# The tags that the template sets; `tags` adds to them.
OWN_TAGS = ("environment", "costCenter", "owner", "repository", "managedBy")
# The longest name of an online endpoint (how-to-manage-quotas).
MAX_ENDPOINT_NAME = 32
# Datastores of every workspace: how-to-datastore.
DEFAULT_DATASTORES = frozenset(
    f"workspace{suffix}"
    for suffix in ("blobstore", "filestore", "artifactstore", "workingdirectory")
)
# Most nodes of a cluster with InfiniBand (how-to-manage-quotas: an RDMA enabled VM family).
MAX_INFINIBAND_NODES = 100
_PRIVATE = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
# Docker's bridge network on every node.
_DOCKER = ipaddress.IPv4Network("172.17.0.0/16")
# Azure reserves five addresses of each subnet:
# learn.microsoft.com/azure/virtual-network/virtual-networks-faq
RESERVED = 5


Keys = tuple[Key, ...]


@dataclass(frozen=True)
class Fault:
    """One problem of the settings, without its place in the file."""

    code: str
    actual: str
    expected: str
    hint: str
    keys: Keys = ()  # path from `config` to the setting to change


Findings = Iterator[Fault]


def problems(settings: Settings, document: Document) -> Iterator[Problem]:
    """Run all checks; yield each fault as a Problem at the line of the setting to change."""
    for check in CHECKS:
        for finding in check(settings):
            place = document.place("config", *finding.keys)
            yield Problem(finding.code, finding.actual, finding.expected, finding.hint, place)


def _environment(settings: Settings) -> Findings:
    """Check the environment's name: it is part of resource names of at most 24 characters."""
    name = settings.environment
    if not (name.isascii() and name.isalnum() and name.islower() and len(name) <= 7):
        expected = "at most 7 lower-case letters and digits: it is a part of every name"
        yield Fault("stack-name", f"the stack name is `{name}`", expected, "rename the file")


def _region(settings: Settings) -> Findings:
    region, keys = settings.location, ("azure-native:location",)
    if region not in REGIONS:
        near = difflib.get_close_matches(region, sorted(REGIONS), 1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        yield Fault(
            "unknown-region",
            f"`{region}` is not a region of Azure's public cloud",
            "a region, as `az account list-locations` names it",
            f"{hint}add a region that is newer than the list to infra/settings/azure.py",
            keys,
        )
    # Not every region has availability zones or a paired region for redundant storage: storage/
    # common/storage-redundancy, container-registry/zone-redundancy.
    copies, images = settings.storage.redundancy, settings.images
    own_images = images.zone_redundant and not settings.makes_registry
    without_zones = copies.replace("Z", "") if "G" in copies else "LRS"
    zonal = (
        ("storage.redundancy", copies, copies.endswith("ZRS"), without_zones),
        ("images.zone_redundant", "true", own_images, "false"),
        ("storage.nfs_share_gib", "more than 0", bool(settings.storage.nfs_share_gib), "0"),
    )
    for setting, value, needs_zones, instead in zonal:
        if region in NO_ZONES and needs_zones:
            message = f"`{region}` has no availability zones: `platform:{setting}` is {value}"
            hint = f"set `platform:{setting}: {instead}`, or choose another region"
            yield Fault("no-availability-zones", message, "a region with zones", hint, keys)
    if region in NO_PAIR and "G" in copies:
        message = f"`{region}` has no paired region: `platform:storage.redundancy` is {copies}"
        hint = "set `platform:storage.redundancy: ZRS`, or choose another region"
        yield Fault("no-paired-region", message, "a region with a pair", hint, keys)


def _sizes(settings: Settings) -> Findings:
    for index, cluster in enumerate(settings.clusters):
        keys: Keys = (CLUSTERS, index)
        if (cluster.preset is None) == (cluster.size is None):
            sizes = "both `preset` and `size`" if cluster.size else "neither `preset` nor `size`"
            expected = "one of the two; presets: " + ", ".join(PRESETS)
            hint = "delete one" if cluster.size else "add `preset: cpu`"
            yield Fault("ambiguous-size", f"`{cluster.name}` has {sizes}", expected, hint, keys)
        elif cluster.size:
            yield from _size(cluster.size, (*keys, "size"))
    for index, workstation in enumerate(settings.workstations):
        yield from _size(workstation.size, (WORKSTATIONS, index, "size"))
    builder, keys = settings.images.builder_size, ("platform:images", "builder_size")
    yield from _size(builder, keys)
    if builder in SIZES and SIZES[builder].gpus:
        message = f"`{builder}` has {SIZES[builder].gpus} GPUs; building an image uses none"
        hint = f"use {PRESETS['cpu']}"
        yield Fault("builder-with-gpu", message, "a size without a GPU", hint, keys)


def _size(size: str, keys: Keys) -> Findings:
    if retirement := retired(size, date.today()):
        message = f"`{size}`: the {retirement.family} series was retired on {retirement.day}"
        hint = f"use {retirement.instead}"
        yield Fault("retired-size", message, "a size that Azure still offers", hint, keys)
    elif size not in SIZES:
        folded = {name.lower().removeprefix("standard_"): name for name in SIZES}
        near = difflib.get_close_matches(size.lower().removeprefix("standard_"), folded, 1, 0.8)
        hint = f"did you mean `{folded[near[0]]}`? " if near else ""
        hint += "add a missing size to infra/settings/azure.py, with its price"
        yield Fault("unknown-size", f"`{size}` is not a known size", ", ".join(SIZES), hint, keys)


def _nodes(settings: Settings) -> Findings:
    for index, cluster in enumerate(settings.clusters):
        keys: Keys = (CLUSTERS, index)
        size = SIZES.get(cluster.vm_size)
        if size and cluster.priority == "spot" and not size.low_priority:
            message = f"`{cluster.name}`: Azure ML has no low-priority nodes of {cluster.vm_size}"
            hint = "delete it, or choose another size"
            yield Fault("no-spot", message, "`priority: dedicated`", hint, (*keys, "priority"))
        if cluster.min_nodes > cluster.max_nodes:
            message = f"`{cluster.name}`: min_nodes {cluster.min_nodes} > max_nodes"
            expected = f"at most {cluster.max_nodes}"
            hint = "with 0 it scales to zero"
            yield Fault("node-count", message, expected, hint, (*keys, "min_nodes"))
        if cluster.usage.nodes > cluster.max_nodes:
            message = f"`{cluster.name}`: a typical job uses {cluster.usage.nodes} nodes"
            expected = f"at most max_nodes, {cluster.max_nodes}"
            hint = "`usage` only serves the cost estimate"
            yield Fault("node-count", message, expected, hint, (*keys, "usage", "nodes"))
        if size and size.infiniband and cluster.max_nodes > MAX_INFINIBAND_NODES:
            message = f"`{cluster.name}`: {cluster.max_nodes} nodes with InfiniBand"
            expected = f"at most {MAX_INFINIBAND_NODES}"
            hint = "add a second cluster; a job runs on one of them"
            yield Fault("node-count", message, expected, hint, (*keys, "max_nodes"))


def _names(settings: Settings) -> Findings:
    """Check for duplicate and reserved names, and for endpoint names that are too long."""
    computes = [
        *_listed([cluster.name for cluster in settings.clusters], CLUSTERS, field="name"),
        *_listed([machine.name for machine in settings.workstations], WORKSTATIONS, field="name"),
    ]
    endpoints = _listed([endpoint.name for endpoint in settings.endpoints], ENDPOINTS, field="name")
    yield from (*_repeated(computes), *_repeated(endpoints))
    for keys, name in computes:
        if name == BUILDER:
            message = f"`{BUILDER}` is the name of the cluster that builds images"
            yield Fault("duplicate-name", message, "another name", "rename it", keys)
    for keys, name in endpoints:
        in_azure = settings.names.regional(name)
        if len(in_azure) > MAX_ENDPOINT_NAME:
            message = f"the endpoint would be called `{in_azure}`: {len(in_azure)} characters"
            expected = f"at most {MAX_ENDPOINT_NAME}, with the environment and the unique suffix"
            hint = f"shorten `{name}` by {len(in_azure) - MAX_ENDPOINT_NAME}"
            yield Fault("endpoint-name", message, expected, hint, keys)
    containers = _listed(settings.storage.containers, STORAGE, "containers")
    yield from _repeated(containers)
    taken = DEFAULT_DATASTORES | ({FEATURES} if settings.has_features else set())
    for keys, container in containers:
        if container in taken:
            message = f"the workspace already has a datastore `{container}`"
            yield Fault("duplicate-name", message, "another name", "rename it", keys)


def _listed(names: Sequence[str], *above: Key, field: str = "") -> list[tuple[Keys, str]]:
    """Return (keys, name) for each name of a list; `field` is the key of the name in an item."""
    below = (field,) if field else ()
    return [((*above, index, *below), name) for index, name in enumerate(names)]


def _repeated(names: Sequence[tuple[Keys, str]]) -> Findings:
    """Yield a finding for each duplicate name."""
    earlier: set[str] = set()
    for keys, name in names:
        if name in earlier:
            message = f"`{name}` appears twice"
            yield Fault("duplicate-name", message, "distinct names", "rename or delete one", keys)
        earlier.add(name)


def _asset_registry(settings: Settings) -> Findings:
    registry, key = settings.asset_registry, "platform:asset_registry"
    missing, no_effect = "missing-field", "no-effect"
    if registry.mode != "none" and not registry.name:
        yield Fault(missing, f"no `name` in `{key}`", "its name", "add `name:`", (key,))
    if registry.mode == "use" and bool(registry.stack) == bool(registry.resource_group):
        both = "both `stack` and" if registry.stack else "neither `stack` nor"
        message = f"{both} `resource_group` in `{key}`"
        hint = (
            "`stack: shared` names the stack that creates it, `resource_group` one made elsewhere"
        )
        yield Fault(missing, message, "one of the two", hint, (key,))
    if registry.mode == "none" and registry.name:
        message = f"a `name` in `{key}` with `mode: none`"
        hint = "add `mode: use` or `mode: create`, or delete it"
        yield Fault(no_effect, message, "no name", hint, (key, "name"))
    for field in ("stack", "resource_group", "subscription", "regions"):
        mode = "create" if field == "regions" else "use"
        if registry.mode != mode and getattr(registry, field):
            message = f"a `{field}` in `{key}` with `mode: {registry.mode}`"
            hint = f"delete it, or set `mode: {mode}`; a new registry takes it from its stack"
            yield Fault(no_effect, message, f"no {field}", hint, (key, field))


def _registry_alone(settings: Settings) -> Findings:
    """Check that a stack that creates the shared registry sets nothing of an environment."""
    if not settings.makes_registry:
        return
    storage = Storage(redundancy=settings.storage.redundancy)
    environment = {
        "network": settings.network != Network(),
        "storage": settings.storage != storage,
        "vault": settings.vault != Vault(),
        "workspace": settings.workspace != Workspace(),
        "images": settings.images != Images(),
        "feature_store": settings.feature_store != FeatureStore(),
        "clusters": bool(settings.clusters),
        "workstations": bool(settings.workstations),
        "endpoints": bool(settings.endpoints),
    }
    for field, is_there in environment.items():
        if is_there:
            message = f"`platform:{field}` next to `platform:asset_registry` with `mode: create`"
            expected = "a stack with only the registry"
            hint = "move the registry to Pulumi.shared.yaml, and set `mode: use`, `stack: shared`"
            yield Fault("registry-stack", message, expected, hint, (f"platform:{field}",))


def _storage(settings: Settings) -> Findings:
    storage = settings.storage
    if 0 < storage.nfs_share_gib < 100:
        message = f"`{STORAGE}.nfs_share_gib` is {storage.nfs_share_gib}"
        hint = "a premium share is billed for at least 100 GiB"
        keys: Keys = (STORAGE, "nfs_share_gib")
        yield Fault("wrong-value", message, "0, or 100 or more", hint, keys)
    # `infra sas` issues a SAS for one path of one container, and the program has one such secret.
    if storage.datastores == "sas" and len(settings.containers) > 1:
        message = f"`datastores: sas` with the containers {', '.join(settings.containers)}"
        expected = "one container: a SAS covers a path of one"
        hint = "keep one in `containers`, or set `datastores: identity`"
        yield Fault("several-containers", message, expected, hint, (STORAGE, "datastores"))
    if 0 < storage.delete_after_days <= storage.cool_after_days:
        days = f"{storage.delete_after_days} days, cool after {storage.cool_after_days}"
        expected = f"more than cool_after_days, {storage.cool_after_days}, or 0"
        keys = (STORAGE, "delete_after_days")
        yield Fault("lifecycle-days", f"deleted after {days}", expected, "0 never deletes", keys)


def _feature_store(settings: Settings) -> Findings:
    if settings.has_redis and not settings.has_features:
        key = "platform:feature_store"
        message = f"`redis` in `{key}` with `mode: none`"
        hint = "add `mode: create`, or delete it"
        yield Fault("no-effect", message, "no redis", hint, (key, "redis"))


def _workstations(settings: Settings) -> Findings:
    for index, machine in enumerate(settings.workstations):
        keys: Keys = (WORKSTATIONS, index)
        vm = machine.kind == "data-science-vm"
        if vm and not machine.ssh_key:
            message = f"`{machine.name}` has no `ssh_key`"
            hint = "add the public key of its administrator; passwords are off"
            yield Fault("missing-field", message, "a public key", hint, keys)
        if not vm and machine.ssh_key:
            message = f"`{machine.name}` is a compute instance, which does not accept SSH"
            hint = "delete it, or set `kind: data-science-vm`"
            yield Fault("no-effect", message, "no ssh_key", hint, (*keys, "ssh_key"))
        if vm and machine.idle_minutes != IDLE_MINUTES:
            message = f"`{machine.name}` is a VM, which runs until its user stops it"
            hint = "delete it, or set `kind: compute-instance`"
            yield Fault("no-effect", message, "no idle_minutes", hint, (*keys, "idle_minutes"))


def _address_space(settings: Settings) -> Findings:
    message = f"`{'.'.join(ADDRESS_SPACE)}` is '{settings.network.address_space}'"
    expected = "a private range (RFC 1918) from /16 to /24, such as 10.60.0.0/16"
    try:
        space = ipaddress.IPv4Network(settings.network.address_space)
    except ValueError as error:
        hint = "numbers up to 255, a slash, and 16 to 24"
        if "host bits" in str(error):
            meant = ipaddress.IPv4Network(settings.network.address_space, strict=False)
            hint = f"did you mean `{meant}`?"
        yield Fault("wrong-value", f"{message}: {error}", expected, hint, ADDRESS_SPACE)
        return
    private = any(space.subnet_of(range_) for range_ in _PRIVATE)
    if not 16 <= space.prefixlen <= 24 or not private:
        hint = "request a range from the network team"
        yield Fault("wrong-value", message, expected, hint, ADDRESS_SPACE)
    elif space.overlaps(_DOCKER):
        expected = f"no overlap with {_DOCKER}: nodes use it for Docker"
        hint = "choose another range, such as 172.18.0.0/16"
        yield Fault("wrong-value", message, expected, hint, ADDRESS_SPACE)
    if settings.network.isolation != "own" or settings.network.virtual_network:
        return
    # Every node needs an address, else a cluster stays smaller than declared (how-to-secure-
    # training-vnet, "Prerequisites"). The subnet of compute is a quarter of the range.
    room = space.num_addresses // 4 - RESERVED
    needed = sum(cluster.max_nodes for cluster in settings.clusters)
    needed += len(settings.machines("compute-instance"))
    if needed > room:
        message = f"`{space}` leaves {room} addresses to compute, which has up to {needed} nodes"
        expected = f"{needed} addresses: a quarter of the range, less {RESERVED}"
        hint = "choose a wider range (a smaller number after the /), or fewer nodes"
        yield Fault("too-few-addresses", message, expected, hint, ADDRESS_SPACE)


def _network_options(settings: Settings) -> Findings:
    """Check for options that need a virtual network, or another kind of isolation."""
    network, hosts = settings.network, settings.network.allowed_hosts
    yield from _repeated(_listed(hosts, NETWORK, "allowed_hosts"))
    if not settings.private:
        private_only: list[tuple[str, bool, Keys]] = [
            ("an NFS share", settings.storage.nfs_share_gib > 0, (STORAGE, "nfs_share_gib")),
            *(
                (
                    "a data-science VM",
                    machine.kind == "data-science-vm",
                    (WORKSTATIONS, index, "kind"),
                )
                for index, machine in enumerate(settings.workstations)
            ),
            ("`isolation: own`", network.isolation == "own", (NETWORK, "isolation")),
            ("service endpoints", network.service_endpoints, (NETWORK, "service_endpoints")),
            ("`allowed_hosts`, without effect,", bool(hosts), (NETWORK, "allowed_hosts")),
        ]
        for option, present, keys in private_only:
            if present:
                expected, hint = "`platform:exposure: private`", "set that, or delete the option"
                message = f"{option} with `exposure: starter`"
                yield Fault("needs-network", message, expected, hint, keys)
    # how-to-managed-network, "Limitations"
    elif network.isolation == "managed" and network.service_endpoints:
        message = "service endpoints with `isolation: managed`"
        expected = "`isolation: own`: a managed network has only private endpoints"
        hint = "set `isolation: own`, or delete service_endpoints: private endpoints exist anyway"
        yield Fault("needs-own-network", message, expected, hint, (NETWORK, "service_endpoints"))
    elif network.isolation == "own" and hosts:
        message = "`allowed_hosts` with `isolation: own`, where they have no effect"
        hint = "delete them: the routes and the firewall of our own network decide"
        keys = (NETWORK, "allowed_hosts")
        yield Fault("needs-managed-network", message, "`isolation: managed`", hint, keys)


# Settings without effect on an existing resource, which has its own.
_OF_LOGS = ("retention_days", "daily_gb")
_OF_REGISTRY = ("zone_redundant", "keep_untagged_days")


def _given(settings: Settings) -> Findings:
    """Check the settings of existing resources: missing requirements, settings without effect."""
    network, vault = settings.network, settings.vault
    inside = f"{network.virtual_network}/subnets/"
    nodes = network.isolation == "own" or bool(settings.machines("data-science-vm"))
    is_existing = bool(network.virtual_network)
    for field, is_used, user in (
        ("subnet", is_existing, "private endpoints in `virtual_network`"),
        ("compute_subnet", is_existing and nodes, "nodes in `virtual_network`"),
    ):
        id = getattr(network, field)
        if is_used and not id.lower().startswith(inside.lower()):
            message = f"`{field}` is {id or 'not set'}"
            hint = f"name a subnet of the network: {user} need it"
            keys: Keys = (NETWORK, field) if id else (NETWORK,)
            yield Fault("missing-subnet", message, f"{inside}…", hint, keys)
        elif id and not is_used:
            message, hint = f"`{field}` is not used", f"delete it: it is for {user}"
            yield Fault("no-effect", message, f"no {field}", hint, (NETWORK, field))
    routed = settings.private and bool(network.peer) and not is_existing
    own_runners = "`virtual_network` and `runners`"
    private = "`exposure: private`"
    for section, field, has_effect, reason in (
        (network, "virtual_network", settings.private, private),
        (network, "private_dns_zones", settings.private, private),
        (network, "peer", settings.private, private),
        (network, "runners", settings.private, private),
        (network, "runners_subnet", is_existing and bool(network.runners), own_runners),
        (network, "hub_firewall", routed, "a virtual network of this stack with a `peer`"),
        (settings.monitoring, "private_link_scope", settings.private, private),
    ):
        if getattr(section, field) and not has_effect:
            message, hint = f"`{field}` is not used", f"delete it: it needs {reason}"
            key = NETWORK if section is network else "platform:monitoring"
            yield Fault("no-effect", message, reason, hint, (key, field))
    yield from _hub(network)
    if vault.id and settings.workspace.customer_managed_key:
        message = "`workspace.customer_managed_key` with an existing vault (`vault.id`)"
        hint = "delete one: Azure ML needs a key version, known only for a new vault"
        keys = ("platform:workspace", "customer_managed_key")
        yield Fault("no-effect", message, "a vault of our own", hint, keys)
    if vault.key != Vault().key and not (vault.id and settings.storage.customer_managed_key):
        hint = "delete it, or set `id` and `storage.customer_managed_key`"
        yield Fault("no-effect", "`key` is not used", "no key", hint, ("platform:vault", "key"))
    for key, part, usual, given_field, fields in (
        ("platform:monitoring", settings.monitoring, Monitoring(), "workspace", _OF_LOGS),
        ("platform:vault", vault, Vault(), "id", ("soft_delete_days", "generation")),
        ("platform:workspace", settings.workspace, Workspace(), "name", ("generation",)),
        ("platform:images", settings.images, Images(), "registry", _OF_REGISTRY),
    ):
        for field in fields:
            if getattr(part, given_field) and getattr(part, field) != getattr(usual, field):
                message = f"`{field}` beside `{given_field}`, whose own setting applies"
                yield Fault("no-effect", message, f"no {field}", "delete one", (key, field))
    for tag in settings.tags:
        if tag.lower() in map(str.lower, (*OWN_TAGS, *settings.kept_tags)):
            hint = "delete it: the template sets this tag, or `kept_tags` says that others set it"
            yield Fault("duplicate-name", f"the tag `{tag}`", "another tag", hint, (TAGS, tag))


def _hub(network: Network) -> Findings:
    """Check that the hub is another network, with a private firewall address outside this one."""
    if network.peer and network.peer.lower() == network.virtual_network.lower():
        message, hint = "`peer` is `virtual_network`", "name the hub, or delete it"
        yield Fault("wrong-value", message, "another network", hint, (NETWORK, "peer"))
    if not network.hub_firewall:
        return
    try:
        address = ipaddress.IPv4Address(network.hub_firewall)
        is_ours = address in ipaddress.IPv4Network(network.address_space, strict=False)
        fits = not is_ours and any(address in range_ for range_ in _PRIVATE)
    except ValueError:
        fits = False
    if not fits:
        message = f"`hub_firewall` is {network.hub_firewall}"
        expected = f"a private address outside of {network.address_space}"
        hint = "ask the network team for it"
        yield Fault("wrong-value", message, expected, hint, (NETWORK, "hub_firewall"))


CHECKS: tuple[Callable[[Settings], Findings], ...] = (
    *(_environment, _region, _sizes, _nodes, _names, _asset_registry, _registry_alone),
    *(_storage, _feature_store, _workstations, _address_space, _network_options, _given),
)
