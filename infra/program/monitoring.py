"""Logs and metrics of all resources in one place, alerts, a budget that warns, and locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_azure_native import (
    applicationinsights,
    authorization,
    consumption,
    monitor,
    operationalinsights,
)

from infra.program.network import Network
from infra.program.site import Component, Options, Site

ALL_METRICS = ("AllMetrics",)
# Metric categories of a storage service, which has no `AllMetrics`.
STORAGE_METRICS = ("Capacity", "Transaction")
_CRITERIA = "Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria"


class Monitoring(Component):
    """Log Analytics, Application Insights on it, and the action group of alerts."""

    def __init__(self, name: str, site: Site, opts: Options = None) -> None:
        super().__init__("monitoring:Monitoring", name, opts, "monitoring")
        self._site, settings = site, site.settings.monitoring
        opts = pulumi.ResourceOptions(parent=self)
        self.logs: pulumi.Input[str] = settings.workspace or self._logs()
        self.insights = applicationinsights.Component(
            self.child("insights"),
            resource_name_=site.names.local("appi"),
            **site.place,
            kind="web",
            application_type="web",
            ingestion_mode="LogAnalytics",
            workspace_resource_id=self.logs,
            # Azure ML's inference server, which signs in by key (`app_insights_enabled`), then
            # sends nothing; logs of endpoints arrive through their diagnostic settings.
            disable_local_auth=True,
            public_network_access_for_ingestion=site.public_access,
            public_network_access_for_query=site.public_access,
            opts=opts,
        )
        self.alerts = monitor.ActionGroup(
            self.child("alerts"),
            action_group_name=site.names.local("ag"),
            group_short_name=site.names.platform,
            resource_group_name=site.group,
            location="Global",
            tags=site.tags,
            enabled=True,
            email_receivers=[
                monitor.MicrosoftCommonEmailReceiverArgs(
                    name="owner", email_address=site.settings.owner, use_common_alert_schema=True
                )
            ],
            opts=opts,
        )
        if not settings.workspace:
            self.diagnose("logs", self.logs)
        self.register_outputs({"logs": self.logs})

    def _logs(self) -> pulumi.Output[str]:
        """Create a Log Analytics workspace for the stack; return its id."""
        site, settings = self._site, self._site.settings.monitoring
        hidden = site.settings.makes_scope or settings.private_link_scope
        logs = operationalinsights.Workspace(
            self.child("logs"),
            workspace_name=site.names.local("log"),
            **site.place,
            sku=operationalinsights.WorkspaceSkuArgs(name="PerGB2018"),
            retention_in_days=settings.retention_days,
            workspace_capping=operationalinsights.WorkspaceCappingArgs(
                daily_quota_gb=settings.daily_gb
            ),
            features=operationalinsights.WorkspaceFeaturesArgs(
                disable_local_auth=True, enable_log_access_using_only_resource_permissions=True
            ),
            # Diagnostic settings still work, by a channel of Azure's own (private-link-security).
            public_network_access_for_ingestion=site.public_access,
            public_network_access_for_query="Disabled" if hidden else "Enabled",
            opts=pulumi.ResourceOptions(parent=self),
        )
        return pulumi.Output.from_input(logs.id)

    def connect(self, network: Network) -> None:
        """Create a private link scope for the stack's logs. The network then reaches no other Azure
        Monitor resource, to which a job could leak data.
        """
        site = self._site
        scope = monitor.PrivateLinkScope(
            self.child("scope"),
            scope_name=site.names.local("ampls"),
            resource_group_name=site.group,
            location="global",
            tags=site.tags,
            access_mode_settings=monitor.AccessModeSettingsArgs(
                ingestion_access_mode="PrivateOnly", query_access_mode="PrivateOnly"
            ),
            opts=pulumi.ResourceOptions(parent=self),
        )
        linked = [
            monitor.PrivateLinkScopedResource(
                self.child(f"scope-{name}"),
                name=name,
                scope_name=scope.name,
                resource_group_name=site.group,
                linked_resource_id=id,
                opts=pulumi.ResourceOptions(parent=scope),
            )
            for name, id in (("logs", self.logs), ("insights", self.insights.id))
        ]
        network.private_endpoint(self.child("scope"), scope.id, "azuremonitor", after=linked)

    def diagnose(
        self, name: str, resource: pulumi.Input[str], metrics: Sequence[str] = ALL_METRICS
    ) -> None:
        """Send all logs and the given metric categories of a resource to Log Analytics.

        Azure rejects unsupported categories (azure-monitor/reference/supported-metrics).
        """
        all_logs = monitor.DiagnosticsLogSettingsArgs(category_group="allLogs", enabled=True)
        selected = [
            monitor.DiagnosticsMetricSettingsArgs(category=category, enabled=True)
            for category in metrics
        ]
        monitor.DiagnosticSetting(
            self.child(f"diagnostics-{name}"),
            name="to-log-analytics",
            resource_uri=resource,
            workspace_id=self.logs,
            logs=[all_logs],
            metrics=selected,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def alert(
        self,
        name: str,
        resource: pulumi.Input[str],
        metric: str,
        above: int,
        *,
        aggregation: str = "Total",
        dimension: tuple[str, str] | None = None,
    ) -> None:
        """Alert the owner if a metric, aggregated over 15 minutes, exceeds `above`."""
        dimensions = [
            monitor.MetricDimensionArgs(name=key, operator="Include", values=[value])
            for key, value in ([dimension] if dimension else [])
        ]
        monitor.MetricAlert(
            self.child(f"alert-{name}"),
            rule_name=self._site.names.local("alert", name),
            resource_group_name=self._site.group,
            location="global",
            tags=self._site.tags,
            scopes=[resource],
            severity=2,
            enabled=True,
            auto_mitigate=True,
            evaluation_frequency="PT5M",
            window_size="PT15M",
            criteria=monitor.MetricAlertSingleResourceMultipleMetricCriteriaArgs(
                odata_type=_CRITERIA,
                all_of=[
                    monitor.MetricCriteriaArgs(
                        criterion_type="StaticThresholdCriterion",
                        name=name,
                        metric_name=metric,
                        operator="GreaterThan",
                        threshold=above,
                        time_aggregation=aggregation,
                        dimensions=dimensions,
                    )
                ],
            ),
            actions=[monitor.MetricAlertActionArgs(action_group_id=self.alerts.id)],
            opts=pulumi.ResourceOptions(parent=self),
        )


class Guardrails(Component):
    """A monthly budget and locks.

    `locked` are the resources that hold data, by name; `alerts` is the action group.

    The resource group has no lock, because it would stop clusters from releasing nodes. A lock also
    protects the resource's role assignments and private endpoints (azure-resource-manager/
    management/lock-resources), so an update that removes a cluster fails until `locks` is false.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        alerts: pulumi.Input[str],
        locked: Mapping[str, pulumi.Input[str]],
        opts: Options = None,
    ) -> None:
        # Policies read these settings: resource policies as inputs, stack policies as outputs.
        parameters = {
            "repository": site.settings.repository,
            "reviewers": site.settings.reviewers,
            "tenantId": site.settings.tenant,
            "subscriptionId": site.settings.subscription,
        }
        super().__init__("guardrails:Guardrails", name, opts, "guardrails", props=parameters)
        opts, settings = pulumi.ResourceOptions(parent=self), site.settings.guardrails
        consumption.Budget(
            self.child("budget"),
            # The name has the month, because Azure cannot change an existing budget's start.
            budget_name=site.names.local("budget", settings.budget_from),
            scope=site.group_id,
            amount=settings.monthly_budget,
            category="Cost",
            time_grain="Monthly",
            time_period=consumption.BudgetTimePeriodArgs(
                start_date=f"{settings.budget_from}-01T00:00:00Z"
            ),
            notifications={
                "spent-half": _notice(site, alerts, 50, "Actual"),
                "spent-most": _notice(site, alerts, 90, "Actual"),
                "will-exceed": _notice(site, alerts, 100, "Forecasted"),
            },
            opts=opts,
        )
        if settings.locks:
            for name, resource in locked.items():
                authorization.ManagementLockByScope(
                    self.child(f"lock-{name}"),
                    lock_name="no-delete",
                    level="CanNotDelete",
                    scope=resource,
                    notes="Holds data. `platform:guardrails.locks: false` removes the lock, which"
                    " an update that removes roles on the resource needs.",
                    opts=opts,
                )
        self.register_outputs(parameters)


def _notice(
    site: Site, alerts: pulumi.Input[str], percent: int, kind: str
) -> consumption.NotificationArgs:
    return consumption.NotificationArgs(
        enabled=True,
        operator="GreaterThan",
        threshold=percent,
        threshold_type=kind,
        contact_emails=[site.settings.owner],
        contact_groups=[alerts],
    )
