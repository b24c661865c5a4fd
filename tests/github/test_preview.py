"""The comment that a pull request would get, by the results that lie on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ml.cli.app import main
from ml.core.errors import Refused
from ml.repository.github.pull_requests.posting import preview
from tests.github.events import git

TRAIN = "ml/projects/shop/jobs/train.yml"
SMOKE = [{"project": "shop", "status": "Completed", "seconds": 3.0, "metrics": {"auc": 0.8}}]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A branch that changes the project `shop`, which `main` has; the folder of the results."""
    for name in (TRAIN, ".gitignore", "tests/projects/test_every_project.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(".local\n" if name == ".gitignore" else "type: command\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "checkout", "-qb", "change")
    (tmp_path / TRAIN).write_text("type: command\ndescription: another\n")
    git(tmp_path, "commit", "-qam", "second")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "pyproject.toml").unlink()
    folder = tmp_path / ".local/check"
    folder.mkdir(parents=True)
    return folder


def shown(results: Path) -> str:
    """The comment, without GitHub and its variables."""
    return preview(results.parents[1], "main", results)


def write(results: Path, **documents: object) -> None:
    """Write results of checks, a name without its ending each."""
    for name, document in documents.items():
        (results / f"{name.replace('_', '-')}.json").write_text(json.dumps(document))


def test_what_is_missing_is_named_with_its_command(results: Path) -> None:
    """No result is a check that passed."""
    text = shown(results)
    assert text.startswith("<!-- ml-check -->") and "### ❌ Not ready to merge" in text
    for command in ("make lint", "make smoke", "make affected-tests"):
        assert f"run {command}" in text
    assert "make preview" not in text  # the change touches no stack
    assert "`change` did not run, which this change requires" in text


def test_results_are_shown_as_in_the_comment_of_a_run(results: Path) -> None:
    """All there: the verdict, the small run and the comparison of the training."""
    compared = {"candidate": {"name": "shop 2"}, "environment": "local"}
    trained = [{"project": "shop", "error": "", "comparison": compared}]
    write(results, lint=[], smoke=SMOKE, affected_tests=[], train=trained)
    text = shown(results)
    assert "### ✅ Every check passed" in text and "auc 0.8" in text
    assert "**Trained on this machine**" in text and "### shop 2 for local" in text


@pytest.mark.parametrize(
    ("smoke", "words"),
    [
        ([{**SMOKE[0], "status": "Failed", "error": "no rows"}], "`change` failed"),
        (None, "`change` failed"),
        ({}, "`change` failed"),
        ([None], "`change` failed"),
    ],
    ids=["a run that failed", "a check that was stopped", "no list", "a list of nothing"],
)
def test_a_check_that_failed_is_in_the_verdict(smoke: object, words: str, results: Path) -> None:
    """As in the comment of a run."""
    write(results, lint=[], smoke=smoke, affected_tests=[])
    assert words in shown(results)


def test_a_result_of_older_files_counts_for_nothing(results: Path) -> None:
    """A file was changed since: the command is named again, and its numbers are not shown."""
    write(results, lint=[], smoke=SMOKE, affected_tests=[])
    os.utime(results / "smoke.json", (0, 0))
    text = shown(results)
    assert "run make smoke" in text and "auc 0.8" not in text
    assert "did not run “a small run of the projects”" in text


def test_what_no_check_wrote_is_told(results: Path) -> None:
    """Half a file is none."""
    (results / "smoke.json").write_text('[{"project"')
    text = shown(results)
    assert "smoke.json cannot be read" in text and "`change` did not run" in text


def test_the_command_needs_no_credentials(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ml comment --preview`; another base than one that git knows is refused."""
    monkeypatch.chdir(results.parents[1])
    for name in ("GITHUB_REPOSITORY", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["comment", "--preview", "--base", "main"])
    assert ended.value.code == 0
    assert "Not ready to merge" in capsys.readouterr().out
    with pytest.raises(Refused, match="no revision"):
        preview(results.parents[1], "nowhere", results)
