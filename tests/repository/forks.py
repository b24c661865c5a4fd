"""A repository of its own for tests and benchmarks: what travels to a node, without projects."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


def fork(folder: Path) -> Path:
    """Make it in the folder, committed, with this repository's commands under .venv/bin."""
    for room in ("ml/environments", "ml/serving", "ml/toolkit", "policies", "requirements"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, folder / room, ignore=ignored)
    (folder / "ml/projects").mkdir()
    for name in ("ml/projects/__init__.py", "pyproject.toml", ".amlignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(ROOT / ".venv/bin")
    for words in (["init", "-q"], ["add", "ml", "policies"], ["commit", "-qm", "fork"]):
        subprocess.run([*GIT, *words], cwd=folder, check=True)
    return folder
