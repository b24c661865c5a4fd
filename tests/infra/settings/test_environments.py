"""The places that declare environments have to agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from infra.settings import environments
from infra.settings.environments import of_workflows
from tests.conftest import ROOT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The stack files, gates and workflows of this repository."""
    for folder in ("infra", "policies/promotion", ".github/workflows"):
        (tmp_path / folder).mkdir(parents=True)
    files = [*ROOT.glob("infra/Pulumi.*.yaml"), *ROOT.glob(".github/workflows/*.yml")]
    for path in (*files, ROOT / "policies/promotion/gates.yml"):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def places(root: Path) -> list[str]:
    found = environments.problems(root)
    assert {problem.code for problem in found} <= {"environment-mismatch"}
    return [str(problem.place).rpartition(":")[0] for problem in found]


# A workflow whose options are a number.
NUMBER = "on: {workflow_dispatch: {inputs: {environment: {options: 3}}}}\njobs: {}"
GATES, PROMOTE = "policies/promotion/gates.yml", ".github/workflows/promote.yml"


def test_the_places_of_this_repository_agree(root: Path) -> None:
    """Also without promote.yml, and where a repository has no stacks."""
    assert places(root) == []
    (root / PROMOTE).unlink()
    assert places(root) == []
    shutil.rmtree(root / "infra")
    assert places(root) == []


def test_an_environment_is_added_to_each_place(root: Path) -> None:
    """The stack alone, then with its place in the order, then with its option."""
    shutil.copy(root / "infra/Pulumi.staging.yaml", root / "infra/Pulumi.test.yaml")
    assert places(root) == ["infra/Pulumi.test.yaml"]
    edit(root / GATES, "[dev, staging, prod]", "[dev, test, staging, prod]")
    assert places(root) == [PROMOTE]
    jobs = [each.job for each in of_workflows(root) if each.name == "test-release"]
    assert "promote.yml: gates" not in jobs
    edit(root / PROMOTE, "[staging, prod]", "[test, staging, prod]")
    assert places(root) == []
    jobs = [each.job for each in of_workflows(root) if each.name == "test-release"]
    assert "promote.yml: gates" in jobs


def test_a_renamed_environment_is_renamed_in_each_place(root: Path) -> None:
    """A stack without a place in the order would be deployed after prod."""
    (root / "infra/Pulumi.staging.yaml").rename(root / "infra/Pulumi.preprod.yaml")
    assert places(root) == [GATES, "infra/Pulumi.preprod.yaml"]
    edit(root / GATES, "[dev, staging, prod]", "[dev, preprod, prod]")
    assert places(root) == [PROMOTE]
    edit(root / PROMOTE, "[staging, prod]", "[preprod, prod]")
    assert places(root) == []


def test_a_workflow_that_names_no_stack(root: Path) -> None:
    """merge.yml and train.yml name the first environment by itself."""
    (root / "infra/Pulumi.dev.yaml").rename(root / "infra/Pulumi.lab.yaml")
    edit(root / GATES, "[dev, staging, prod]", "[lab, staging, prod]")
    merge, train = (f".github/workflows/{name}.yml" for name in ("merge", "train"))
    assert places(root) == [merge, merge, train]


def test_an_environment_before_the_one_that_merges_promote_to(root: Path) -> None:
    """No version would come past it."""
    shutil.copy(root / "infra/Pulumi.dev.yaml", root / "infra/Pulumi.lab.yaml")
    edit(root / GATES, "[dev, staging, prod]", "[lab, dev, staging, prod]")
    edit(root / PROMOTE, "[staging, prod]", "[dev, staging, prod]")
    merge, train = (f".github/workflows/{name}.yml" for name in ("merge", "train"))
    assert places(root) == [merge, merge, train]


def test_an_environment_outside_the_order(root: Path) -> None:
    """One that the gate lists as `unordered` has its place."""
    shutil.copy(root / "infra/Pulumi.staging.yaml", root / "infra/Pulumi.play.yaml")
    edit(root / GATES, "unordered: [local]", "unordered: [local, play]")
    assert places(root) == []


@pytest.mark.parametrize(
    "text", ["jobs: [1]", "jobs: {a: 1}", "on: push", "- 1", "a: b: c", NUMBER]
)
def test_a_workflow_of_any_shape(text: str, root: Path) -> None:
    """A file that is no workflow raises nothing but UserError."""
    (root / PROMOTE).write_text(text)
    assert environments.problems(root)
