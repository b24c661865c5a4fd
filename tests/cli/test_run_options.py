"""`ml run --isolated`, what it says of environments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.cli.app import main

JOB = """\
command: echo hi
environment:
  image: mcr.microsoft.com/azureml/base:1
  conda_file: conda.yml
compute: azureml:c
experiment_name: tests
"""
CONDA = "dependencies:\n  - python\n  - pip:\n    - no-such-package==1\n"
Ml = Callable[..., int]


@pytest.fixture
def ml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ml:
    """Runs `ml …` in a repository of one job; its exit code."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "conda.yml").write_text(CONDA)
    (tmp_path / "job.yml").write_text(JOB)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> int:
        try:
            main(list(words))
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return call


def test_a_dry_run_names_every_difference(ml: Ml, capsys: pytest.CaptureFixture[str]) -> None:
    """One line an environment, then each package with its place; all of it in JSON."""
    assert ml("run", "job.yml", "--dry-run") == 0
    said = capsys.readouterr().err
    assert "1 of 2 packages differ: missing here: `no-such-package==1`" in said
    assert "  conda.yml:4: missing here: `no-such-package==1`" in said
    assert ml("run", "job.yml", "--dry-run", "--json") == 0
    (environment,) = json.loads(capsys.readouterr().out)["environments"]
    assert environment["differences"] == [
        {"asked": "no-such-package==1", "manager": "pip", "place": "conda.yml:4", "here": ""}
    ]


def test_isolated_refuses_what_it_cannot_build(
    ml: Ml, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 33 and the line of the conda file."""
    (tmp_path / "conda.yml").write_text("dependencies:\n  - cudatoolkit=11.3\n")
    assert ml("run", "job.yml", "--isolated", "--dry-run") == 33
    assert "error[conda-only]: conda.yml:2:" in capsys.readouterr().err
