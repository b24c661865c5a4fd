"""Resource providers and features: registered and not."""

from __future__ import annotations

from typing import Any

import pytest

from infra.live.arm import Arm
from infra.settings.model import Settings
from tests.infra.live.declared import resource
from tests.infra.live.doctor.ready import HERE, said, wrong
from tests.stand_ins.arm_server import State


def test_a_provider_that_is_not_registered(settings: Settings, arm: Arm, state: State) -> None:
    """With the command that registers it."""
    state.resources[f"{HERE}/Microsoft.KeyVault"] = {"registrationState": "NotRegistered"}
    found = said(settings, arm)
    assert wrong(found) == {"provider Microsoft.KeyVault": "error"}
    assert found["provider Microsoft.KeyVault"].hint == (
        "az provider register --namespace Microsoft.KeyVault"
    )


def test_a_feature_that_a_machine_needs(settings: Settings, arm: Arm, state: State) -> None:
    """Only checked for VMs, whose creation would be refused."""
    state.resources[f"{HERE}/Microsoft.Compute"] = {"registrationState": "Registered"}
    machine = resource(
        "compute:VirtualMachine",
        "bob",
        vmName="vm-bob",
        resourceGroupName="${ResourceGroup:group.name}",
        securityProfile={"encryptionAtHost": True},
    )
    found = said(settings, arm, machine)
    assert wrong(found) == {"feature EncryptionAtHost": "error"}
    assert found["feature EncryptionAtHost"].hint == (
        "az feature register --namespace Microsoft.Compute --name EncryptionAtHost"
    )
    state.resources[
        f"{HERE}/Microsoft.Features/providers/Microsoft.Compute/features/EncryptionAtHost"
    ] = {"properties": {"state": "Registered"}}
    assert wrong(said(settings, arm, machine)) == {}
    assert "feature EncryptionAtHost" not in said(settings, arm)


@pytest.mark.parametrize(
    ("reported", "verdict"),
    [("Registering", "warning"), ("Unregistering", "error"), (None, "error")],
)
def test_a_provider_in_registration_is_a_warning(
    settings: Settings, arm: Arm, state: State, reported: str | None, verdict: str
) -> None:
    """Registered regions already accept resources."""
    state.resources[f"{HERE}/Microsoft.KeyVault"] = {"registrationState": reported}
    assert wrong(said(settings, arm)) == {"provider Microsoft.KeyVault": verdict}


def isolated(mode: str) -> dict[str, Any]:
    return {"managedNetwork": {"isolationMode": mode}}


@pytest.mark.parametrize(
    ("kind", "inputs", "names"),
    [
        ("OnlineEndpoint", {"endpointName": "faq"}, {"Microsoft.Cdn", "Microsoft.PolicyInsights"}),
        ("Workspace", isolated("AllowInternetOutbound"), {"Microsoft.Network"}),
        ("Workspace", isolated("Disabled"), set()),
    ],
)
def test_a_provider_that_another_needs(
    *,
    settings: Settings,
    arm: Arm,
    state: State,
    kind: str,
    inputs: dict[str, Any],
    names: set[str],
) -> None:
    """Azure's own error does not name it."""
    where = {"workspaceName": "w", "resourceGroupName": "g"}
    declared = resource(f"machinelearningservices:{kind}", "other", **where, **inputs)

    def missing() -> dict[str, str]:
        found = wrong(said(settings, arm, declared))
        return {name: one for name, one in found.items() if name.startswith("provider ")}

    assert missing() == {f"provider {name}": "error" for name in names}
    for name in names:
        state.resources[f"{HERE}/{name}"] = {"registrationState": "Registered"}
    assert missing() == {}


def test_an_unregistered_provider_stops_no_other_check(
    settings: Settings, arm: Arm, state: State
) -> None:
    """Its refusal is a warning, and no request registers it."""
    message = "The subscription is not registered to use namespace 'Microsoft.KeyVault'"
    state.unregistered["Microsoft.KeyVault"] = message
    found = said(settings, arm)
    assert wrong(found) == {
        "provider Microsoft.KeyVault": "error",
        "free names": "warning",
        "deleted vaults": "warning",
    }
    assert "permissions" in found
    assert not any(path.endswith("/register") for _, path, _ in state.asked)
