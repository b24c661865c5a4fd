"""Every check, with a subscription that is ready and one where something may not be read."""

from __future__ import annotations

from infra.live.arm import Arm
from infra.settings import Settings
from tests.infra.live.doctor.ready import USAGES, said, wrong
from tests.stand_ins.arm_server import State


def test_a_subscription_that_is_ready(settings: Settings, arm: Arm, state: State) -> None:
    """Every check says ok, over more than one page."""
    found = said(settings, arm)
    assert wrong(found) == {}
    assert {"names", "resource providers", "deleted vaults", "permissions"} <= set(found)
    assert (
        found["quota standardEDSv4Family"].said
        == "100 of 100 cores are free, 16 at most are needed"
    )


def test_what_may_not_be_read_is_a_warning(settings: Settings, arm: Arm, state: State) -> None:
    """The other checks go on."""
    state.denied.add(USAGES)
    found = said(settings, arm)
    assert wrong(found) == {"quota": "warning"}
    assert found["permissions"].verdict == "ok"
