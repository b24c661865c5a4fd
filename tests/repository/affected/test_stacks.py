"""Which stacks are behind, by the runs of the workflow that deploys them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml.repository.affected.stacks import deployed, deployed_stacks, main
from ml.repository.github.api import GitHub
from tests.github.events import git
from tests.stand_ins.github import State, serving

NAMES = ("shared", "dev", "prod")


@pytest.fixture
def state() -> State:
    return State(tokens={"token": {"actions": "read"}})


@pytest.fixture
def github(state: State) -> Iterator[GitHub]:
    with serving(state):
        yield GitHub(state.repository, "token", state.api)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone whose main has five commits, with a tag each: commit1 … commit5."""
    git(tmp_path, "init", "-q", "-b", "main")
    for number in range(1, 6):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", f"{number}")
        git(tmp_path, "tag", f"commit{number}")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "main")
    return tmp_path


def run(state: State, result: str | None, event: str = "push", **stacks: str) -> None:
    """A run of infra.yml, at the commit of its number, with what came of its stacks."""
    number = len(state.runs) + 1
    state.runs[number] = {
        "id": number,
        "path": ".github/workflows/infra.yml",
        "event": event,
        "conclusion": result,
        "head_branch": "main",
        "head_sha": f"commit{number}",
    }
    state.jobs[number] = [
        {"name": f"deploy ({name})", "conclusion": came} for name, came in stacks.items()
    ]


def test_each_stack_is_behind_by_its_own_last_deployment(
    state: State, github: GitHub, root: Path
) -> None:
    """A first deployment that a person started, of which one was rejected, counts for the others;
    a run that is not over counts for none.
    """
    assert deployed_stacks(github, root, "infra.yml", NAMES) == {}
    run(state, "failure", "workflow_dispatch", shared="success", dev="success", prod="failure")
    first = {"shared": "commit1", "dev": "commit1"}
    assert deployed_stacks(github, root, "infra.yml", NAMES) == first
    run(state, "cancelled", dev="success", prod="cancelled")
    run(state, None, prod="success")
    assert deployed_stacks(github, root, "infra.yml", NAMES) == {**first, "dev": "commit2"}
    assert deployed(github, root, "infra.yml") == ""
    run(state, "success", prod="success")
    assert deployed_stacks(github, root, "infra.yml", NAMES) == dict.fromkeys(NAMES, "commit4")
    run(state, "success", "workflow_dispatch")
    assert deployed(github, root, "infra.yml") == "commit5"


@pytest.mark.attack("a fork's branch `main` has a run of infra.yml that passes for a deployment")
def test_a_run_of_a_pull_request_deployed_nothing(state: State, github: GitHub, root: Path) -> None:
    run(state, "success", "pull_request", **dict.fromkeys(NAMES, "success"))
    run(state, "failure", "pull_request_target", **dict.fromkeys(NAMES, "success"))
    assert deployed_stacks(github, root, "infra.yml", NAMES) == {}
    assert deployed(github, root, "infra.yml") == ""


def test_a_workflows_option_outside_of_one_is_a_wrong_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make needed` is typed by infra.yml, which sets the run and its stacks."""
    for name in ("GITHUB_RUN_ID", "STACKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["--needed-by", "dev"])
    assert ended.value.code == 2
    assert "--needed-by needs GITHUB_RUN_ID, which infra.yml sets" in capsys.readouterr().err
