"""Deleted resources that reserve a name."""

from __future__ import annotations

import pytest

from infra.live.arm import Arm
from infra.settings.model import Settings
from tests.infra.live.declared import GROUP, WORKSPACE, resource
from tests.infra.live.doctor.ready import HERE, said, wrong
from tests.stand_ins.arm_server import State

LOGS = f"{HERE}/Microsoft.OperationalInsights/deletedWorkspaces"


def test_a_deleted_vault_reserves_its_name(settings: Settings, arm: Arm, state: State) -> None:
    """The hint is the command that recovers it in its region; other vaults do not matter."""
    vaults = state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"]
    vaults.append({"name": "another"})
    assert wrong(said(settings, arm)) == {}
    told = {"scheduledPurgeDate": "2027-01-01", "location": "northeurope"}
    vaults.append({"name": "KVmlplatdev", "properties": told})
    found = said(settings, arm)
    assert wrong(found) == {"vault KVmlplatdev": "error"}
    assert found["vault KVmlplatdev"].hint == (
        "az keyvault recover --name KVmlplatdev --location northeurope; after `pulumi destroy`"
        " increase `generation` in platform:vault instead"
    )


@pytest.mark.parametrize("told", ["Failed", "Succeeded", "Creating", None])
def test_a_failed_cluster_has_to_go_first(
    settings: Settings, arm: Arm, state: State, told: str | None
) -> None:
    """Azure keeps it, and an update does not mend it."""
    cluster = resource(
        "machinelearningservices:Compute",
        "cpu-cluster",
        computeName="cpu-cluster",
        workspaceName="${Workspace:workspace.name}",
        resourceGroupName="${ResourceGroup:group.name}",
    )
    if told:
        there = {"properties": {"provisioningState": told}}
        state.resources[f"{WORKSPACE}/computes/cpu-cluster"] = there
    found = said(settings, arm, cluster)
    assert ("cluster cpu-cluster" in wrong(found)) is (told == "Failed")
    if told == "Failed":
        assert found["cluster cpu-cluster"].hint.startswith(
            "az ml compute delete --name cpu-cluster --resource-group rg-mlplat-dev"
            " --workspace-name mlw-mlplat-dev"
        )


def test_deleted_logs_return_in_their_region_only(
    settings: Settings, arm: Arm, state: State
) -> None:
    """Logs of another group do not matter."""
    logs = resource(
        "operationalinsights:Workspace",
        "logs",
        workspaceName="log-mlplat-dev",
        resourceGroupName="${ResourceGroup:group.name}",
    )
    name = "Microsoft.OperationalInsights/workspaces/log-mlplat-dev"
    state.resources[f"{HERE}/Microsoft.OperationalInsights"] = {"registrationState": "Registered"}
    there = {"id": f"{GROUP}/providers/{name}", "name": "log-mlplat-dev", "location": "West Europe"}
    other = {**there, "id": there["id"].replace("rg-mlplat-dev", "rg-another")}
    state.lists[LOGS] = [other]
    assert wrong(said(settings, arm, logs)) == {}
    state.lists[LOGS] = [other, there]
    assert wrong(said(settings, arm, logs)) == {"logs log-mlplat-dev": "warning"}
    state.lists[LOGS] = [{**there, "location": "northeurope"}]
    assert wrong(said(settings, arm, logs)) == {"logs log-mlplat-dev": "error"}
    assert wrong(said(settings, arm)) == {}


def test_a_new_workspace_may_be_a_deleted_one(settings: Settings, arm: Arm, state: State) -> None:
    """Azure cannot be asked; an existing workspace has its name."""
    assert wrong(said(settings, arm)) == {}
    del state.resources[WORKSPACE]
    found = said(settings, arm)
    assert wrong(found) == {"workspace mlw-mlplat-dev": "warning"}
    assert "Recently deleted" in found["workspace mlw-mlplat-dev"].hint
