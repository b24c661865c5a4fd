"""What holds of every project under ml/projects, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.local.execution.saved_plan import from_json, to_json
from ml.release.declaration import release_file
from ml.release.selection import weights
from ml.release.serving import read
from ml.specs.check.check import check
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import AutoMLPlan
from ml.specs.sdk.load import load
from ml.specs.search.hints import is_hints
from policies.promotion import gate_settings
from tests.conftest import ROOT

FOLDER = ROOT / "ml" / "projects"
PROJECTS = sorted(path.parent for path in FOLDER.glob("*/gates.yml"))
JOBS = sorted(path for path in FOLDER.glob("*/jobs/*.yml") if not is_hints(path))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_project_can_be_released(project: Path) -> None:
    """Its gates are no looser than the policy; its select.yml and release.yml are valid."""
    assert gate_settings.load(project / "gates.yml")
    assert weights.read(project).quality.weight
    release = project / "release.yml"
    assert not release.is_file() or release_file.check(release) == []


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: path.name)
def test_a_project_can_be_served(project: Path) -> None:
    """From the root of the repository, and without keys."""
    assert read(project / "endpoint").code == ROOT
    assert "auth_mode: aad_token" in (project / "endpoint" / "endpoint.yml").read_text()


@pytest.mark.parametrize("spec", JOBS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_a_plan_comes_back(spec: Path) -> None:
    """Every job is sound, and the plan of one that this machine runs is the same when it was
    written and read again.
    """
    loaded = load(spec)
    assert not [problem for problem in check(loaded) if problem.severity == "error"]
    job_plan = plan(loaded)
    if isinstance(job_plan, AutoMLPlan):
        return
    assert from_json(json.loads(json.dumps(to_json(job_plan)))) == job_plan
