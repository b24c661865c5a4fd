"""Quota: too small, in use, sufficient; entries of the same name are distinguished."""

from __future__ import annotations

from typing import Any

import pytest

from infra.live.arm import Arm
from infra.settings.azure import SIZES
from infra.settings.model import Settings
from tests.infra.live.doctor.ready import USAGES, said, usage, wrong
from tests.stand_ins.arm_server import State

FAMILY = "quota standardEDSv4Family"


@pytest.mark.parametrize(
    ("limit", "used", "verdict"),
    [(3, 0, "error"), (15, 0, "warning"), (16, 4, "warning"), (16, 0, None)],
)
def test_quota(
    settings: Settings, arm: Arm, state: State, limit: int, used: int, verdict: str | None
) -> None:
    """Four nodes of four cores: less than one node, fewer than four, some in use, sufficient."""
    state.lists[USAGES][0] = usage("STANDARDEDSV4FAMILY", limit, used)
    expected = {FAMILY: verdict} if verdict else {}
    assert wrong(said(settings, arm)) == expected


def test_spot_nodes_share_one_quota(settings: Settings, arm: Arm, state: State) -> None:
    """Two T4 nodes of four cores; the limit of their family only counts dedicated nodes."""
    state.lists[USAGES].append(usage("Standard NCASv3_T4 Family", 0))
    state.lists[USAGES][1] = usage("TotalLowPriorityCores", 3, spot=True)
    assert wrong(said(settings, arm)) == {"quota TotalLowPriorityCores": "error"}


def test_dedicated_nodes_share_the_quota_of_the_region(
    settings: Settings, arm: Arm, state: State
) -> None:
    """Whatever the limits of their families."""
    state.lists[USAGES][2] = usage("TotalDedicatedCores", 20, 10)
    assert wrong(said(settings, arm)) == {"quota TotalDedicatedCores": "warning"}


@pytest.mark.parametrize(
    "other",
    [
        usage("standardEDSv4Family", -1, spot=True),
        usage("standardEDSv4Family", 2, workspace="another"),
    ],
)
@pytest.mark.parametrize("at", [0, 99])
def test_another_entry_of_the_same_name_is_not_the_familys_quota(
    settings: Settings, arm: Arm, state: State, other: dict[str, Any], at: int
) -> None:
    """The entries of low-priority nodes and of a workspace, before it in the list or after."""
    state.lists[USAGES].insert(at, other)
    assert wrong(said(settings, arm)) == {}


def test_no_limit_passes(settings: Settings, arm: Arm, state: State) -> None:
    """Azure reports -1."""
    state.lists[USAGES][0] = usage("standardEDSv4Family", -1)
    found = said(settings, arm)
    assert wrong(found) == {}
    assert found[FAMILY].message == "no limit"


@pytest.mark.parametrize("entry", ["currentValue", "limit"])
def test_a_missing_number_is_a_warning(
    settings: Settings, arm: Arm, state: State, entry: str
) -> None:
    """Azure reports null until the subscription may use it."""
    state.lists[USAGES][0][entry] = None
    assert wrong(said(settings, arm)) == {FAMILY: "warning"}


def test_a_family_without_an_entry_is_a_warning(settings: Settings, arm: Arm, state: State) -> None:
    """The region may not have it."""
    del state.lists[USAGES][0]
    found = said(settings, arm)
    assert wrong(found) == {FAMILY: "warning"}
    assert "westeurope reports no quota" in found[FAMILY].message


@pytest.mark.parametrize(
    ("size", "family"),
    [
        ("Standard_DS3_v2", "standardDSv2Family"),
        ("Standard_NC4as_T4_v3", "standard NCASv3_T4 Family"),
        ("Standard_NC24ads_A100_v4", "standardNCADSA100v4Family"),
        ("Standard_ND96asr_v4", "standard NDASv4_A100 Family"),
        ("Standard_ND96amsr_A100_v4", "standard NDAMSv4_A100Family"),
        ("Standard_ND96isr_H100_v5", "standardNDv5H100Family"),
    ],
)
def test_a_family_is_named_as_azure_ml_names_it(size: str, family: str) -> None:
    """In reference-managed-online-endpoints-vm-sku-list; Microsoft.Compute has other names."""
    assert SIZES[size].family.lower() == family.lower()
