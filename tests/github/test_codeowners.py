"""Whose approval a change needs: everything has an owner, and what decides is the platform's."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pathspec
import pytest

from tests.conftest import ROOT

LINES = [
    line.split()
    for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    if line and not line.startswith("#")
]
# What a team may own: a project's folder and its tests. Not what it has to pass and what serves.
OF_TEAMS = pathspec.PathSpec.from_lines(
    "gitignore",
    [
        *("/ml/projects/*/", "/tests/projects/*/"),
        *("!/ml/projects/*/gates.yml", "!/ml/projects/*/release.yml"),
        "!/ml/projects/*/evidence/**",
    ],
)
NEW = [
    *(f"ml/projects/new/{name}" for name in ("gates.yml", "release.yml", "evidence/dev.json")),
    *("ml/release/new.py", "policies/new.yml", "new", ".github/new.yml"),
]


def tracked() -> list[str]:
    """What git knows of this repository."""
    words = ["git", "ls-files", "-z"]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in done.stdout.split("\0") if name]


def owners(path: str, lines: Sequence[Sequence[str]] = LINES) -> Sequence[str]:
    """Those of the last line that matches (docs.github.com, "About code owners")."""
    for pattern, *who in reversed(lines):
        if pathspec.PathSpec.from_lines("gitignore", [pattern]).match_file(path):
            return who
    return []


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[0])
def test_a_line_names_who(line: list[str]) -> None:
    _, *who = line
    assert who and all(each.startswith("@") and "/" in each for each in who)


@pytest.mark.attack("What verifies, judges or declares is changed without its owners")
def test_everything_has_an_owner() -> None:
    """The first line is of everything, and of it a project's team is given its own files alone."""
    (everything, *platform), *_ = LINES
    assert everything == "*" and platform
    others = {path: owners(path) for path in [*tracked(), *NEW] if not OF_TEAMS.match_file(path)}
    assert {path: who for path, who in others.items() if who != platform} == {}
    assert all(owners(path) for path in tracked())


def test_the_last_line_counts() -> None:
    """A team's line stands before those of what it may not change alone."""
    first, *rest = LINES
    at = next(n for n, line in enumerate(rest) if line[0].endswith("gates.yml"))
    lines = [first, *rest[:at], ["/ml/projects/words/", "@us/words"], *rest[at:]]
    assert owners("ml/projects/words/train.py", lines) == ["@us/words"]
    assert owners("ml/projects/words/gates.yml", lines) == first[1:]
    assert owners("ml/projects/words/gates.yml", [*lines, lines[at + 1]]) == ["@us/words"]
