"""What the doctor says of a few declared resources, and where a subscription keeps what it asks."""

from __future__ import annotations

from typing import Any

from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.live.doctor.examination import examine
from infra.settings import Settings
from tests.infra.live.declared import SUBSCRIPTION, resources

HERE = f"/subscriptions/{SUBSCRIPTION}/providers"
PROVIDERS = (
    "Microsoft.Storage", "Microsoft.KeyVault", "Microsoft.ManagedIdentity",
    "Microsoft.MachineLearningServices",
)  # fmt: skip
USAGES = f"{HERE}/Microsoft.MachineLearningServices/locations/westeurope/usages"
PERMISSIONS = f"{HERE}/Microsoft.Authorization/permissions"


def usage(family: str, limit: int, used: int = 0) -> dict[str, Any]:
    return {"name": {"value": family}, "limit": limit, "currentValue": used}


def said(settings: Settings, arm: Arm, *more: Any) -> dict[str, Check]:
    return {one.name: one for one in examine(settings, [*resources(), *more], arm)}


def wrong(found: dict[str, Check]) -> dict[str, str]:
    return {name: one.verdict for name, one in found.items() if one.verdict != "ok"}
