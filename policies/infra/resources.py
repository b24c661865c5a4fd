"""Rules for every resource: its kind, provider, `ignoreChanges`, tags and region."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from policies.infra.limits import Limits
from policies.infra.rule import Item, Kind, Rules

RESOURCE_KINDS = frozenset(Kind)
# Prefixes of component types, which only group resources; the rules check the resources.
_COMPONENTS = ("platform:", "pulumi:pulumi:Stack")
# Pulumi creates the default provider from the stack's settings. Any other may use another
# subscription, where the program only reads the shared registry.
_PROVIDER, _DEFAULT = "pulumi:providers:azure-native", "default"
# Kind → inputs that `ignoreChanges` may name, because others set them or Azure never changes them.
_MAY_IGNORE: Mapping[str, frozenset[str]] = {
    Kind.ENDPOINT: frozenset({"properties.traffic", "properties.mirrorTraffic", "tags"}),
    Kind.SHARE: frozenset({"enabledProtocols"}),
    # Azure ML's studio adds its own rules.
    Kind.BLOB_SERVICE: frozenset({"cors"}),
}
_TAG = re.compile(r'tags\["(.+)"\]')
REGIONAL = (
    *(Kind.WORKSPACE, Kind.COMPUTE, Kind.ENDPOINT, Kind.ML_REGISTRY, Kind.ACCOUNT, Kind.VAULT),
    *(Kind.CONTAINER_REGISTRY, Kind.PRIVATE_ENDPOINT, Kind.MACHINE, Kind.RESOURCE_GROUP),
    *(Kind.IDENTITY, Kind.REDIS),
    *(Kind.LOGS, Kind.APPLICATION_INSIGHTS, Kind.NETWORK, Kind.SECURITY_GROUP, Kind.NETWORK_CARD),
    *(Kind.NAT_GATEWAY, Kind.PUBLIC_ADDRESS, Kind.MACHINE_EXTENSION, Kind.ROUTE_TABLE),
)
_GLOBAL = (Kind.DNS_ZONE, Kind.DNS_LINK, Kind.KEY, Kind.ACTION_GROUP, Kind.ALERT, Kind.SCOPE)
TAGGED = (*REGIONAL, *_GLOBAL)


RULES = Rules()


@RULES.resource("known-kind", "Every resource is of a kind that rules cover.", "own")
def _kind(item: Item, limits: Limits) -> Iterator[str]:
    if item.kind not in (*RESOURCE_KINDS, _PROVIDER) and not item.kind.startswith(_COMPONENTS):
        yield f"no rule covers `{item.kind}`: add it to Kind in policies/infra/rule.py"


@RULES.resource("own-provider", "Resources are made in the stack's own subscription.", "own")
def _default_provider_only(item: Item, limits: Limits) -> Iterator[str]:
    if item.provider and not item.provider.startswith(_DEFAULT):
        yield f"uses the provider `{item.provider}`, possibly with another subscription"


@RULES.resource("known-changes", "Changes made by hand are undone.", "own")
def _ignored_changes(item: Item, limits: Limits) -> Iterator[str]:
    for path in item.ignores:
        tag = _TAG.fullmatch(path)  # of `platform:kept_tags`
        is_others = tag is not None and tag[1] not in limits.tags
        if not is_others and path not in _MAY_IGNORE.get(item.kind, frozenset()):
            yield f"`ignoreChanges` of `{path}`: a change made by hand would stay"


@RULES.resource("tags", "Resources have the required tags.", "AZR-000166", *TAGGED)
def _tags(item: Item, limits: Limits) -> Iterator[str]:
    missing = [tag for tag in limits.tags if not item.value("tags", {}).get(tag)]
    if missing:
        yield f"no tag {', '.join(missing)}"


@RULES.resource("regions", "Resources are in allowed regions.", "AZR-000167", *REGIONAL)
def _regions(item: Item, limits: Limits) -> Iterator[str]:
    for holder in (item, *item.members("regionDetails")):  # the replicas of a shared registry
        region = str(holder.value("location", "")).lower().replace(" ", "")
        if region not in limits.regions:
            allowed = ", ".join(limits.regions)
            yield f"`location` is {region or 'not set'}, must be one of {allowed}"
