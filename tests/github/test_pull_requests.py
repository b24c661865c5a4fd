"""A pull request that a workflow keeps: opened once, updated, and left to people who act on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml.core.errors import Refused
from ml.repository.github import GitHub
from tests.github.events import git
from tests.stand_ins.github import APP, State, serving

BRANCH, TITLE = "revert/words-prod", "Revert words in prod"
FILES = {"a/release.yml": "version: 1\n", "gone.txt": None}


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    work = tmp_path / "origin"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "gone.txt").write_text("here\n")
    (work / "kept.txt").write_text("here\n")
    git(work, "add", "-A")
    git(work, "commit", "-qm", "first")
    rights = {"contents": "write", "pull-requests": "write"}
    with serving(State(folder=work, tokens={"app": rights}, apps={"app"})) as state:
        yield state


def keep(state: State, body: str = "words", files: dict[str, str | None] | None = None) -> str:
    github = GitHub(state.repository, "app", state.api)
    return github.keep_pull_request(BRANCH, TITLE, body, files or dict(FILES))[1]


def content(state: State) -> list[str]:
    assert state.folder
    return git(state.folder, "ls-tree", "-r", "--name-only", BRANCH).splitlines()


def pushed(state: State, branch: str) -> None:
    """Somebody adds a commit."""
    assert state.folder
    git(state.folder, "switch", "-q", branch)
    (state.folder / "kept.txt").write_text(f"by somebody on {branch}\n")
    git(state.folder, "commit", "-qam", "by somebody")
    git(state.folder, "switch", "-q", "--detach")


def test_opened_once_and_updated_in_place(state: State) -> None:
    """Twice is as once; the branch is main with the files, also when main has moved."""
    assert keep(state) == "pull request 200 is opened"
    assert content(state) == ["a/release.yml", "kept.txt"]
    (pull,) = state.pulls
    assert pull["user"]["login"] == APP and pull["base"] == {"ref": "main"}
    assert keep(state) == "pull request 200 is as it should be"
    assert keep(state, "other words") == "pull request 200 is updated"
    pushed(state, "main")
    assert keep(state, "other words") == "pull request 200 is updated"
    assert state.folder
    assert git(state.folder, "show", f"{BRANCH}:kept.txt") == "by somebody on main"
    assert len(state.pulls) == 1


def test_what_was_begun_is_finished(state: State) -> None:
    """A run that was killed between the branch and the pull request."""
    keep(state)
    state.pulls.clear()
    before = git(state.folder, "rev-parse", BRANCH) if state.folder else ""
    assert keep(state) == "pull request 200 is opened"
    assert state.folder and git(state.folder, "rev-parse", BRANCH) == before


def test_people_have_the_last_word(state: State) -> None:
    """A commit of somebody stays; what was closed or merged is not opened again."""
    keep(state)
    pushed(state, BRANCH)
    assert keep(state, files={"a/release.yml": "version: 9\n"}).endswith("as it should be")
    assert state.folder and git(state.folder, "show", f"{BRANCH}:kept.txt").startswith("by some")
    state.pulls[0]["state"] = "closed"
    state.changes.clear()
    assert keep(state) == "pull request 200 is closed, and stays so"
    assert state.changes == [] and len(state.pulls) == 1


def test_a_token_that_reads_opens_nothing(state: State) -> None:
    state.tokens["app"] = {"contents": "read", "pull-requests": "read"}
    with pytest.raises(Refused, match="github-failed"):
        keep(state)
    assert state.pulls == state.changes == []
