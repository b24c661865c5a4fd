"""Rules for logs and alerts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from policies.infra.limits import Limits
from policies.infra.rule import Item, Kind, Rules, StackFindings, sources_of

LOGGED = (
    *(Kind.WORKSPACE, Kind.ENDPOINT, Kind.ML_REGISTRY, Kind.VAULT, Kind.CONTAINER_REGISTRY),
    *(Kind.BLOB_SERVICE, Kind.LOGS, Kind.NETWORK, Kind.SECURITY_GROUP, Kind.REDIS_DATABASE),
)

RULES = Rules()


@RULES.stack("diagnostics", "Logs are sent to Log Analytics.", "AVM WAF")
def _diagnostics(items: Sequence[Item], limits: Limits) -> StackFindings:

    def sends(setting: Item) -> bool:
        is_enabled = any(log.value("enabled") is True for log in setting.members("logs"))
        goes_to = setting.sources("workspaceId") or limits.allows_id(
            str(setting.value("workspaceId"))
        )
        return is_enabled and bool(goes_to)

    logged = sources_of(items, Kind.DIAGNOSTICS, "resourceUri", sends)
    for item in items:
        if item.kind in LOGGED and item.urn not in logged:
            yield item, "no diagnostic setting sends its logs to Log Analytics"


@RULES.stack("alerts", "Failures raise an alert.", "AVM WAF")
def _alerts(items: Sequence[Item], limits: Limits) -> StackFindings:
    """An enabled alert uses an enabled action group with a receiver; a budget's notices use such a
    group too.
    """
    groups = {
        item.urn
        for item in items
        if item.kind == Kind.ACTION_GROUP
        and item.value("enabled", True) is True
        and any(_has_receiver(key, value) for key, value in item.props.items())
    }
    alerted = sources_of(
        items,
        Kind.ALERT,
        "scopes",
        lambda alert: alert.value("enabled") is True and groups & alert.sources("actions"),
    )
    for item in items:
        if item.kind in (Kind.WORKSPACE, Kind.ENDPOINT) and item.urn not in alerted:
            yield item, "no alert reports its failures to anybody"
        if item.kind == Kind.BUDGET and not groups & item.sources("notifications"):
            yield item, "its notices reach no enabled action group with a receiver"


def _has_receiver(key: str, value: object) -> bool:
    return key.endswith("Receivers") and isinstance(value, list) and bool(value)


@RULES.resource("alert-fires", "An alert can fire.", "own", Kind.ALERT)
def _fires(item: Item, limits: Limits) -> Iterator[str]:
    for criterion in item.members("criteria.allOf"):
        if criterion.value("criterionType") == "DynamicThresholdCriterion":
            continue
        threshold, most = criterion.value("threshold"), limits.max_alert_threshold
        if not isinstance(threshold, int | float) or threshold > most:
            yield f"`threshold` is {threshold}, at most {most} here"
        if not str(criterion.value("operator")).startswith("GreaterThan"):
            yield f"`operator` is {criterion.value('operator')}, must be GreaterThan"


@RULES.resource("logs-kept", "Logs are kept long enough, below a cap.", "own", Kind.LOGS)
def _retention(item: Item, limits: Limits) -> Iterator[str]:
    days, cap = item.value("retentionInDays"), item.value("workspaceCapping.dailyQuotaGb")
    if not isinstance(days, int) or days < limits.min_log_days:
        yield f"`retentionInDays` is {days}, at least {limits.min_log_days} here"
    # -1 means no cap; Azure drops logs beyond the cap.
    if not isinstance(cap, int | float) or not 1 <= cap <= limits.max_log_gb:
        yield f"`workspaceCapping.dailyQuotaGb` is {cap}, from 1 to {limits.max_log_gb} here"


@RULES.stack("logs-private", "Logs of a private stack are not reached from outside.", "own")
def _private(items: Sequence[Item], limits: Limits) -> StackFindings:
    """No monitoring resource of a private stack is public.

    A stack is private if one of its resources disables public access. If it has no DNS zones, the
    private link scope of its logs is managed elsewhere, so queries from outside are allowed.
    """
    kinds = {item.kind for item in items}
    is_private = any(item.value("publicNetworkAccess") == "Disabled" for item in items)
    ingestion, query = "publicNetworkAccessForIngestion", "publicNetworkAccessForQuery"
    modes = ("accessModeSettings.ingestionAccessMode", "accessModeSettings.queryAccessMode")
    required: Mapping[str, tuple[tuple[str, ...], str]] = {
        Kind.APPLICATION_INSIGHTS: ((ingestion, query), "Disabled"),
        Kind.LOGS: ((ingestion, *([query] if Kind.DNS_ZONE in kinds else [])), "Disabled"),
        Kind.SCOPE: (modes, "PrivateOnly"),  # else the network reaches the logs of others
    }
    for item in items if is_private else ():
        fields, value = required.get(item.kind, ((), ""))
        for field in fields:
            if item.value(field) != value:
                yield item, f"`{field}` is {item.value(field)}, must be {value}"


@RULES.resource(
    "insights-workspace",
    "Application Insights stores its data in Log Analytics.",
    "AZR-000069",
    Kind.APPLICATION_INSIGHTS,
)
def _insights(item: Item, limits: Limits) -> Iterator[str]:
    if not item.value("workspaceResourceId"):
        yield "`workspaceResourceId` is not set"


RULES.resource("logs-local-auth", "Logs cannot be written by key.", "own", Kind.LOGS).must(
    "features.disableLocalAuth", True, default=False
)
RULES.resource(
    "insights-local-auth", "Metrics cannot be written by key.", "own", Kind.APPLICATION_INSIGHTS
).must("disableLocalAuth", True, default=False)
RULES.resource(
    "insights-masked", "Addresses of callers are masked.", "own", Kind.APPLICATION_INSIGHTS
).must("disableIpMasking", False, default=False)
