"""A pull request that a workflow keeps: opened once, updated, and left to people who act on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml.core.errors import UserError
from ml.repository.github.api import GitHub
from tests.github.events import git
from tests.stand_ins.github import APP, BOT, State, serving

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
    main = github.head()
    return github.keep_pull_request(BRANCH, TITLE, body, files or dict(FILES), main)[1]


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
    assert keep(state, files={"a/release.yml": "version: 9\n"}).endswith("not updated")
    assert state.folder and git(state.folder, "show", f"{BRANCH}:kept.txt").startswith("by some")
    state.pulls[0]["state"] = "closed"
    state.changes.clear()
    assert keep(state) == "pull request 200 is closed, and stays so"
    assert state.changes == [] and len(state.pulls) == 1


@pytest.mark.attack("A stranger's commit is on the branch before the app opens its pull request")
@pytest.mark.parametrize("message", ["by a stranger", TITLE], ids=["own words", "the app's words"])
def test_a_branch_of_somebody_else_is_not_presented(message: str, state: State) -> None:
    """Whatever its message; a person removes the branch, then the next run opens its own."""
    assert state.folder
    git(state.folder, "switch", "-qc", BRANCH)
    (state.folder / "kept.txt").write_text("by a stranger\n")
    git(state.folder, "commit", "-qam", message)
    with pytest.raises(UserError, match="branch-conflict"):
        keep(state)
    assert state.pulls == []
    git(state.folder, "switch", "-q", "--detach", "main")
    git(state.folder, "branch", "-qD", BRANCH)
    assert keep(state) == "pull request 200 is opened"


@pytest.mark.attack("A stranger's commit ends with the app's files, and has another history")
def test_a_branch_with_another_history_is_not_presented(state: State) -> None:
    keep(state)
    assert state.folder
    state.pulls.clear()
    git(state.folder, "switch", "-q", BRANCH)
    git(state.folder, "commit", "-q", "--allow-empty", "-m", TITLE)
    git(state.folder, "switch", "-q", "--detach", "main")
    with pytest.raises(UserError, match="branch-conflict"):
        keep(state)
    assert state.pulls == []


@pytest.mark.attack("A pull request of a fork, or of a workflow, stands in for the app's")
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("login", ["mallory", BOT, APP])
def test_a_branch_of_a_fork_is_another(login: str, is_open: bool, state: State) -> None:
    """The organisation may own forks, whose branches have the same owner and name."""
    state.pulls.append(
        {
            "number": 7,
            "state": "open" if is_open else "closed",
            "user": {"login": login},
            "head": {"sha": "f" * 40, "label": f"team:{BRANCH}", "repo": {"full_name": "team/x"}},
        }
    )
    assert keep(state).endswith("is opened")
    state.pulls[1].update(user={"login": BOT}, state=state.pulls[0]["state"])
    if is_open:
        with pytest.raises(UserError, match="branch-conflict"):
            keep(state)
    else:
        assert keep(state).endswith("is opened")


@pytest.mark.attack("A stranger pushes between the app's commit and its pull request")
def test_a_push_before_the_pull_request_closes_it(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = GitHub.send

    def meanwhile(github: GitHub, method: str, path: str, body: Any = None) -> Any:
        if (method, path) == ("POST", "pulls"):
            pushed(state, BRANCH)
        return send(github, method, path, body)

    monkeypatch.setattr(GitHub, "send", meanwhile)
    with pytest.raises(UserError, match="branch-conflict"):
        keep(state)
    assert [pull["state"] for pull in state.pulls] == ["closed"]


def test_a_token_that_reads_opens_nothing(state: State) -> None:
    state.tokens["app"] = {"contents": "read", "pull-requests": "read"}
    with pytest.raises(UserError, match="github-failed"):
        keep(state)
    assert state.pulls == state.changes == []
