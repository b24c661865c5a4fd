"""`make lock` in a thin fork: what a team adds or raises, within the ranges of the framework."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

RANGES = "Requires-Dist: alpha<3,>=1\nRequires-Dist: beta>=1\nRequires-Dist: tool; extra == 'dev'\n"
PACKAGES = ("alpha-1.0", "alpha-2.0", "alpha-3.0", "beta-1.0", "beta-2.0", "own-1.0", "own-2.0")


def package(name: str, text: str = "") -> bytes:
    """A wheel of a package without code."""
    name, _, version = name.partition("-")
    packed, folder = io.BytesIO(), f"{name}-{version}.dist-info"
    with zipfile.ZipFile(packed, "w") as files:
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{text}"
        files.writestr(f"{folder}/METADATA", head)
        files.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files.writestr(f"{folder}/RECORD", "")
    return packed.getvalue()


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """A thin fork, whose framework is installed; packages are in a folder beside it."""
    (tmp_path / "packages").mkdir()
    for name in PACKAGES:
        (tmp_path / "packages" / f"{name}-py3-none-any.whl").write_bytes(package(name))
    folder = tmp_path / "fork"
    installed = folder / ".venv/framework"
    for path in (installed / "azureml_gitops_starter-1.0.dist-info", installed / "requirements",
                 folder / ".venv/bin", folder / "requirements"):  # fmt: skip
        path.mkdir(parents=True)
    (installed / "azureml_gitops_starter-1.0.dist-info/METADATA").write_text(f"Name: x\n{RANGES}")
    (installed / "requirements/main.lock").write_text("alpha==1.0\nbeta==1.0\n")
    (folder / "requirements/framework.lock").touch()
    (folder / ".venv/bin/uv").symlink_to(ROOT / ".venv/bin/uv")
    (folder / ".venv/framework.stamp").touch()
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def lock(fork: Path, *asked: str) -> dict[str, str]:
    """What `make lock` pins for these dependencies; {} where it refuses."""
    (fork / "pyproject.toml").write_text(
        f"[project]\nname = 'ours'\nversion = '1'\ndependencies = {[*asked]}\n"
    )
    variables = {"PIP_FIND_LINKS": str(fork.parent / "packages"), "UV_NO_INDEX": "1"}
    done = subprocess.run(
        ["make", "lock", f"PYTHON={ROOT}/.venv/bin/python"],
        cwd=fork,
        env={**os.environ, "MAKEFLAGS": "", "PIP_INDEX_URL": "", **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        assert "unsatisfiable" in done.stderr, done.stderr
        return {}
    text = (fork / "requirements/main.lock").read_text()
    assert text.count("--hash=sha256:") >= text.count("==") and "find-links" not in text
    pins = (line.split()[0].partition("==") for line in text.splitlines() if line[:1].isalpha())
    return {name: version for name, _, version in pins}


def test_a_pin_is_raised_within_the_ranges(fork: Path) -> None:
    """What nobody asks for stays; beyond the ranges it is refused, and the lock stays."""
    assert lock(fork) == {"alpha": "1.0", "beta": "1.0"}
    raised = {"alpha": "2.0", "beta": "1.0", "own": "1.0"}
    assert lock(fork, "alpha>=1.5", "own<2") == raised
    assert lock(fork, "alpha>=1.5", "own") == raised
    assert lock(fork, "alpha>=3") == {}
    assert "alpha==2.0" in (fork / "requirements/main.lock").read_text()
    framework = fork / ".venv/framework/requirements/main.lock"
    framework.write_text("alpha==1.0\nbeta==2.0\n")
    assert lock(fork, "alpha>=1.5", "own") == {**raised, "beta": "2.0"}
