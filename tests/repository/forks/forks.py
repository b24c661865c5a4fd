"""A repository of its own for tests and benchmarks: what travels to a node, without projects."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


def fork(folder: Path) -> Path:
    """Make it in the folder, committed, with this repository's commands under .venv/bin."""
    rooms = ("environments", "features", "measures", "serving", "toolkit")
    for room in (*(f"ml/{name}" for name in rooms), "policies", "requirements"):
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


def wheel(version: str) -> bytes:
    """A wheel of the framework of that version, with nothing else in it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as files:
        name = f"azureml_gitops_starter-{version}.dist-info/METADATA"
        text = f"Metadata-Version: 2.4\nName: azureml-gitops-starter\nVersion: {version}\n"
        files.writestr(zipfile.ZipInfo(name), text)
    return packed.getvalue()


def wheel_name(version: str) -> str:
    return f"azureml_gitops_starter-{version}-py3-none-any.whl"
