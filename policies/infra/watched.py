"""Rules of what is on record, who is told, and what can be brought back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.data import ACCOUNT, BLOBS, IMAGES, VAULT
from policies.infra.limits import Limits
from policies.infra.rights import LOCK
from policies.infra.rule import Item, Rule, must
from policies.infra.workspace import ASSETS, ENDPOINT, WORKSPACE

LOGS = "operationalinsights:Workspace"
TOLD = "monitor:ActionGroup"
OBSERVED = (
    *(WORKSPACE, ENDPOINT, ASSETS, VAULT, IMAGES, BLOBS, LOGS),
    *("network:VirtualNetwork", "network:NetworkSecurityGroup"),
)
_KEPT_DAYS = 30
Found = Iterator[tuple[Item, str]]


def _diagnostics(items: Sequence[Item], limits: Limits) -> Found:
    seen = {
        urn
        for item in items
        if item.kind == "monitor:DiagnosticSetting"
        and item.uses.get("workspaceId")
        and any(log.at("enabled") is True for log in item.each("logs"))
        for urn in item.uses.get("resourceUri", ())
    }
    for item in items:
        if item.kind in OBSERVED and item.urn not in seen:
            yield item, "its logs go nowhere"


def _alerts(items: Sequence[Item], limits: Limits) -> Found:
    """An alert that is on, to a group that is on and has somebody in it."""
    somebody = {
        item.urn
        for item in items
        if item.kind == TOLD
        and item.at("enabled", True) is True
        and any(value for key, value in item.props.items() if _receives(key, value))
    }
    alerted = {
        urn
        for item in items
        if item.kind == "monitor:MetricAlert"
        and item.at("enabled") is True
        and somebody & {*item.uses.get("actions", ())}
        for urn in item.uses.get("scopes", ())
    }
    for item in items:
        if item.kind in (WORKSPACE, ENDPOINT) and item.urn not in alerted:
            yield item, "no alert tells anybody of its failures"


def _receives(key: str, value: object) -> bool:
    return key.endswith("Receivers") and isinstance(value, list) and bool(value)


def _days(item: Item, limits: Limits) -> Iterator[str]:
    days = item.at("retentionInDays")
    if not isinstance(days, int) or days < _KEPT_DAYS:
        yield f"`retentionInDays` is {days}, at least {_KEPT_DAYS}"


def _insights(item: Item, limits: Limits) -> Iterator[str]:
    if not item.at("workspaceResourceId"):
        yield "`workspaceResourceId` is not set"


def _recoverable(items: Sequence[Item], limits: Limits) -> Found:
    kept = {urn for item in items if item.kind == BLOBS for urn in item.uses.get("accountName", ())}
    for item in items:
        if item.kind == ACCOUNT and item.at("kind") != "FileStorage" and item.urn not in kept:
            yield item, "nothing says how long a delete can be undone"


def _kept(items: Sequence[Item], limits: Limits) -> Found:
    """One of the two is enough: an update that removes a cluster needs the locks away."""
    locked = {urn for item in items if item.kind == LOCK for urn in item.uses.get("scope", ())}
    for item in items:
        if item.kind in (ACCOUNT, VAULT, IMAGES) and not item.protected and item.urn not in locked:
            yield item, "has no lock, and Pulumi's `protect` is not set"


RULES: tuple[Rule, ...] = (
    Rule("diagnostics", "What happens is on record.", "AVM WAF", whole=_diagnostics),
    Rule("alerts", "Somebody is told of failures.", "AVM WAF", whole=_alerts),
    Rule("logs-kept", "Logs are there for a month and more.", "own", (LOGS,), _days),
    must(
        "logs-local-auth",
        LOGS,
        "features.disableLocalAuth",
        (True,),
        "Nobody writes logs by a key.",
        "own",
        False,
    ),
    Rule(
        "insights-workspace",
        "Application Insights keeps its data in Log Analytics.",
        "AZR-000069",
        ("applicationinsights:Component",),
        _insights,
    ),
    Rule(
        "storage-recoverable",
        "Every account says how long a delete can be undone.",
        "CKV2_AZURE_38",
        whole=_recoverable,
    ),
    Rule("data-kept", "What holds data is not deleted by a slip.", "own", whole=_kept),
)
