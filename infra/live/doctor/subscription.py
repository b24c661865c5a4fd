"""The subscription itself: of the tenant that is declared, and in a state that takes changes."""

from __future__ import annotations

from collections.abc import Iterator

from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.settings import Settings

# The version of rest/api/resources/subscriptions/get.
SUBSCRIPTIONS = "2022-12-01"
# cost-management-billing/manage/subscription-states: all operations, for some time at least.
_OPEN = {"enabled": "ok", "warned": "warning", "pastdue": "warning"}


def subscription(settings: Settings, arm: Arm) -> Iterator[Check]:
    """A disabled one is read as any other and refuses every change."""
    found = arm.get(f"/subscriptions/{arm.subscription}", SUBSCRIPTIONS) or {}
    tenant, state = str(found.get("tenantId") or ""), str(found.get("state") or "unknown")
    if tenant and tenant.lower() != settings.tenant.lower():
        said = f"of tenant {tenant}, declared is {settings.tenant}"
        yield Check("subscription", "error", said, "azure-native:tenantId")
    elif state.lower() not in _OPEN:
        hint = "reactivate it: nothing in it can be changed"
        yield Check("subscription", "error", f"its state is {state}", hint)
    elif state.lower() != "enabled":
        yield Check("subscription", "warning", f"its state is {state}: it will be disabled")
    else:
        yield Check("subscription", "ok", "enabled, of the tenant that is declared")
