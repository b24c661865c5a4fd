"""The program itself: three stacks, and every option of the settings, against the stand-in."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.preview.captured import SECRET, Capture, Resource
from infra.preview.run import capture
from infra.preview.sdk_types import problems
from tests.conftest import ROOT
from tests.infra.programs import own

pytestmark = pytest.mark.slow


def _kinds(found: Capture, kind: str) -> dict[str, Resource]:
    return {one.name: one for one in found.provided if one.kind == kind}


def _with(tmp_path: Path, **changed: Any) -> Capture:
    """The program of this repository for a stack `test`: prod's settings with some changed."""
    shutil.copytree(
        ROOT / "infra", tmp_path / "infra", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "ml" / "specs", tmp_path / "ml" / "specs")
    (tmp_path / "ml" / "__init__.py").touch()
    document = yaml.safe_load((ROOT / "infra" / "Pulumi.prod.yaml").read_text())
    for key, value in changed.items():
        document["config"][f"platform:{key}"] = value
    (tmp_path / "infra" / "Pulumi.test.yaml").write_text(yaml.safe_dump(document))
    return capture("test", root=tmp_path)


@pytest.mark.parametrize("stack", ["dev", "prod", "staging"])
def test_every_stack_is_sound(stack: str) -> None:
    """No disorder, no input that the SDK's types refuse, every resource within a component."""
    found = own()[stack]
    assert found.problems == ()
    assert problems(found.provided) == []
    assert [one.name for one in found.provided if not found.component(one)] == ["group"]


def test_the_short_cut_of_the_launcher_changes_nothing() -> None:
    """Of the whole program, with every parent and child that has aliases."""
    fast = own()["prod"]
    bare = capture("prod", bare=True)
    assert replace(fast, spent=bare.spent) == bare


def test_the_program_is_at_most_fifty_lines() -> None:
    assert len((ROOT / "infra" / "__main__.py").read_text().splitlines()) <= 50


def test_private_and_starter_differ_by_one_flag() -> None:
    assert _kinds(own()["staging"], "network:PrivateEndpoint").keys() == {
        *("images-registry", "lake-blob", "lake-dfs", "vault-vault", "workspace-amlworkspace"),
        *("workspace-storage-blob", "workspace-storage-file"),
    }
    assert not [one for one in own()["dev"].provided if one.kind.startswith("network:")]
    workspaces = [
        _kinds(own()[stack], "machinelearningservices:Workspace")["workspace"].inputs
        for stack in ("dev", "staging")
    ]
    assert [one["publicNetworkAccess"] for one in workspaces] == ["Enabled", "Disabled"]
    assert [one["managedNetwork"]["isolationMode"] for one in workspaces] == [
        "AllowInternetOutbound",
        "AllowOnlyApprovedOutbound",
    ]


def test_the_workspace_waits_for_the_rights_of_its_identity() -> None:
    found = own()["staging"]
    workspace = _kinds(found, "machinelearningservices:Workspace")["workspace"]
    rights = {
        one.urn
        for one in found.provided
        if one.kind == "authorization:RoleAssignment" and found.component(one) == "rights"
    }
    assert rights and rights <= set(workspace.dependencies)


def test_each_cluster_has_an_identity_of_its_own() -> None:
    clusters = _kinds(own()["prod"], "machinelearningservices:Compute").values()
    held = [one.inputs["identity"]["userAssignedIdentities"][0] for one in clusters]
    assert len(set(held)) == len(held) == 3


def test_no_lock_stands_on_the_resource_group() -> None:
    scopes = {
        one.inputs["scope"]
        for one in _kinds(own()["prod"], "authorization:ManagementLockByScope").values()
    }
    assert len(scopes) == 4 and not any("ResourceGroup" in one for one in scopes)


def test_one_registry_is_made_and_the_others_use_it() -> None:
    made = {
        stack: len(_kinds(found, "machinelearningservices:Registry"))
        for stack, found in own().items()
    }
    assert made == {"dev": 0, "prod": 1, "staging": 0}
    scope = _kinds(own()["dev"], "authorization:RoleAssignment")["cpu-cluster-assets"].inputs
    assert scope["scope"].endswith("/registries/mlplat-shared")


def test_our_own_subnet_in_place_of_the_managed_network(tmp_path: Path) -> None:
    found = _with(tmp_path, network={"isolation": "own", "service_endpoints": True})
    assert problems(found.provided) == [] and found.problems == ()
    cluster = _kinds(found, "machinelearningservices:Compute")["cpu-cluster"]
    assert cluster.inputs["properties"]["properties"]["subnet"]["id"].endswith("/subnets/compute")
    lake = _kinds(found, "storage:StorageAccount")["lake"].inputs
    assert len(lake["networkRuleSet"]["virtualNetworkRules"]) == 1


def test_a_share_machines_and_a_sas(tmp_path: Path) -> None:
    person = "6f8d2c1e-0000-4000-8000-000000000002"
    key = "ssh-ed25519 AAAA operator"
    found = _with(
        tmp_path,
        storage={"nfs_share_gib": 100, "datastores": "sas", "delete_after_days": 400},
        workstations=[
            {"name": "ada", "person": person},
            {"name": "bob", "person": person, "kind": "data-science-vm", "ssh_key": key},
        ],
    )
    assert problems(found.provided) == [] and found.problems == ()
    assert _kinds(found, "storage:FileShare")["share"].inputs["enabledProtocols"] == "NFS"
    store = _kinds(found, "machinelearningservices:Datastore")["datastore-raw"].inputs
    assert store["properties"]["credentials"]["secrets"]["sasToken"] == SECRET
    assert "bob" in _kinds(found, "compute:VirtualMachine")
    instance = _kinds(found, "machinelearningservices:Compute")["ada"].inputs["properties"]
    assert instance["computeType"] == "ComputeInstance"


def test_with_nothing_optional(tmp_path: Path) -> None:
    found = _with(tmp_path, clusters=[], endpoints=[], asset_registry={"mode": "none"})
    assert problems(found.provided) == [] and found.problems == ()
    assert not _kinds(found, "machinelearningservices:Compute")
