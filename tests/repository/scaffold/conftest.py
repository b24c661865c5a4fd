"""Fixture: a repository into which tests write projects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository without projects, with the assets and code that new projects need."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ml" / "projects").mkdir(parents=True)
    for room in ("environments", "measures", "serving", "toolkit"):
        shutil.copytree(ROOT / "ml" / room, tmp_path / "ml" / room)
    shutil.copy(ROOT / ".amlignore", tmp_path)
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / "requirements" / "main.lock", tmp_path / "requirements")
    monkeypatch.chdir(tmp_path)
    return tmp_path
