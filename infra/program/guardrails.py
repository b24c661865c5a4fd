"""A budget that warns, and locks where they are safe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import authorization, consumption

from infra.program.site import Site
from infra.settings.model import Guardrails as Settings


@dataclass(frozen=True)
class GuardrailsArgs:
    """`locked` are the resources that hold data, by name; `alerts` is the action group."""

    site: Site
    settings: Settings
    owner: str
    alerts: pulumi.Input[str]
    locked: Mapping[str, pulumi.Input[str]]


class Guardrails(pulumi.ComponentResource):
    """A monthly budget and locks.

    The resource group has no lock, which would keep clusters from releasing nodes. A lock also
    protects roles on the resource and private endpoints to it (azure-resource-manager/management/
    lock-resources): an update that removes a cluster fails until `locks` is false.
    """

    def __init__(self, name: str, args: GuardrailsArgs) -> None:
        super().__init__("platform:guardrails:Guardrails", name)
        site, opts = args.site, pulumi.ResourceOptions(parent=self)
        consumption.Budget(
            "budget",
            # With the month: Azure refuses to change the start of an existing budget.
            budget_name=site.names.local("budget", args.settings.budget_from),
            scope=site.group_id,
            amount=args.settings.monthly_budget,
            category="Cost",
            time_grain="Monthly",
            time_period=consumption.BudgetTimePeriodArgs(
                start_date=f"{args.settings.budget_from}-01T00:00:00Z"
            ),
            notifications={
                "spent-half": _notice(args, 50, "Actual"),
                "spent-most": _notice(args, 90, "Actual"),
                "will-exceed": _notice(args, 100, "Forecasted"),
            },
            opts=opts,
        )
        if args.settings.locks:
            for name, resource in args.locked.items():
                authorization.ManagementLockByScope(
                    f"lock-{name}",
                    lock_name="no-delete",
                    level="CanNotDelete",
                    scope=resource,
                    notes="Holds data. `platform:guardrails.locks: false` removes the lock, which"
                    " an update that removes roles on the resource needs.",
                    opts=opts,
                )
        self.register_outputs({})


def _notice(args: GuardrailsArgs, percent: int, kind: str) -> consumption.NotificationArgs:
    return consumption.NotificationArgs(
        enabled=True,
        operator="GreaterThan",
        threshold=percent,
        threshold_type=kind,
        contact_emails=[args.owner],
        contact_groups=[args.alerts],
    )
