"""The subscription: its state and its tenant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.live.arm import Arm
from infra.settings.model import AssetRegistry, Settings
from tests.infra.live.declared import SUBSCRIPTION
from tests.infra.live.doctor.ready import said, wrong
from tests.stand_ins.arm_server import State

AT = f"/subscriptions/{SUBSCRIPTION}"


@pytest.mark.parametrize(
    ("state_of_it", "verdict"),
    [("Enabled", None), ("Warned", "warning"), ("PastDue", "warning"), ("Disabled", "error"),
     ("Deleted", "error")],
)  # fmt: skip
def test_a_state_without_changes_is_an_error(
    settings: Settings, arm: Arm, state: State, state_of_it: str, verdict: str | None
) -> None:
    """A disabled subscription can still be read."""
    state.resources[AT]["state"] = state_of_it
    assert wrong(said(settings, arm)) == ({"subscription": verdict} if verdict else {})


def test_the_registry_of_another_stack_must_be_there(
    settings: Settings, arm: Arm, state: State
) -> None:
    """The hint names the stack to deploy; an environment without one refers to none."""
    assert said(settings, arm)["asset registry"].verdict == "ok"
    del state.resources[settings.registry_id]
    results = said(settings, arm)
    assert wrong(results) == {"asset registry": "error"}
    assert results["asset registry"].hint == "make deploy ENV=shared"
    state.resources[settings.registry_id] = {"properties": {"regionDetails": [{"location": "x"}]}}
    assert said(settings, arm)["asset registry"].message == "mlplat-shared is not in westeurope"
    alone = replace(settings, asset_registry=AssetRegistry())
    assert "asset registry" not in said(alone, arm)


def test_another_tenant_than_the_declared_one(settings: Settings, arm: Arm, state: State) -> None:
    """Azure refuses a vault of another tenant."""
    state.resources[AT]["tenantId"] = "11111111-1111-1111-1111-111111111111"
    found = said(settings, arm)
    assert wrong(found) == {"subscription": "error"}
    assert found["subscription"].hint == "azure-native:tenantId"
    state.resources[AT]["tenantId"] = settings.tenant.upper()
    assert wrong(said(settings, arm)) == {}
