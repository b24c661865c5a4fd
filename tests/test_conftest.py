"""How many workers run the tests, and how these are dealt to them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import ROOT, deal, pytest_xdist_auto_num_workers


def named(name: str) -> Any:
    """A test that is slow if its name is in upper case."""
    return SimpleNamespace(name=name, get_closest_marker=lambda _: name.isupper() or None)


@pytest.mark.parametrize(
    ("names", "workers", "dealt"),
    [
        ("aBcD", 1, "BDac"),
        ("aBcDefgH", 2, "BaceDHfg"),
        ("ABCd", 2, "AdBC"),
        ("abc", 2, "abc"),
        ("A", 3, "A"),
    ],
)
def test_each_worker_begins_with_its_share_of_the_slow_ones(
    names: str, workers: int, dealt: str
) -> None:
    """As many tests as the others have, and none is lost."""
    assert "".join(of.name for of in deal([*map(named, names)], workers)) == dealt


def test_a_worker_more_than_processors_unless_a_person_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the processors that this process may use."""
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert pytest_xdist_auto_num_workers() == 4
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert pytest_xdist_auto_num_workers() == 9
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    assert pytest_xdist_auto_num_workers() is None


def test_a_hook_of_git_may_start_the_tests(tmp_path: Path) -> None:
    """Git tells its hooks the repository by variables: tests commit to others, of their own."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    of_git = {"GIT_DIR": f"{tmp_path}/.git", "GIT_INDEX_FILE": f"{tmp_path}/.git/index"}
    test = "tests/policies/test_waivers.py::test_a_waiver_begins_on_the_day_of_its_merge"
    words = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
    variables = {**os.environ, **of_git, "PYTHONPATH": str(ROOT)}
    folders = ["--basetemp", str(tmp_path / "tests")]
    done = subprocess.run(
        [sys.executable, *words, *folders], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    branches = subprocess.check_output(["git", "branch", "--all"], cwd=tmp_path)
    assert (done.returncode, branches) == (0, b""), done.stdout + done.stderr


def test_every_snapshot_is_of_a_test() -> None:
    """Syrupy reports unused snapshots of the folders in which a test uses one, and of no others."""
    for path in (ROOT / "tests").rglob("*.ambr"):
        module = (path.parent.parent / f"{path.stem}.py").read_text()
        names = re.findall(r"^# name: (\w+)", path.read_text(), re.M)
        assert names and all(f"def {name}(" in module for name in names), path
