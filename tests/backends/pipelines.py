"""Pipelines of shell commands for the tests: written as specs, run by the local backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.runs import Run, Watch, unwatched
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import PipelinePlan
from ml.specs.sdk.load import load

RunPipeline = Callable[..., Run]
# `@` stands for the two fields that every command step has.
EVERY_STEP = "type: command, environment: azureml:e:1"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository; the working directory of the test."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "pyproject.toml").touch()
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def run_pipeline(home: Path, repository: Path) -> RunPipeline:
    """Plans and runs the spec of a pipeline."""

    def run(text: str, watch: Watch = unwatched) -> Run:
        return LocalBackend().run(planned(repository, text), watch)

    return run


def write(repository: Path, text: str, name: str = "pipeline.yml") -> Path:
    """The spec of a pipeline in the repository."""
    path = repository / name
    path.parent.mkdir(exist_ok=True)
    text = f"type: pipeline\nexperiment_name: tests\n{text.rstrip()}\n"
    path.write_text(text.replace("@", EVERY_STEP) + "compute: azureml:c\n")
    return path


def planned(repository: Path, text: str) -> PipelinePlan:
    """The plan of a pipeline's spec."""
    made = plan(load(write(repository, text)))
    assert isinstance(made, PipelinePlan)
    return made


def statuses(run: Run) -> dict[str, str]:
    """What became of each step: its status, `reused`, or why it ended before its time."""
    return {
        one.name.removeprefix(f"{run.name}."): "reused"
        if one.reused_from
        else one.ended_by or one.status
        for one in run.steps
    }
