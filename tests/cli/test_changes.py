"""`ml smoke` and `ml train` as a person types them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.release.promotion import candidate
from tests.policies import cases
from tests.release.test_commands import ml
from tests.reports.pull_requests.test_comparison import compared

JOB = """$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
command: test ${{inputs.rows}} = 1
inputs: {rows: 1000}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
experiment_name: tests
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two projects: one is small by its tag, one has no training job."""
    (tmp_path / "pyproject.toml").touch()
    for name in ("one", "two"):
        (tmp_path / "ml/projects" / name / "jobs").mkdir(parents=True)
        (tmp_path / "ml/projects" / name / "gates.yml").touch()
    job = tmp_path / "ml/projects/one/jobs/train.yml"
    job.write_text(f"{JOB}tags: {{smoke: inputs.rows=1}}\n")
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "two projects")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return job


def test_what_the_change_touches_runs_small(
    repository: Path, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing runs where nothing changed; the tag makes the job small; a failure is exit 1."""
    assert ml(capfd, "smoke", "--base", "HEAD", "--json") == (0, "[]\n", "")
    repository.write_text(repository.read_text() + "description: changed\n")
    code, out, err = ml(capfd, "smoke", "--base", "HEAD", "--json")
    (run,) = json.loads(out)
    assert ": started\n" in err
    assert (code, run["project"], run["status"]) == (0, "one", "Completed")
    repository.write_text(JOB)
    code, out, _ = ml(capfd, "smoke", "one", "two", "--json")
    assert [run["status"] for run in json.loads(out)] == ["Failed", "none"]
    assert code == 1


def test_a_training_shows_the_comparison_and_the_next_command(
    repository: Path,
    home: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person gets what `--json` has."""
    champion = cases.good(0.8, "6", cases.OTHER)
    sides = compared(cases.good(0.9), champion, tmp_path)
    trained = SimpleNamespace(run=SimpleNamespace(name="one-1"), comparison=sides)
    monkeypatch.setattr(candidate, "try_out", lambda *arguments: trained)
    code, out, err = ml(capfd, "train", "one")
    assert code == 0 and "gain_at_1" in out and "├" in out
    assert "next: ml release propose one --run one-1" in err
    assert "missing from the evidence" not in err
    trained.comparison = compared(cases.good(0.2), champion, tmp_path)
    assert "next:" not in ml(capfd, "train", "one")[2]  # the gates reject it
    code, out, err = ml(capfd, "train", "one", "--json")
    assert json.loads(out)[0]["run"] == "one-1" and "next:" not in err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "error[no-projects]"),
        (("one", "--base", "HEAD"), "error[no-projects]"),
        (("three",), "error[no-such-project]"),
        (("../one",), "error[no-such-project]"),
        (("--base", "nothing"), "error[unknown-revision]"),
    ],
)
def test_a_wrong_call(
    words: tuple[str, ...], error: str, repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ml(capfd, "smoke", *words)
    assert (code, out) == (2, "") and err.startswith(error)
