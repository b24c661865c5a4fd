"""The month in which a budget begins: Azure takes this one, or one of the twelve after it.

Source: rest/api/consumption/budgets/create-or-update, `timePeriod`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from infra.live.addresses import Addresses
from infra.live.arm import Arm
from infra.live.doctor.check import Check
from infra.preview.captured import Resource


def begins(resources: Sequence[Resource], arm: Arm, today: date) -> Iterator[Check]:
    """Whether a budget that is not there yet could be made today."""
    addresses = Addresses(resources, arm.subscription)
    for one in resources:
        if one.kind != "consumption:Budget":
            continue
        month, place = str(one.inputs["timePeriod"]["startDate"])[:7], addresses.place(one)
        if arm.get(place.id, place.version) is not None:
            yield Check(one.name, "ok", f"there since {month}")
        elif f"{today:%Y-%m}" <= month <= f"{today.year + 1}-{today:%m}":
            yield Check(one.name, "ok", f"will begin in {month}")
        else:
            said = f"begins in {month}; Azure takes this month, or one of the next twelve"
            hint = f"platform:guardrails.budget_from: {today:%Y-%m}"
            yield Check(one.name, "error", said, hint)
