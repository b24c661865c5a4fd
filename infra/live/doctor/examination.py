"""Every check in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from infra.live.arm import Arm, Denied
from infra.live.doctor import budget, deleted, images, names, permissions, providers, quota, sizes
from infra.live.doctor.check import Check
from infra.live.doctor.subscription import subscription
from infra.preview.captured import Resource
from infra.settings import Settings

_HINTS = {
    "AuthorizationFailed": "ask for the role Reader on the subscription",
    "MissingSubscriptionRegistration": "register the provider, then ask again",
}


def examine(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Every check, those first that need nothing of Azure; what Azure does not say is a warning."""
    provided = [one for one in resources if one.custom]
    yield from names.formed(provided)
    yield from sizes.lasting(settings)
    for label, checks in (
        ("subscription", subscription(settings, arm)),
        ("resource providers", providers.registered(provided, arm)),
        ("features", providers.features(provided, arm)),
        ("images", images.bootable(provided, arm)),
        ("free names", names.free(provided, arm)),
        ("deleted vaults", deleted.vaults(provided, arm)),
        ("deleted logs", deleted.logs(settings, provided, arm)),
        ("deleted workspaces", deleted.workspaces(provided, arm)),
        ("quota", quota.quota(settings, arm)),
        ("budget", budget.begins(provided, arm, date.today())),
        ("permissions", permissions.permissions(provided, arm)),
    ):
        try:
            yield from checks
        except Denied as error:
            yield Check(
                label, "warning", f"Azure does not say: {error}", _HINTS.get(str(error), "")
            )
