"""The scoring script with a deliberate fault."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from types import ModuleType

import pytest

from ml.release.rollout import faulty

REAL = """
ready = False


def init():
    global ready
    ready = True


def run(body):
    assert ready
    return {"said": body}
"""


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> ModuleType:
    """The script as a server loads it: as a file, with its variables set."""
    (folder / "score.py").write_text(REAL)
    monkeypatch.setenv(faulty.SCRIPT, str(folder / "score.py"))
    monkeypatch.setenv(faulty.FAULT, fault)
    spec = importlib.util.spec_from_file_location("faulty_as_a_file", faulty.__file__)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.init()
    return made


def test_one_request_in_ten_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other answers are correct."""
    made = loaded(tmp_path, monkeypatch, "errors")
    failed = 0
    for number in range(30):
        try:
            assert made.run(str(number)) == {"said": str(number)}
        except RuntimeError:
            failed += 1
    assert failed == 3


def test_slow_answers_are_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded(tmp_path, monkeypatch, "slow")
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert made.run("a") == {"said": "a"}
    assert waited == [faulty.SLOW_S]


def test_a_constant_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loaded(tmp_path, monkeypatch, "constant")
    assert [made.run(body) for body in "abc"] == [{"said": "a"}] * 3
