"""What has to be registered: with a subscription that has it and one that has not."""

from __future__ import annotations

from infra.live.arm import Arm
from infra.settings import Settings
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
    """Asked for machines alone: without it their creation is refused."""
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
