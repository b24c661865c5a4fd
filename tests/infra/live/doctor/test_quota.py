"""Quota: too small, in use, just enough."""

from __future__ import annotations

import pytest

from infra.live.arm import Arm
from infra.settings import Settings
from tests.infra.live.doctor.ready import USAGES, said, usage, wrong
from tests.stand_ins.arm_server import State


@pytest.mark.parametrize(
    ("limit", "used", "verdict"), [(15, 0, "error"), (16, 4, "warning"), (16, 0, None)]
)
def test_quota(
    settings: Settings, arm: Arm, state: State, limit: int, used: int, verdict: str | None
) -> None:
    """Four nodes of four cores: too small a limit, too few that are free, just enough."""
    state.lists[USAGES][0] = usage("STANDARDEDSV4FAMILY", limit, used)
    expected = {"quota standardEDSv4Family": verdict} if verdict else {}
    assert wrong(said(settings, arm)) == expected


def test_spot_nodes_share_one_quota(settings: Settings, arm: Arm, state: State) -> None:
    """Two T4 nodes of four cores."""
    state.lists[USAGES][1] = usage("TotalLowPriorityCores", 7)
    assert wrong(said(settings, arm)) == {"quota TotalLowPriorityCores": "error"}
