"""Wheels of a few lines, so that environments are built without a network."""

from __future__ import annotations

import ensurepip
import zipfile
from pathlib import Path

import pytest


def wheel(folder: Path, name: str, version: str, content: str = "", requires: str = "") -> None:
    """A wheel with one module of the package's name, whose `VERSION` is its version."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n{content}")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that packages come from; it has the pip that comes with Python."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for path in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder
