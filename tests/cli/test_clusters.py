"""The clusters that the checks of specs compare jobs with."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import loader
from ml.cli import clusters
from ml.core.errors import UserError
from tests.release.test_commands import ml

JOB = "command: echo\nenvironment: azureml:e:1\ncompute: azureml:gpu-spot\n"


def test_they_are_those_of_the_stack_files() -> None:
    """Every cluster of every environment, with the hardware of its size."""
    expected = {
        (stack, cluster.name, cluster.vm_size)
        for stack in loader.stacks()
        for cluster in loader.load(stack).clusters
    }
    declared = clusters.declared()
    assert {(each.environment, each.name, each.size) for each in declared} == expected
    spot = next(each for each in declared if (each.environment, each.name) == ("dev", "gpu-spot"))
    assert (spot.gpus, spot.max_nodes, spot.spot, spot.infiniband) == (1, 1, True, False)


@pytest.mark.parametrize(
    ("more", "exit_code"),
    [
        ("distribution: {type: pytorch, process_count_per_instance: 8}\n", 2),
        ("limits: {timeout: 600}\ndistribution: {type: pytorch}\n", 0),
    ],
)
def test_ml_check_knows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, exit_code: int
) -> None:
    """The error names the cluster, its size and the stack file."""
    (tmp_path / "job.yml").write_text(JOB + more)
    code, said, _ = ml(capsys, "check", str(tmp_path / "job.yml"))
    assert code == exit_code
    assert ("cluster-gpus" in said and "infra/Pulumi." in said) == bool(exit_code)


def test_a_wrong_stack_file_is_no_problem_of_specs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`infra settings` reports it."""
    monkeypatch.setattr(loader, "stacks", lambda *folder: ("nowhere",))
    assert clusters.declared() == []


def test_a_projects_endpoint_that_no_stack_file_declares_is_a_warning(tmp_path: Path) -> None:
    """With the line to add; a broken file is another check's."""
    declared = loader.load(loader.environments()[0]).endpoints[0].name
    for project, text in {
        "a": f"name: blue\nendpoint_name: {declared}\n",
        "b": "name: blue\nendpoint_name: claims\n",
        "c": "name: [",
    }.items():
        (tmp_path / f"ml/projects/{project}/endpoint").mkdir(parents=True)
        (tmp_path / f"ml/projects/{project}/endpoint/deployment.yml").write_text(text)
    (problem,) = clusters.stack_warnings(tmp_path)
    assert (problem.severity, problem.place and problem.place.line) == ("warning", 2)
    assert "b/endpoint/deployment.yml:2" in str(problem) and "- name: claims" in problem.expected


def test_an_invalid_stack_file_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No endpoint counts as undeclared, since the file may declare it."""

    def load(stack: str) -> object:
        raise UserError.with_code("empty-file", f"{stack} has no content")

    monkeypatch.setattr(loader, "load", load)
    folder = tmp_path / "ml/projects/a/endpoint"
    folder.mkdir(parents=True)
    (folder / "deployment.yml").write_text("name: blue\nendpoint_name: claims\n")
    (problem,) = clusters.stack_warnings(tmp_path)
    assert (problem.code, problem.severity) == ("empty-file", "warning")
    assert clusters.declared() == []
