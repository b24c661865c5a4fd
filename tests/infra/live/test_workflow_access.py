"""The table of what each workflow may do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra import cli
from infra.live.workflow_access import Access, markdown, table
from infra.settings.loader import load
from infra.settings.workflows import PURPOSES
from tests.conftest import ROOT
from tests.infra.programs import own

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
    assert ("AzureML Registry User", "assets") in rows["prod-release"].grants
    assert ("Contributor", "the subscription") in rows["prod-deploy"].grants
    writing = {role for role, _ in rows["prod-preview"].grants} - {"Key Vault Crypto User"}
    assert all(role.endswith("Reader") for role in writing)
    shared = {
        grant for grant in rows["prod-train"].grants if grant in set(rows["prod-release"].grants)
    }
    assert shared == {("Storage Blob Data Contributor", "workspace-storage")}


def test_who_approves(rows: dict[str, Access]) -> None:
    """What releases and deploys, in the environments that name people."""
    approved = {name for name, row in rows.items() if row.reviewers}
    assert approved == {"prod-release", "prod-deploy"}


def test_the_workflows_as_they_are() -> None:
    """Which job may do what: one purpose a job, and none has two."""
    every = {
        row.environment: row.jobs
        for stack in ("dev", "prod")
        for row in table(load(stack), own()[stack].resources, ROOT)
    }
    assert every["prod-preview"] == ("drift.yml: drift", "infra.yml: plan")
    assert every["prod-watch"] == ("drift.yml: watch",)
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


def test_as_a_table_and_as_json(
    rows: dict[str, Access], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = markdown([rows["prod-release"]]).splitlines()
    assert lines[2].startswith("| prod-release | release.yml: apply | AzureML Registry User on")
    assert lines[2].endswith("| your-organisation/ml-platform |")
    with pytest.raises(SystemExit):
        cli.main(["access", "dev", "--format", "json"])
    environments = [row["environment"] for row in json.loads(capsys.readouterr().out)]
    assert environments == [f"dev-{purpose}" for purpose in PURPOSES]
