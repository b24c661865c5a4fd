"""The doctor's checks of a few declared resources, and the paths of its requests."""

from __future__ import annotations

from typing import Any

from infra.live.arm import Arm
from infra.live.check import Check
from infra.live.doctor import examine
from infra.settings.model import Settings
from tests.infra.live.declared import SUBSCRIPTION, resources

HERE = f"/subscriptions/{SUBSCRIPTION}/providers"
PROVIDERS = (
    "Microsoft.Storage", "Microsoft.KeyVault", "Microsoft.ManagedIdentity",
    "Microsoft.MachineLearningServices",
)  # fmt: skip
KIND = "providers/Microsoft.MachineLearningServices"
USAGES = f"{HERE}/Microsoft.MachineLearningServices/locations/westeurope/usages"
PERMISSIONS = f"{HERE}/Microsoft.Authorization/permissions"


def usage(
    family: str, limit: int, used: int = 0, *, spot: bool = False, workspace: str = ""
) -> dict[str, Any]:
    """An entry as Azure ML has it: the name is the same for dedicated and low-priority cores, of
    the subscription and of a workspace; the type and the id tell them apart.
    """
    owner = f"resourceGroups/g/{KIND}/workspaces/{workspace}" if workspace else f"{KIND}"
    group = "" if family.startswith("Total") else "/vmFamily"
    cores = "lowPriorityCores" if spot else "dedicatedCores"
    return {
        "id": f"/subscriptions/{SUBSCRIPTION}/{owner}/usages/{family}",
        "type": f"Microsoft.MachineLearningServices{group}/{cores}/usages",
        "unit": "Count",
        "name": {"value": family, "localizedValue": f"{family} vCPUs"},
        "limit": limit,
        "currentValue": used,
    }


def said(settings: Settings, arm: Arm, *more: Any) -> dict[str, Check]:
    return {one.name: one for one in examine(settings, [*resources(), *more], arm)}


def wrong(found: dict[str, Check]) -> dict[str, str]:
    return {name: one.verdict for name, one in found.items() if one.verdict != "ok"}
