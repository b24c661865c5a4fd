"""Permissions: enough for a deployment, and too few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.live.arm import Arm
from infra.settings.model import Network, Settings
from tests.infra.live.declared import REGISTRY, STORAGE, SUBSCRIPTION, resource
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


def test_a_registry_of_another_subscription_takes_roles_there(
    settings: Settings, arm: Arm, state: State
) -> None:
    """To assign them, and for a private environment to lead endpoints to it."""
    there = "6f8d2c1e-9999-4000-8000-000000000000"
    registry = replace(settings.asset_registry, subscription=there)
    settings = replace(settings, asset_registry=registry, exposure="private", network=Network())
    state.resources[settings.registry_id] = REGISTRY
    assert f"/subscriptions/{there}/" in settings.registry_id
    asked = PERMISSIONS.replace(SUBSCRIPTION, there)
    roles = {"actions": ["Microsoft.Authorization/roleAssignments/*"], "notActions": []}
    action = (
        "Microsoft.MachineLearningServices/registries/privateEndpointConnectionsApproval/action"
    )
    approves = {"actions": [action], "notActions": []}

    def told() -> dict[str, str]:
        found = wrong(said(settings, arm))
        return {name: verdict for name, verdict in found.items() if "permission" in name}

    state.lists[asked] = [roles]
    assert told() == {f"permission {action}": "error"}
    state.lists[asked] = [roles, approves]
    assert told() == {}
    state.denied.add(asked)
    assert told() == {"permissions on the registry": "warning"}
