"""A fork without the example projects: what ml/projects/README.md says to delete, and then."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "ml/projects/README.md"
DELETE = re.compile(r"^git rm -rq --ignore-unmatch (.+)$", re.M)
# The quick ones, and those that looked at the project before they had one of their own.
TESTS = (
    "tests/test_architecture.py",
    "tests/test_readme.py",
    "tests/projects",
    "tests/cli/test_costs.py",
    "tests/docs/test_errors.py",
)
# An example by its name; the others by their packages, since their names are words that tests use.
NAMED = re.compile(r"faq_matching|ml\.projects\.(fraud|filings|shelf|demand)")
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")


def tracked(folder: Path) -> list[str]:
    """What git knows of a folder and is there."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=folder, check=True, capture_output=True, text=True
    )
    return [name for name in done.stdout.split("\0") if name and (folder / name).is_file()]


@pytest.mark.example
def test_nothing_else_reads_the_example() -> None:
    """What is neither deleted nor told by the page names no folder of an example."""
    (gone,) = DELETE.findall(PAGE.read_text())
    page = PAGE.read_text().partition("## To delete")[2]
    named = [
        name
        for name in tracked(ROOT)
        if name.endswith((".py", ".yml", ".yaml", ".toml", "Makefile", ".amlignore", ".ci/run"))
        and not name.startswith(tuple(gone.split()))
        and NAMED.search((ROOT / name).read_text())
    ]
    assert {*named} == {"Makefile", "tests/conftest.py", "tests/test_fork.py"}
    assert "Makefile" in page and "tests/test_fork.py" in page


@pytest.mark.slow
@pytest.mark.example
def test_a_fork_without_the_example_is_green(tmp_path: Path) -> None:
    """A copy in a folder with a space, the command of the page typed there: nothing fails."""
    fork = tmp_path / "our fork"
    for name in tracked(ROOT):
        (fork / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, fork / name)
    environment = {**os.environ, "PYTHONPATH": str(fork)}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=fork, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run("git", "init", "-q")
    run("git", "add", "-A")
    run(*GIT, "commit", "-qm", "the template")
    (deleting,) = DELETE.findall(PAGE.read_text())
    run("git", "rm", "-rq", *deleting.split())
    run(*GIT, "commit", "-qm", "without the example")
    assert [path.name for path in (fork / "ml/projects").iterdir() if path.is_dir()] == []

    python = (sys.executable, "-m")
    pytest_ = (*python, "pytest", "-q", "-p", "no:cacheprovider")
    run(*pytest_, "--collect-only", "--assert=plain")  # rewritten asserts are not run
    said = run(*pytest_, *TESTS)
    assert " passed" in said and "about ml/projects/faq_matching, now deleted" in said
    run(sys.executable, "-c", "from ml.cli.entry import main; main()", "check")
    listed = run(*python, "benchmarks", "--list")
    assert "faq-recipe" not in listed and "filings-onnx" not in listed
