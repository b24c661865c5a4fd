"""Names that all of Azure shares: free, ours, and taken."""

from __future__ import annotations

from infra.live.arm import Arm
from infra.settings.model import Settings
from tests.infra.live.declared import STORAGE
from tests.infra.live.doctor.ready import HERE, said, wrong
from tests.stand_ins.arm_server import State


def test_a_name_in_use(settings: Settings, arm: Arm, state: State) -> None:
    """Unless the declared resource itself uses it."""
    taken = {"nameAvailable": False, "reason": "AlreadyExists", "message": "already taken"}
    state.answers[f"{HERE}/Microsoft.Storage/checkNameAvailability"] = taken
    assert (
        said(settings, arm)["name stlkmlplatdev"].message == "used by the declared resource itself"
    )
    del state.resources[STORAGE]
    found = said(settings, arm)
    assert wrong(found) == {"name stlkmlplatdev": "error"}
    assert found["name stlkmlplatdev"].message == "already taken"
