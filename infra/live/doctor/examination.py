"""Every check in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.live.arm import Arm, Denied
from infra.live.doctor import names, permissions, providers, quota, sizes
from infra.live.doctor.check import Check
from infra.preview.captured import Resource
from infra.settings import Settings


def examine(settings: Settings, resources: Sequence[Resource], arm: Arm) -> Iterator[Check]:
    """Every check, those first that need nothing of Azure; what may not be read is a warning."""
    provided = [one for one in resources if one.custom]
    yield from names.formed(provided)
    yield from sizes.lasting(settings)
    for label, checks in (
        ("resource providers", providers.registered(provided, arm)),
        ("features", providers.features(provided, arm)),
        ("free names", names.free(provided, arm)),
        ("deleted vaults", names.deleted(settings, provided, arm)),
        ("quota", quota.quota(settings, arm)),
        ("permissions", permissions.permissions(provided, arm)),
    ):
        try:
            yield from checks
        except Denied as error:
            hint = "ask for the role Reader on the subscription"
            yield Check(label, "warning", f"may not be read: {error}", hint)
