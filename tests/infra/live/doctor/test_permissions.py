"""Permissions: enough for a deployment, and too few."""

from __future__ import annotations

import pytest

from infra.live.arm import Arm
from infra.settings.model import Settings
from tests.infra.live.declared import STORAGE, resource
from tests.infra.live.doctor.ready import HERE, PERMISSIONS, said, wrong
from tests.stand_ins.arm_server import State


@pytest.mark.parametrize(
    "granted",
    [
        {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]},
        {"actions": ["*/read"], "notActions": []},
    ],
)
def test_a_contributor_cannot_assign_roles(
    settings: Settings, arm: Arm, state: State, granted: dict[str, list[str]]
) -> None:
    """Wildcards and exclusions count as in role definitions, in any case."""
    assignment = resource(
        "authorization:RoleAssignment", "right", scope=STORAGE, roleAssignmentName="r"
    )
    state.lists[PERMISSIONS] = [granted]
    name = "permission Microsoft.Authorization/roleAssignments/write"
    assert name in wrong(said(settings, arm, assignment))
    state.lists[PERMISSIONS].append({"actions": ["*"]})
    assert wrong(said(settings, arm)) == {}


def test_only_an_environment_with_locks_needs_to_set_them(
    settings: Settings, arm: Arm, state: State
) -> None:
    """The bootstrap's roles suffice for an environment without locks."""
    contributor = {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}
    roles = {"actions": ["Microsoft.Authorization/roleAssignments/write"], "notActions": []}
    state.lists[PERMISSIONS] = [contributor, roles]
    state.resources[f"{HERE}/Microsoft.Authorization"] = {"registrationState": "Registered"}
    assert wrong(said(settings, arm)) == {}
    lock = resource(
        "authorization:ManagementLockByScope", "lock", scope=STORAGE, lockName="no-delete"
    )
    found = said(settings, arm, lock)
    assert wrong(found) == {"permission Microsoft.Authorization/locks/write": "error"}
    assert "Locks Contributor" in found["permission Microsoft.Authorization/locks/write"].hint
