"""VM sizes: current, and with an announced retirement."""

from __future__ import annotations

from dataclasses import replace

from infra.live.arm import Arm
from infra.settings.model import Cluster, Settings
from tests.infra.live.doctor.ready import USAGES, said, usage, wrong
from tests.stand_ins.arm_server import State


def test_an_announced_retirement_is_a_warning(settings: Settings, arm: Arm, state: State) -> None:
    """The size is available until then."""
    assert said(settings, arm)["sizes"].verdict == "ok"
    state.lists[USAGES].append(usage("standardDSv2Family", 100))
    old = Cluster(name="old", size="Standard_DS3_v2", max_nodes=1)
    found = said(replace(settings, clusters=(*settings.clusters, old)), arm)
    assert wrong(found) == {"size Standard_DS3_v2": "warning"}
    assert found["size Standard_DS3_v2"].message == "the Dv2 series retires on 2028-05-01"
    assert found["size Standard_DS3_v2"].hint == "use Standard_D4ds_v4"
