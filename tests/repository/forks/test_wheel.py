"""The framework as one wheel."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ml.core.errors import UserError
from ml.repository.forks import wheel
from tests.conftest import ROOT

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree's packages of the framework."""
    folder = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "-z", "infra", "ml", "policies", "requirements", "*.toml", "README.md",
         ".amlignore"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file() and not name.startswith("ml/projects/faq"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*GIT, *words], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(source, tmp_path_factory.mktemp("dist"))


def test_the_same_commit_gives_the_same_bytes(source: Path, built: Path, tmp_path: Path) -> None:
    """Whatever is not committed, at another time, with other rights for new files."""
    (source / "ml/core/uncommitted.py").touch()
    before = os.umask(0o077)
    try:
        again = wheel.build(source, tmp_path / "dist")
    finally:
        os.umask(before)
        (source / "ml/core/uncommitted.py").unlink()
    assert again.name == built.name
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (built, again)}
    assert len(digests) == 1


def test_it_holds_every_module_but_features_and_projects(built: Path) -> None:
    """And their data, the locks, and which files travel to a node."""
    names = set(zipfile.ZipFile(built).namelist())
    held = {
        path.relative_to(ROOT).as_posix()
        for room in ("infra", "ml", "policies")
        for path in (ROOT / room).rglob("*")
        if path.suffix in {".py", ".json", ".j2", ".jinja", ".css", ".js"}
    }
    of_the_fork = ("ml/projects/", "ml/features/")
    expected = {name for name in held if not name.startswith(of_the_fork)}
    assert expected - names == {"infra/settings.schema.json"}
    assert {name for name in names if name.startswith(of_the_fork)} == set()
    locks = {f"requirements/{name}.lock" for name in ("main", "dev", "infra", "update")}
    data = "azureml_gitops_starter-0.1.0.data/data/.amlignore"
    assert {"infra/live/drift_ignore.yml", data, *locks} < names


def test_without_setuptools_it_says_so(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError, match="wheel-failed"):
        wheel.build(source, tmp_path)
