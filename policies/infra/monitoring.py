"""Rules of logs and alerts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policies.infra.limits import Limits
from policies.infra.rule import Item, Kind, Rules, StackFindings, sources_of

LOGGED = (
    *(Kind.WORKSPACE, Kind.ENDPOINT, Kind.ML_REGISTRY, Kind.VAULT, Kind.CONTAINER_REGISTRY),
    *(Kind.BLOB_SERVICE, Kind.LOGS, Kind.NETWORK, Kind.SECURITY_GROUP, Kind.REDIS_DATABASE),
)
_SHORTEST_RETENTION = 30  # days


RULES = Rules()


@RULES.stack("diagnostics", "Logs are sent to Log Analytics.", "AVM WAF")
def _diagnostics(items: Sequence[Item], limits: Limits) -> StackFindings:

    def sends(of: Item) -> bool:
        is_enabled = any(log.at("enabled") is True for log in of.each("logs"))
        goes_to = of.sources("workspaceId") or limits.knows(str(of.at("workspaceId")))
        return is_enabled and bool(goes_to)

    logged = sources_of(items, Kind.DIAGNOSTICS, "resourceUri", sends)
    for item in items:
        if item.kind in LOGGED and item.urn not in logged:
            yield item, "no diagnostic setting sends its logs to Log Analytics"


@RULES.stack("alerts", "Failures raise an alert.", "AVM WAF")
def _alerts(items: Sequence[Item], limits: Limits) -> StackFindings:
    """The alert and its action group are enabled, and the group has a receiver; a budget's notices
    use one too, where nothing else of a stack raises alerts.
    """
    groups = {
        item.urn
        for item in items
        if item.kind == Kind.ACTION_GROUP
        and item.at("enabled", True) is True
        and any(_has_receiver(key, value) for key, value in item.props.items())
    }
    alerted = sources_of(
        *(items, Kind.ALERT, "scopes"),
        lambda of: of.at("enabled") is True and groups & of.sources("actions"),
    )
    for item in items:
        if item.kind in (Kind.WORKSPACE, Kind.ENDPOINT) and item.urn not in alerted:
            yield item, "no alert reports its failures to anybody"
        if item.kind == Kind.BUDGET and not groups & item.sources("notifications"):
            yield item, "its notices reach no enabled action group with a receiver"


def _has_receiver(key: str, value: object) -> bool:
    return key.endswith("Receivers") and isinstance(value, list) and bool(value)


@RULES.resource("logs-kept", "Logs are kept for 30 days or more.", "own", Kind.LOGS)
def _retention(item: Item, limits: Limits) -> Iterator[str]:
    days = item.at("retentionInDays")
    if not isinstance(days, int) or days < _SHORTEST_RETENTION:
        yield f"`retentionInDays` is {days}, at least {_SHORTEST_RETENTION}"


@RULES.resource(
    "insights-workspace",
    "Application Insights stores its data in Log Analytics.",
    "AZR-000069",
    Kind.APPLICATION_INSIGHTS,
)
def _insights(item: Item, limits: Limits) -> Iterator[str]:
    if not item.at("workspaceResourceId"):
        yield "`workspaceResourceId` is not set"


RULES.resource("logs-local-auth", "Logs cannot be written by key.", "own", Kind.LOGS).must(
    "features.disableLocalAuth", True, default=False
)
