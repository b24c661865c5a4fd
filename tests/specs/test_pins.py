"""Conda files pin what the lock pins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.specs.check import pins
from tests.conftest import ROOT


def found(root: Path, text: str) -> list[tuple[str, int]]:
    folder = root / "ml/environments/own"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conda.yml").write_text(text)
    return [
        (each.expected.partition(",")[0], each.place.line if each.place else 0)
        for each in pins.problems(root)
    ]


def test_pins_are_compared_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of locked packages, of conda's and of pip's form; of others nothing is known."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "requirements/main.lock").write_text("numpy==2.4.6 \\\n    --hash=x\nmy-own==1\n")
    monkeypatch.chdir(tmp_path)
    head = "dependencies:\n  - python=3.11\n"
    assert found(tmp_path, f"{head}  - numpy=2.4.6\n  - pip:\n      - other==7\n") == []
    assert found(tmp_path, f"{head}  - numpy=2.4.5 # old\n") == [("2.4.6", 3)]
    assert found(tmp_path, f"{head}  - pip:\n      - My_Own[fast]==2\n") == [("1", 4)]
    assert found(tmp_path, f"{head}  - conda-forge::numpy=1.26\n") == [("2.4.6", 3)]
    assert found(tmp_path, f"{head}  - pip:\n      - deepspeed==0.1\n") == []
    (tmp_path / "requirements/torch.lock").write_text("deepspeed==0.2 \\\n    --hash=x\nnumpy==9\n")
    assert found(tmp_path, f"{head}  - pip:\n      - deepspeed==0.1\n") == [("0.2", 4)]
    assert found(tmp_path, f"{head}  - numpy=2.4.6\n") == []
    (tmp_path / "requirements/torch.lock").unlink()
    (tmp_path / "requirements/main.lock").unlink()
    assert found(tmp_path, f"{head}  - numpy=1\n") == []


def test_the_environments_of_this_repository_agree() -> None:
    assert [*pins.problems(ROOT)] == []
