"""The doctor: each check with a subscription that is fine and one that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.live.arm import Arm
from infra.live.doctor import GLOBAL, Check, examine
from infra.settings import Settings, load
from infra.workloads import Cluster
from tests.infra.live.declared import STORAGE, SUBSCRIPTION, resource, resources
from tests.stand_ins.arm_server import State

HERE = f"/subscriptions/{SUBSCRIPTION}/providers"
PROVIDERS = (
    "Microsoft.Storage", "Microsoft.KeyVault", "Microsoft.ManagedIdentity",
    "Microsoft.MachineLearningServices",
)  # fmt: skip
USAGES = f"{HERE}/Microsoft.MachineLearningServices/locations/westeurope/usages"
PERMISSIONS = f"{HERE}/Microsoft.Authorization/permissions"


@pytest.fixture
def settings() -> Settings:
    clusters = (
        Cluster(name="cpu-cluster", preset="cpu", max_nodes=4),
        Cluster(name="gpu", preset="t4", max_nodes=2),
    )
    return replace(load("dev"), location="westeurope", clusters=clusters)


@pytest.fixture(autouse=True)
def fine(state: State) -> None:
    """A subscription where everything is as it should be."""
    for name in PROVIDERS:
        state.resources[f"{HERE}/{name}"] = {"registrationState": "Registered"}
    for rule in GLOBAL.values():
        state.answers[f"{HERE}/{rule.question}"] = {"nameAvailable": True}
    state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"] = []
    state.lists[USAGES] = [
        usage("standardEDSv4Family", 100), usage("TotalLowPriorityCores", 100),
        *(usage(f"another{number}", 0) for number in range(5)),
    ]  # fmt: skip
    state.lists[PERMISSIONS] = [{"actions": ["*"], "notActions": []}]


def usage(family: str, limit: int, used: int = 0) -> dict[str, Any]:
    return {"name": {"value": family}, "limit": limit, "currentValue": used}


def said(settings: Settings, arm: Arm, *more: Any) -> dict[str, Check]:
    return {one.name: one for one in examine(settings, [*resources(), *more], arm)}


def wrong(found: dict[str, Check]) -> dict[str, str]:
    return {name: one.verdict for name, one in found.items() if one.verdict != "ok"}


def test_a_subscription_that_is_ready(settings: Settings, arm: Arm, state: State) -> None:
    """Every check says ok, over more than one page."""
    found = said(settings, arm)
    assert wrong(found) == {}
    assert {"names", "resource providers", "deleted vaults", "permissions"} <= set(found)
    assert (
        found["quota standardEDSv4Family"].said
        == "100 of 100 cores are free, 16 at most are needed"
    )


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


def test_a_name_that_another_has(settings: Settings, arm: Arm, state: State) -> None:
    """Unless the other is the very resource that is declared."""
    taken = {"nameAvailable": False, "reason": "AlreadyExists", "message": "already taken"}
    state.answers[f"{HERE}/Microsoft.Storage/checkNameAvailability"] = taken
    assert said(settings, arm)["name stlkmlplatdev"].said == "ours already"
    del state.resources[STORAGE]
    found = said(settings, arm)
    assert wrong(found) == {"name stlkmlplatdev": "error"}
    assert found["name stlkmlplatdev"].said == "already taken"


def test_a_name_of_the_wrong_form(settings: Settings, arm: Arm) -> None:
    """Before anything is asked."""
    bad = resource("storage:StorageAccount", "bad", accountName="With-Dash", resourceGroupName="g")
    long = resource("resources:ResourceGroup", "long", resourceGroupName="g" * 91)
    found = said(settings, arm, bad, long)
    assert wrong(found) == {"name With-Dash": "error", f"name {'g' * 91}": "error"}


def test_a_deleted_vault_that_keeps_its_name(settings: Settings, arm: Arm, state: State) -> None:
    """With the command that recovers it; another one's is none of ours."""
    vaults = state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"]
    vaults.append({"name": "another"})
    assert wrong(said(settings, arm)) == {}
    vaults.append({"name": "KVmlplatdev", "properties": {"scheduledPurgeDate": "2027-01-01"}})
    found = said(settings, arm)
    assert wrong(found) == {"vault KVmlplatdev": "error"}
    assert "az keyvault recover --name KVmlplatdev" in found["vault KVmlplatdev"].hint


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


@pytest.mark.parametrize(
    "granted",
    [
        {"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]},
        {"actions": ["*/read"], "notActions": []},
    ],
)
def test_a_contributor_may_not_assign_roles(
    settings: Settings, arm: Arm, state: State, granted: dict[str, list[str]]
) -> None:
    """Wildcards and exclusions count as in role definitions, whatever the case."""
    assignment = resource(
        "authorization:RoleAssignment", "right", scope=STORAGE, roleAssignmentName="r"
    )
    state.lists[PERMISSIONS] = [granted]
    name = "permission Microsoft.Authorization/roleAssignments/write"
    assert name in wrong(said(settings, arm, assignment))
    state.lists[PERMISSIONS].append({"actions": ["*"]})
    assert wrong(said(settings, arm)) == {}


def test_only_who_declares_locks_needs_the_right_to_set_them(
    settings: Settings, arm: Arm, state: State
) -> None:
    """The roles that the bootstrap grants an environment without locks are enough for it."""
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


def test_what_may_not_be_read_is_a_warning(settings: Settings, arm: Arm, state: State) -> None:
    """The other checks go on."""
    state.denied.add(USAGES)
    found = said(settings, arm)
    assert wrong(found) == {"quota": "warning"}
    assert found["permissions"].verdict == "ok"
