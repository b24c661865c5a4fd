"""The table of what each workflow may do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.live.workflow_access import Access, table
from infra.settings.loader import load
from infra.settings.workflows import OF_THE_PROGRAM, PURPOSES, REVIEWED, role_name
from tests.conftest import ROOT
from tests.infra.programs import HUB, LANDING_ZONE, SPOKE, own, ran

TRAIN = """
on: workflow_dispatch
jobs:
  plan: {runs-on: x}
  run: {environment: dev-train, runs-on: x}
  any: {environment: {name: "${{ matrix.stack }}-train"}, runs-on: x}
"""
RELEASE = "jobs: {apply: {environment: '${{ inputs.stack }}-release'}}"


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Access]:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "train.yml").write_text(TRAIN)
    (folder / "release.yml").write_text(RELEASE)
    return {
        row.environment: row
        for stack in ("dev", "prod")
        for row in table(load(stack), own()[stack].resources, tmp_path)
    }


def test_the_jobs_of_each_environment(rows: dict[str, Access]) -> None:
    """By name, or by an expression that may stand for its name."""
    assert rows["dev-train"].jobs == ("train.yml: run", "train.yml: any")
    assert rows["prod-train"].jobs == ("train.yml: any",)
    assert rows["prod-release"].jobs == ("release.yml: apply",)
    assert rows["prod-deploy"].jobs == rows["prod-preview"].jobs == ()


def test_what_an_environment_may_do(rows: dict[str, Access]) -> None:
    """From the program for what trains and releases, from the bootstrap for the others."""
    assert ("AzureML Job Submitter", "workspace") in rows["prod-train"].grants
    assert ("AzureML Registry Publisher", "mlplat-shared") in rows["prod-release"].grants
    assert ("Contributor", "the subscription") in rows["prod-deploy"].grants
    writing = {role for role, _ in rows["prod-preview"].grants} - {"Key Vault Crypto User"}
    assert all(role.endswith("Reader") for role in writing)
    shared = {
        grant for grant in rows["prod-train"].grants if grant in set(rows["prod-release"].grants)
    }
    assert shared == set()


def test_a_registry_of_another_subscription_is_named_as_such(tmp_path: Path) -> None:
    """What the deployer may do there is told apart from its own subscription."""
    registry = replace(load("dev").asset_registry, subscription="6f8d2c1e-9999-4000-8000-0")
    settings = replace(load("dev"), asset_registry=registry)
    rows = {row.environment: row for row in table(settings, own()["dev"].resources, tmp_path)}
    there = {role for role, scope in rows["dev-deploy"].grants if scope.endswith("of the registry")}
    assert there == {
        *("Reader", "Azure AI Enterprise Network Connection Approver"),
        "Role Based Access Control Administrator, only roles that the program grants",
    }
    assert ("Contributor", "the subscription") in rows["dev-deploy"].grants


def test_what_the_deployer_needs_on_a_hub_is_named(tmp_path: Path) -> None:
    """On what is given, from its owner; nothing where nothing is given."""
    peer = f"{HUB}/providers/Microsoft.Network/virtualNetworks/vnet-hub"
    ours, given = (
        replace(load("prod").network, peer=peer, **settings)
        for settings in ({}, {"virtual_network": SPOKE, "subnet": f"{SPOKE}/subnets/ml"})
    )

    def on_hub(**changed: Any) -> set[tuple[str, str]]:
        settings = replace(load("prod"), **changed)
        rows = table(settings, own()["prod"].resources, tmp_path)
        (row,) = (row for row in rows if row.environment == "prod-deploy")
        return {grant for grant in row.grants if grant[0].endswith("from its owner")}

    assert on_hub() == set()
    assert on_hub(network=ours) == {("Network Contributor, from its owner", "vnet-hub")}
    vault = replace(load("prod").vault, id=LANDING_ZONE["vault"]["id"])
    logs = replace(load("prod").monitoring, workspace=LANDING_ZONE["monitoring"]["workspace"])
    of_all = {
        ("Network Contributor, from its owner", "vnet-spoke/subnets/ml"),
        ("Role Based Access Control Administrator, from its owner", "kv-central"),
        ("Monitoring Contributor, from its owner", "log"),
    }
    of_network = {("Network Contributor, from its owner", "vnet-spoke")}
    assert on_hub(network=given, vault=vault, monitoring=logs) == of_all | of_network
    of_zones = {("Private DNS Zone Contributor, from its owner", "rg-hub")}
    central = replace(given, private_dns_zones=HUB)
    assert on_hub(network=central, vault=vault, monitoring=logs) == of_all | of_zones


def test_who_approves(rows: dict[str, Access]) -> None:
    """What releases and deploys, in the environments that name people."""
    approved = {name for name, row in rows.items() if row.reviewers}
    assert approved == {f"{stack}-{of}" for stack in ("dev", "prod") for of in REVIEWED}


@pytest.mark.attack("a workflow names an environment in another case, or is a .yaml")
def test_the_name_of_an_environment_has_no_case(tmp_path: Path) -> None:
    """As in GitHub; and it runs .yaml files as well."""
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "other.yaml").write_text("jobs: {deploy: {environment: Dev-DEPLOY}}")
    (folder / "notes.txt").write_text("jobs: {deploy: {environment: dev-deploy}}")
    rows = {row.purpose: row for row in table(load("dev"), own()["dev"].resources, tmp_path)}
    assert rows["deploy"].jobs == ("other.yaml: deploy",)
    assert rows["train"].jobs == ()


def test_the_roles_agree_with_the_program() -> None:
    """Each assignment is in one row, by the role's id; each cluster and endpoint has a row."""
    for stack in ("dev", "prod"):
        declared = own()[stack].resources
        rows = list(table(load(stack), declared, ROOT))
        shown = [
            role.partition(",")[0]
            for row in rows
            if row.purpose in (None, *OF_THE_PROGRAM)
            for role, _ in row.grants
        ]
        granted = [
            role_name(one.inputs["roleDefinitionId"])
            for one in declared
            if one.kind == "authorization:RoleAssignment"
        ]
        assert sorted(shown) == sorted(granted)
        # Endpoints share an identity, and so a row.
        names = [row.environment.removeprefix(f"{stack}: ") for row in rows]
        identities = [each for name in names for each in name.split(", ")]
        for settings_of, kind in ((load(stack).computes, "Compute"), (load(stack).endpoints, "")):
            for each in settings_of:
                name = f"{kind or 'OnlineEndpoint'} {each.name}"
                assert identities.count(name) == 1


@pytest.mark.attack("a description says another role than the assignment grants")
def test_an_identity_that_nothing_names_is_shown() -> None:
    """A role is what its id says, and an identity what uses it, whatever either is called."""
    declared = []
    for each in own()["dev"].resources:
        inputs = dict(each.inputs)
        if each.name == "cluster-gpu-spot-lake":
            inputs["roleDefinitionId"] = "/subscriptions/s/providers/x/roleDefinitions/f-o-o"
            inputs["description"] = "Reader: cluster-gpu-spot-lake"
        if each.kind == "machinelearningservices:Compute" and each.name == "cpu-cluster":
            inputs["identity"] = {"userAssignedIdentities": ["${UserAssignedIdentity:train.id}"]}
        declared.append(replace(each, inputs=inputs))
    rows = {row.environment: row for row in table(load("dev"), declared, ROOT)}
    assert ("f-o-o", "lake") in rows["dev: Compute gpu-spot"].grants
    assert rows["dev-train"].grants == ()
    assert ("AzureML Job Submitter", "workspace") in rows[
        "dev: Compute cpu-cluster, dev-train"
    ].grants


def test_the_workflows_as_they_are() -> None:
    """Which job may do what: one purpose a job, and none has two."""
    every = {
        row.environment: row.jobs
        for stack in ("dev", "prod")
        for row in table(load(stack), own()[stack].resources, ROOT)
    }
    assert every["prod-preview"] == ("drift.yml: drift", "infra.yml: plan")
    assert every["prod-watch"] == ("drift.yml: watch", "drift.yml: gates")
    assert every["prod-deploy"] == ("infra.yml: deploy",)
    assert every["prod-release"] == ("promote.yml: gates", "release.yml: release")
    assert every["prod-train"] == ()
    assert {*every["dev-train"]} >= {"train.yml: train"}
    for stack in ("dev", "prod"):
        jobs = [job for name, jobs in every.items() if name.startswith(stack) for job in jobs]
        assert len(jobs) == len({*jobs})


def test_another_repository_environment_grants_nothing() -> None:
    """A credential whose subject is not one of the purposes' belongs to no row."""
    other = replace(load("prod"), environment="other")
    rows = list(table(other, own()["prod"].resources, Path("/nowhere")))
    assert {row.environment: row.grants for row in rows}["other-train"] == ()
    subject = f"repo:{other.repository}:environment:prod-train"
    assert {row.environment: row.grants for row in rows}[f"other: {subject}"]


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ran(capsys, "access", "dev", "--json")
    environments = [row["environment"] for row in json.loads(out)]
    assert environments[: len(PURPOSES)] == [f"dev-{purpose}" for purpose in PURPOSES]
    assert "dev: Compute cpu-cluster" in environments
