"""train.yml as comments start it: who may ask, what is trained, and what the comment shows."""

from __future__ import annotations

import json

import pytest

from ml.core.errors import UserError
from ml.reports.pull_requests.checks import MAX_LENGTH
from ml.repository.github.api import GitHub
from ml.repository.github.pull_requests.training_request import ask
from tests.github.events import PULL, Job, Repository, git
from tests.github.test_check import team, template

__all__ = ["team", "template"]
WRITER, STRANGER = "ana", "mallory"
CHANGE = {"ml/projects/words/train.py": "print('better')\n"}
RESULTS = [
    {
        "project": "words",
        "run": "train-1",
        "error": "",
        "comparison": {
            "model": "words",
            "environment": "dev",
            "candidate": {"name": "train-1", "digest": "sha256:1"},
            "champion": {"name": "words 3", "digest": "sha256:2"},
            "primary_metric": "accuracy",
            "confidence": 0.95,
            "metrics": [
                {
                    "place": "test",
                    "metric": "accuracy",
                    "candidate": {"value": 0.91, "low": 0.9, "high": 0.92},
                    "champion": {"value": 0.88, "low": 0.87, "high": 0.89},
                    "difference": {"mean": 0.03, "low": 0.01, "high": 0.05, "count": 400},
                    "sign": 1,
                    "verdict": "better",
                }
            ],
            "decision": {
                "outcome": "pending",
                "blocking": [],
                "results": [{"gate": "quality", "verdict": "pass", "mode": "enabled"}],
                "request": {"environment": "dev", "simulated": False},
            },
            "notes": ["only some gates were asked"],
        },
        "jobs": {"train-0": {"run": "train-1", "outputs": {"model": f"sha256:{'c' * 64}"}}},
    }
]
# What `make train` leaves of a job that goes on.
UNFINISHED = {
    "project": "words",
    "run": "",
    "error": "error[run-unfinished]: train-1 has not ended",
    "comparison": None,
    "jobs": {"sha256:0": {"run": "train-1", "outputs": {}}},
}


@pytest.fixture(autouse=True)
def workflow(team: Repository) -> None:
    """`make train` writes down that it ran, and leaves results; ana may write."""
    team.fake = (*team.fake, "train")
    team.writes = {"train": {".local/check/train.json": json.dumps(RESULTS)}}
    team.state.permissions[WRITER] = "write"


def head(team: Repository) -> str:
    return str(team.state.pulls[0]["head"]["sha"])


def results(jobs: dict[str, Job]) -> list[str]:
    return [job.result for job in jobs.values()]


def test_a_writer_has_a_branch_trained(team: Repository) -> None:
    """The one comment has the candidate beside the champion; again nothing changes."""
    team.owner = "team"
    team.pull_request(CHANGE)
    assert results(team.comment(f"/train {head(team)}", WRITER)) == ["success"] * 3
    assert team.commands() == [
        "make train-request",
        "make pull-request",
        "make unfinished",
        "make train",
        "make comment",
    ]
    assert team.signed_in == ["dev-train"]
    (body,) = team.state.bodies(PULL)
    assert body.split("\n")[3] == "### ⏳ The checks are still running"
    assert f"**Trained on Azure**: commit `{head(team)[:12]}`" in body
    assert "### train-1 against words 3 for dev" in body
    numbers = "0.9100 (0.9000 – 0.9200) | 0.8800 (0.8700 – 0.8900) | +0.03 (+0.01 – +0.05) better"
    assert f"| accuracy | test | {numbers} |" in body
    assert "<summary>Gates: 1 pass</summary>" in body


def test_the_next_comment_waits_for_a_training_that_had_not_ended(team: Repository) -> None:
    team.owner = "team"
    team.pull_request(CHANGE)
    team.failing = ("train",)
    team.writes = {"train": {".local/check/train.json": json.dumps([UNFINISHED])}}
    assert results(team.comment(f"/train {head(team)}", WRITER))[1] == "failure"
    assert "train-1 has not ended" in team.state.bodies(PULL)[0]
    team.failing = ()
    assert results(team.comment(f"/train {head(team)}", WRITER)) == ["success"] * 3
    (found,) = team.folder.glob(f"{team.runs}-train-*/work/.local/check/unfinished.json")
    assert json.loads(found.read_text()) == [UNFINISHED]


def test_the_comment_has_checks_and_training(team: Repository) -> None:
    """Whichever ends first; each keeps what the other shows, and a push says what is older."""
    team.owner = "team"
    team.pull_request(CHANGE)
    team.check()
    team.follow()
    assert f"comment `/train {head(team)}`" in team.state.bodies(PULL)[0]
    team.comment(f"/train {head(team)}", WRITER)
    (body,) = team.state.bodies(PULL)
    assert "comment `/train" not in body
    assert body.split("\n")[3] == "### ✅ Every check passed" and "train-1 against" in body
    assert "<summary>Checks</summary>" in body
    first = head(team)
    team.pull_request({"docs/page.md": "# words\n"})
    team.check()
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert f"Commit `{head(team)[:12]}`" in body and f"Azure**: commit `{first[:12]}`" in body
    assert "newer commits, which are not trained" in body and "train-1 against" in body


@pytest.mark.parametrize(
    "words",
    ["/train {sha}", "/train `{sha}`", " /train  {sha} \nthank you"],
    ids=["plain", "as code", "more"],
)
def test_a_commit_of_a_fork_is_named(words: str, team: Repository) -> None:
    team.pull_request(CHANGE)
    jobs = team.comment(words.format(sha=head(team)), WRITER)
    asked = not words.startswith(" ")
    assert results(jobs) == (["success"] * 3 if asked else ["skipped"] * 3)


@pytest.mark.attack("A stranger asks for training on Azure, or a writer is made to")
@pytest.mark.parametrize(
    ("words", "login"),
    {
        "a fork without a commit": ("/train", WRITER),
        "another commit": (f"/train {'a' * 40}", WRITER),
        "a part of a commit": ("/train {short}", WRITER),
        "another command": ("/trainer {sha}", WRITER),
        "more words": ("/train {sha}; touch pwned", WRITER),
        "a stranger": ("/train {sha}", STRANGER),
        "a reader": ("/train {sha}", "rob"),
        "a name of another path": ("/train {sha}", "../ana"),
    }.values(),
    ids=str,
)
def test_nothing_is_trained(words: str, login: str, team: Repository) -> None:
    team.state.permissions["rob"] = "triage"
    team.pull_request(CHANGE)
    jobs = team.comment(words.format(sha=head(team), short=head(team)[:12]), login)
    assert results(jobs)[1:] == ["skipped", "skipped"]
    # A writer gets a reply, which has none of the comment's words.
    replies = [f"Nothing is trained. Read the last commit, then comment `/train {head(team)}`."]
    is_answered = login == WRITER and words != "/trainer {sha}"
    assert team.state.bodies(PULL) == (replies if is_answered else [])
    assert team.signed_in == [] and len(team.state.changes) == is_answered
    assert "make train" not in team.commands()
    assert not [*team.folder.rglob("pwned")]


def test_a_stranger_does_not_turn_a_run_red(team: Repository) -> None:
    team.pull_request(CHANGE)
    assert team.comment(f"/train {head(team)}", STRANGER)["request"].result == "success"
    assert team.comment("/train", STRANGER)["request"].result == "success"
    assert team.state.bodies(PULL) == []
    for words in ("/train", "/train @everybody [win](https://evil.example)"):
        assert team.comment(words, WRITER)["request"].result == "failure"
    reply = f"Nothing is trained. Read the last commit, then comment `/train {head(team)}`."
    assert team.state.bodies(PULL) == [reply] * 2


def test_a_writer_is_told_that_another_commit_is_asked_for(team: Repository) -> None:
    """A run that succeeds and trains nothing would look like one that was not needed."""
    team.pull_request(CHANGE)
    team.state.tokens["job"] = {"contents": "read", "pull-requests": "write"}
    github, sha = GitHub(team.state.repository, "job", team.state.api), head(team)

    def asked(words: str, login: str = WRITER) -> tuple[int, str] | None:
        comment = {"body": words, "user": {"login": login}}
        return ask(github, {"comment": comment, "issue": {"number": PULL, "pull_request": {}}})

    for words in (f"/train {sha[:7]}", f"/train {sha} please"):
        with pytest.raises(UserError, match="not name the last commit"):
            asked(words)
        assert asked(words, STRANGER) is None
    assert len(team.state.bodies(PULL)) == 2
    with pytest.raises(UserError, match=f"/train {sha}, once you have read"):
        asked("/train")
    assert asked("/trainer") is asked("/training is slow") is None
    assert asked(f"/train {sha}") == (PULL, sha)
    # Of a branch of the repository a short form names it, and none does not.
    team.state.pulls[0]["head"]["repo"]["full_name"] = team.state.repository
    assert asked(f"/train {sha[:7]}") == asked(f"/train `{sha}`") == (PULL, sha)
    for words in ("/train", f"/train {sha[:6]}", f"/train {'0' * 7}"):
        with pytest.raises(UserError, match="not-trained"):
            asked(words)


@pytest.mark.attack("A stranger pushes after a writer has read the change")
def test_a_later_push_is_not_trained(team: Repository) -> None:
    """The commit that a writer named, though a stranger has pushed since, is refused."""
    team.pull_request(CHANGE)
    read = head(team)
    team.pull_request({"ml/projects/words/train.py": "print('evil')\n"})
    assert team.comment(f"/train {read}", WRITER)["request"].result == "failure"
    assert team.signed_in == []


@pytest.mark.attack("A tree to train has links and filters that reach into the runner")
def test_links_and_programs_of_the_tree_are_texts(team: Repository) -> None:
    """A link that leads to files of the runner is the text of the link; hooks and filters rest."""
    team.owner = "team"
    team.pull_request(CHANGE)
    work = team.folder / "fork"
    (work / "ml/projects/words/secrets").symlink_to("/etc/passwd")
    (work / "ml/.gitattributes").write_text("*.py filter=lfs\n")
    git(work, "add", "ml/.gitattributes", "ml/projects/words/secrets")
    team.pull_request({"README.md": "# words\n"})
    assert team.comment(f"/train {head(team)}", WRITER)["train"].result == "success"
    (tree,) = team.folder.glob("*-train-*/work/.local/pull-request")
    link = tree / "ml/projects/words/secrets"
    assert not link.is_symlink() and link.read_text() == "/etc/passwd"
    assert git(tree, "rev-parse", "HEAD") == head(team)


@pytest.mark.attack("A tree to train has a repository, or a file that runs by its name")
def test_a_tree_with_such_a_name_is_not_fetched(team: Repository) -> None:
    """Nothing of it is written, nor does anybody sign in."""
    team.owner = "team"
    team.pull_request({**CHANGE, "GNUmakefile": "%:\n\ttouch pwned\n"})
    assert team.comment(f"/train {head(team)}", WRITER)["train"].result == "failure"
    assert not [*team.folder.glob("*-train-*/work/.local/pull-request")]
    assert team.signed_in == [] and "make train" not in team.commands()


def test_a_training_that_fails_is_in_the_first_line(team: Repository) -> None:
    """With what Azure said of it; the run of the workflow is red."""
    failed = {"project": "words", "run": "", "error": "error[quota]: no nodes", "comparison": None}
    team.writes = {"train": {".local/check/train.json": json.dumps([failed])}}
    team.failing, team.owner = ("train",), "team"
    team.pull_request(CHANGE)
    assert results(team.comment(f"/train {head(team)}", WRITER)) == [
        "success",
        "failure",
        "success",
    ]
    (body,) = team.state.bodies(PULL)
    assert body.split("\n")[3].endswith("are still running; the training of `words` failed")
    assert "- `words`: error\\[quota\\]: no nodes" in body


def test_a_comment_that_comes_twice_has_one_comment(team: Repository) -> None:
    """The event is delivered again, or the run is started again."""
    team.owner = "team"
    team.pull_request(CHANGE)
    team.comment(f"/train {head(team)}", WRITER)
    (body,) = team.state.bodies(PULL)
    team.comment(f"/train {head(team)}", WRITER)
    (again,) = team.state.bodies(PULL)
    number = str(team.runs)
    assert again == body.replace(str(team.runs - 1), number)


@pytest.mark.attack("A result of a training lies about its pull request, its commit or its size")
@pytest.mark.parametrize(
    "result",
    [
        [{"project": "words", "pull": 99, "commit": "f" * 40, "comparison": {"model": "x"}}],
        {"pull": 99},
        [[]],
        "text",
        [{"project": "<img src=x> @everyone", "error": "</details>\n### ✅ fine", "run": 1}] * 500,
    ],
    ids=["another pull request", "no list", "empty", "a text", "markup"],
)
def test_a_result_is_text(result: object, team: Repository) -> None:
    """It is about the commit that main's code wrote down, whatever it says."""
    team.owner = "team"
    team.writes = {"train": {".local/check/train.json": json.dumps(result)}}
    team.pull_request(CHANGE)
    team.comment(f"/train {head(team)}", WRITER)
    (body,) = team.state.bodies(PULL)
    assert len(body) < MAX_LENGTH and f"commit `{head(team)[:12]}`" in body
    assert "<img" not in body and "\n### ✅" not in body and "@everyone" not in body
    assert not team.state.bodies(99)
