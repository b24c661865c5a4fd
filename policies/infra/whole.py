"""Rules of a whole stack: what belongs together is there; and of every resource: tags, regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from policies.infra.data import ACCOUNT, IMAGES, VAULT
from policies.infra.limits import Limits
from policies.infra.reach import MACHINE
from policies.infra.rule import Item, Rule
from policies.infra.workspace import ASSETS, COMPUTE, ENDPOINT, WORKSPACE

PRIVATE = "network:PrivateEndpoint"
NAMES = "network:PrivateDnsZoneGroup"
ZONE = "privatedns:PrivateZone"
LINK = "privatedns:VirtualNetworkLink"
# What holds or serves data → the parts of it that a private endpoint has to lead to.
REACHED: Mapping[str, tuple[str, ...]] = {
    WORKSPACE: ("amlworkspace",),
    ASSETS: ("amlregistry",),
    VAULT: ("vault",),
    IMAGES: ("registry",),
}
# What the workspace stands on → its kind. What is left out of these, Azure ML makes by itself, a
# registry with an administrator's password among them (how-to-use-managed-identities).
PARTS: Mapping[str, str] = {
    "storageAccount": ACCOUNT,
    "keyVault": VAULT,
    "containerRegistry": IMAGES,
    "applicationInsights": "applicationinsights:Component",
}
# Types that are created in a place, and with those that are everywhere: types that take tags.
PLACED = (
    *(WORKSPACE, COMPUTE, ENDPOINT, ASSETS, ACCOUNT, VAULT, IMAGES, PRIVATE, MACHINE),
    *("resources:ResourceGroup", "managedidentity:UserAssignedIdentity"),
    *("operationalinsights:Workspace", "applicationinsights:Component"),
    *("network:VirtualNetwork", "network:NetworkSecurityGroup", "network:NetworkInterface"),
    *("network:NatGateway", "network:PublicIPAddress", "compute:VirtualMachineExtension"),
)
TAGGED = (*PLACED, ZONE, LINK, "keyvault:Key", "monitor:ActionGroup", "monitor:MetricAlert")
Found = Iterator[tuple[Item, str]]


def _private_endpoints(items: Sequence[Item], limits: Limits) -> Found:
    """Ids are not known in a preview: what an endpoint leads to is what it was made from."""
    led: dict[str, list[Item]] = {}
    for item in items:
        if item.kind == PRIVATE:
            for urn in item.uses.get("privateLinkServiceConnections", ()):
                led.setdefault(urn, []).append(item)
    named = {
        urn
        for item in items
        if item.kind == NAMES
        for urn in item.uses.get("privateEndpointName", ())
    }
    for item in items:
        for part in _parts(item):
            leading = [one for one in led.get(item.urn, []) if part in _groups(one)]
            if not leading:
                yield item, f"no private endpoint leads to its `{part}`"
            elif not any(one.urn in named for one in leading):
                yield item, f"the private endpoint of its `{part}` has no name in a DNS zone"


def _parts(item: Item) -> tuple[str, ...]:
    """A lake is read through `dfs`, a workspace keeps notebooks in `file`, a share has no blobs."""
    if item.kind != ACCOUNT:
        return REACHED.get(item.kind, ())
    if item.at("kind") == "FileStorage":
        return ("file",)
    return ("blob", "dfs") if item.at("isHnsEnabled") is True else ("blob", "file")


def _private_names(items: Sequence[Item], limits: Limits) -> Found:
    """A name leads to an endpoint when its zone is there and the network asks it."""
    zones = {item.urn for item in items if item.kind == ZONE}
    asked = {
        urn
        for item in items
        if item.kind == LINK and item.uses.get("virtualNetwork")
        for urn in item.uses.get("privateZoneName", ())
    }
    for item in items:
        if item.kind == NAMES:
            used = item.uses.get("privateDnsZoneConfigs", ())
            if not used or any(urn not in zones for urn in used):
                yield item, "names a DNS zone that is not there"
            elif any(urn not in asked for urn in used):
                yield item, "names a DNS zone that no network asks"


def _groups(endpoint: Item) -> list[str]:
    connections = endpoint.each("privateLinkServiceConnections")
    return [group for one in connections for group in one.at("groupIds", [])]


def _workspace_names(items: Sequence[Item], limits: Limits) -> Found:
    zones = {item.called for item in items if item.kind == ZONE}
    for item in items:
        if item.kind == WORKSPACE:
            for zone in ("privatelink.api.azureml.ms", "privatelink.notebooks.azure.net"):
                if zone not in zones:
                    yield item, f"no DNS zone `{zone}`"


def _parts_of_workspace(items: Sequence[Item], limits: Limits) -> Found:
    kinds = {item.urn: item.kind for item in items}
    for item in items:
        for part, kind in PARTS.items() if item.kind == WORKSPACE else ():
            if kind not in {kinds.get(urn) for urn in item.uses.get(part, ())}:
                yield item, f"`{part}` is none that is declared here, where rules see it"


def _defender(items: Sequence[Item], limits: Limits) -> Found:
    kept = {
        urn
        for item in items
        if item.kind == "security:DefenderForStorage" and item.at("properties.isEnabled") is True
        for urn in item.uses.get("resourceId", ())
    }
    for item in items:
        if item.kind == ACCOUNT and item.urn not in kept:
            yield item, "Defender for Storage is not on"


def _tags(item: Item, limits: Limits) -> Iterator[str]:
    missing = [tag for tag in limits.tags if not item.at("tags", {}).get(tag)]
    if missing:
        yield f"no tag {', '.join(missing)}"


def _regions(item: Item, limits: Limits) -> Iterator[str]:
    for where in (item, *item.each("regionDetails")):  # where a shared registry has its copies
        place = str(where.at("location", "")).lower().replace(" ", "")
        if place not in limits.regions:
            yield f"`location` is {place or 'not set'}, must be one of {', '.join(limits.regions)}"


RULES: tuple[Rule, ...] = (
    Rule(
        "private-endpoints",
        "What holds data is reached through a private endpoint with a name.",
        "CKV2_AZURE_32 CKV2_AZURE_33 AVM",
        whole=_private_endpoints,
    ),
    Rule(
        "private-names",
        "The name of a private endpoint is found from the network.",
        "CKV_AZURE_243 AVM",
        whole=_private_names,
    ),
    Rule(
        "workspace-names",
        "Both zones of a workspace's names are there: api and notebooks.",
        "CKV_AZURE_243 AVM",
        whole=_workspace_names,
    ),
    Rule(
        "workspace-parts",
        "A workspace stands on what the rules have seen.",
        "own",
        whole=_parts_of_workspace,
    ),
    Rule("storage-defender", "Defender watches storage.", "AZR-000296", whole=_defender),
    Rule("tags", "Everything says whose it is.", "AZR-000166", TAGGED, _tags),
    Rule("regions", "Everything is where it may be.", "AZR-000167", PLACED, _regions),
)
