"""Rules of the managed network: what compute reaches, and by which way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from policies.infra.limits import Limits
from policies.infra.reach import inside
from policies.infra.rule import UNKNOWN, Item, Rule
from policies.infra.workspace import COMPUTE, WORKSPACE

# A host, or all hosts of a domain that somebody has registered; `*.com` is none.
_HOST = re.compile(r"(\*\.)?([\w-]+\.)+[\w-]{2,}")
# Service tags of whatever anybody runs: virtual-network/service-tags-overview.
_ANYBODY = ("internet", "azurecloud")
_NETWORK = "managedNetwork"


def _isolation(items: Sequence[Item], limits: Limits) -> Iterator[tuple[Item, str]]:
    """A managed network that lets out what is approved, or all compute in a subnet of ours.

    A job that names no cluster runs on nodes of the workspace, elsewhere unless it says where.
    """
    computes = [item for item in items if item.kind == COMPUTE]
    ours = bool(computes) and all(item.at("properties.properties.subnet") for item in computes)
    for item in items:
        mode = item.at(f"{_NETWORK}.isolationMode", "Disabled")
        if item.kind != WORKSPACE or mode == "AllowOnlyApprovedOutbound":
            continue
        if not ours:
            yield item, f"`isolationMode` is {mode}, and compute is in no subnet of ours"
        elif not item.at("serverlessComputeSettings.serverlessComputeCustomSubnet"):
            yield item, "`serverlessComputeCustomSubnet` is not set, for jobs that name no cluster"


def _endpoint(item: Item, limits: Limits) -> Iterator[str]:
    if item.at(f"{_NETWORK}.isolationMode") == "Disabled":
        return  # `workspace-isolation` says whether our own network takes its place
    rules = item.each(f"{_NETWORK}.outboundRules")
    if not any(one.at("type") == "PrivateEndpoint" for one in rules):
        yield "no outbound rule of the managed network is a private endpoint"


def _everything(item: Item, limits: Limits) -> Iterator[str]:
    """Approved outbound is open when what is approved is everything."""
    for rule in item.each(f"{_NETWORK}.outboundRules"):
        where = rule.at("destination")
        if rule.at("type") == "PrivateEndpoint" or (
            rule.at("type") == "FQDN" and _HOST.fullmatch(str(where))
        ):
            continue
        if rule.at("type") != "ServiceTag" or not _narrow(rule):
            yield f"an outbound rule lets compute reach {where}"


def _narrow(rule: Item) -> bool:
    """Address prefixes take the place of the tag where there are any."""
    prefixes = rule.at("destination.addressPrefixes", [])
    if prefixes:
        return prefixes != UNKNOWN and all(inside(str(one)) for one in prefixes)
    tag = str(rule.at("destination.serviceTag", UNKNOWN)).lower()
    return tag != UNKNOWN and not tag.startswith(_ANYBODY)


RULES: tuple[Rule, ...] = (
    Rule(
        "workspace-isolation",
        "Compute reaches only what was approved.",
        "Azure Policy 6ddb1705-c8cf-450e-aa4b-19ad6703c440, AVM",
        whole=_isolation,
    ),
    Rule(
        "workspace-outbound-endpoint",
        "The managed network reaches storage by a private endpoint.",
        "CKV_AZURE_243",
        (WORKSPACE,),
        _endpoint,
    ),
    Rule(
        "workspace-outbound",
        "What was approved is not everything.",
        "own",
        (WORKSPACE,),
        _everything,
    ),
)
