"""The VM image: in its region, elsewhere, with Trusted Launch and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.resource_checks import images
from infra.preview.capture import Resource
from tests.infra.live.doctor.ready import HERE
from tests.infra.programs import changed
from tests.stand_ins.arm_server import State

VERSIONS = (
    f"{HERE}/Microsoft.Compute/locations/westeurope/publishers/microsoft-dsvm"
    "/artifacttypes/vmimage/offers/ubuntu-2204/skus/2204-gen2/versions"
)
IMAGE = "image microsoft-dsvm:ubuntu-2204:2204-gen2"


def _machine(security: str | None) -> Resource:
    inputs: dict[str, Any] = {
        "location": "westeurope",
        "storageProfile": {
            "imageReference": {
                "publisher": "microsoft-dsvm",
                "offer": "ubuntu-2204",
                "sku": "2204-gen2",
                "version": "latest",
            }
        },
        "securityProfile": {"encryptionAtHost": True, "securityType": security},
    }
    kind = "azure-native:compute:VirtualMachine"
    return Resource(f"urn:pulumi:dev::platform::{security}", kind, "bob", "", inputs)


def _offered(state: State, *versions: str, **properties: Any) -> None:
    """Azure lists the versions in a bare array, not in pages."""
    state.resources[VERSIONS] = [{"name": one} for one in versions]
    if versions:
        state.resources[f"{VERSIONS}/{versions[-1]}"] = {"properties": properties}


def _security(value: object) -> list[Any]:
    return [
        {"name": "IsAcceleratedNetworkSupported", "value": "True"},
        {"name": "SecurityType", "value": value},
    ]


@pytest.mark.parametrize(
    "value",
    ["TrustedLaunchSupported", "TrustedLaunch", "TrustedLaunchAndConfidentialVmSupported"],
)
def test_an_image_with_trusted_launch(arm: Arm, state: State, value: str) -> None:
    """Asked once for several machines, for the highest version."""
    _offered(state, "24.9.30", "24.10.2", features=_security(value))
    (found,) = images([_machine("TrustedLaunch"), _machine(None)], arm)
    assert (found.name, found.verdict, found.message) == (IMAGE, "ok", "24.10.2 in westeurope")
    assert [path for _, path, _ in state.asked] == [VERSIONS, f"{VERSIONS}/24.10.2"]


@pytest.mark.parametrize(
    "features", [None, [], [None], _security(None), _security("ConfidentialVmSupported")]
)
def test_an_image_without_trusted_launch(arm: Arm, state: State, features: object) -> None:
    """Azure refuses a VM that requires it, and accepts another."""
    _offered(state, "24.10.2", features=features)
    (found,) = images([_machine("TrustedLaunch")], arm)
    assert (found.name, found.verdict) == (IMAGE, "error")
    assert found.message == "24.10.2 in westeurope has no Trusted Launch"
    assert "infra/program/compute.py" in found.hint
    (found,) = images([_machine(None)], arm)
    assert found.verdict == "ok"


def test_an_image_that_is_not_in_the_region(arm: Arm, state: State) -> None:
    """No such offer, or no version of it."""
    (found,) = images([_machine("TrustedLaunch")], arm)
    assert (found.name, found.verdict, found.message) == (IMAGE, "error", "not in westeurope")
    _offered(state)
    (found,) = images([_machine("TrustedLaunch")], arm)
    assert (found.verdict, found.message) == ("error", "not in westeurope")


def test_a_version_without_numbers_causes_no_traceback(arm: Arm, state: State) -> None:
    _offered(state, "1.0.0", features=None)
    state.resources[VERSIONS] = [{"name": None}, {"name": "latest"}, {}, None, {"name": "1.0.0"}]
    (found,) = images([_machine(None)], arm)
    assert (found.verdict, found.message) == ("ok", "1.0.0 in westeurope")


def test_a_vm_from_its_own_disk_has_no_image(arm: Arm) -> None:
    kind = "azure-native:compute:VirtualMachine"
    made = Resource("urn:pulumi:dev::platform::bob", kind, "bob", "", {"storageProfile": {}})
    assert list(images([made], arm)) == []


def test_the_images_of_the_program_are_checked(arm: Arm, state: State, tmp_path: Path) -> None:
    """In the region of prod."""
    machine = {
        "name": "bob",
        "person": "6f8d2c1e-0000-4000-8000-000000000002",
        "kind": "data-science-vm",
        "ssh_key": "ssh-ed25519 AAAA bob",
    }
    found = changed(tmp_path, workstations=[machine])
    _offered(state, "24.10.2", features=_security("TrustedLaunchSupported"))
    (said,) = images(found.resources, arm)
    assert (said.verdict, said.message) == ("ok", "24.10.2 in westeurope")
    _offered(state, "24.10.2", features=[])
    (said,) = images(found.resources, arm)
    assert said.verdict == "error"
