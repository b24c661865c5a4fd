"""Names: each check with an allowed name and a refused one."""

from __future__ import annotations

from infra.live.arm import Arm
from infra.settings.model import Settings
from tests.infra.live.declared import STORAGE, resource
from tests.infra.live.doctor.ready import HERE, said, wrong
from tests.stand_ins.arm_server import State


def test_a_name_in_use(settings: Settings, arm: Arm, state: State) -> None:
    """Unless the declared resource itself uses it."""
    taken = {"nameAvailable": False, "reason": "AlreadyExists", "message": "already taken"}
    state.answers[f"{HERE}/Microsoft.Storage/checkNameAvailability"] = taken
    assert said(settings, arm)["name stlkmlplatdev"].message == "already ours"
    del state.resources[STORAGE]
    found = said(settings, arm)
    assert wrong(found) == {"name stlkmlplatdev": "error"}
    assert found["name stlkmlplatdev"].message == "already taken"


def test_a_name_of_the_wrong_form(settings: Settings, arm: Arm) -> None:
    """Before Azure is asked."""
    bad = resource("storage:StorageAccount", "bad", accountName="With-Dash", resourceGroupName="g")
    long = resource("resources:ResourceGroup", "long", resourceGroupName="g" * 91)
    found = said(settings, arm, bad, long)
    assert wrong(found) == {"name With-Dash": "error", f"name {'g' * 91}": "error"}
