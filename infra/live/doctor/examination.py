"""Runs every check in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from infra.live.arm import Arm, Denied
from infra.live.doctor import offline, resources, subscription
from infra.live.doctor.offline import Check
from infra.preview.capture import Resource
from infra.settings.model import Settings

_HINTS = {
    "AuthorizationFailed": "ask for the role Reader on the subscription",
    "MissingSubscriptionRegistration": "register the provider, then try again",
}


def examine(settings: Settings, declared: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Every check, offline ones first; a question that Azure refuses to answer is a warning."""
    provided = [resource for resource in declared if resource.custom]
    yield from offline.name_forms(provided)
    yield from offline.retirements(settings)
    for label, checks in (
        ("subscription", subscription.state(settings, arm)),
        ("resource providers", subscription.providers(provided, arm)),
        ("features", subscription.features(provided, arm)),
        ("images", resources.images(provided, arm)),
        ("free names", resources.free_names(provided, arm)),
        ("deleted vaults", resources.deleted_vaults(provided, arm)),
        ("deleted logs", resources.deleted_logs(settings, provided, arm)),
        ("deleted workspaces", resources.deleted_workspaces(provided, arm)),
        ("quota", subscription.quota(settings, arm)),
        ("budget", resources.budget(provided, arm, date.today())),
        ("permissions", subscription.permissions(provided, arm)),
    ):
        try:
            yield from checks
        except Denied as error:
            hint = _HINTS.get(str(error), "")
            yield Check(label, "warning", f"Azure does not answer: {error}", hint)
