"""The comment about a run: which pull request, which comment, and what a poisoned artifact gets."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ml.core import markdown
from ml.core.errors import UserError
from ml.reports.pull_requests import checks
from ml.reports.pull_requests.checks import MARKER, MAX_LENGTH, shown_runs
from ml.repository.affected.projects import of_pull_request
from ml.repository.github.api import GitHub
from ml.repository.github.pull_requests import posting
from ml.repository.github.pull_requests.posting import MAX_DOCUMENT
from tests.conftest import ROOT
from tests.core.test_markdown import APART, HOSTILE, MENTION
from tests.github.events import git
from tests.github.test_codeowners import OF_TEAMS, owners
from tests.reports.pull_requests.test_comparison import OURS, RENDER, elements
from tests.stand_ins.github import BOT, State, serving

RIGHTS = {"actions": "read", "contents": "read", "pull-requests": "write"}
HEAD, OLD = "a" * 40, "b" * 40
RUN, TRAINED, PULL = 7, 70, 12
TRAIN = "ml/projects/fraud_scoring/train.py"
# The tree that the pull request is merged into, and the steps of a run that its change needs.
TREE = (TRAIN, "infra/Pulumi.dev.yaml", "tests/projects/test_every_project.py", "ml/core/x.py")
STEPS = {
    "affected": ["affected"],
    "links": ["links"],
    "change": [
        "lint, types and specs",
        "a small run of the projects",
        "infrastructure, policies and cost",
        "tests of what is affected",
    ],
    "framework": ["every test"],
    "required": ["required"],
}

NOT_LEFT = "candidate-words is not what the newest attempt of the job candidate (words) left"


def packed(files: Mapping[str, object]) -> bytes:
    """A ZIP file; what is not bytes is written as JSON."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in files.items():
            archive.writestr(name, value if isinstance(value, bytes) else json.dumps(value))
    return content.getvalue()


def run_of(branch: str = "change", owner: str = "stranger", **fields: Any) -> dict[str, Any]:
    """A run as GitHub answers; of a fork it names no pull request."""
    return {
        "id": RUN,
        "path": ".github/workflows/check.yml",
        "event": "pull_request",
        "conclusion": "success",
        "head_sha": HEAD,
        "head_branch": branch,
        "head_repository": {"full_name": f"{owner}/models", "owner": {"login": owner}},
        "repository": {"full_name": "team/models"},
        "pull_requests": [],
        "html_url": f"https://github.com/team/models/actions/runs/{RUN}",
        **fields,
    }


def pull_of(
    number: int = PULL, branch: str = "change", owner: str = "stranger", **fields: Any
) -> dict[str, Any]:
    return {
        "number": number,
        "state": "open",
        "title": "a change",
        "base": {"ref": "main"},
        "head": {
            "sha": HEAD,
            "label": f"{owner}:{branch}",
            "repo": {"full_name": f"{owner}/models"},
        },
        **fields,
    }


def jobs(**conclusions: str) -> list[dict[str, Any]]:
    names = dict.fromkeys(STEPS, "success")
    return [
        {
            "name": name,
            "conclusion": conclusion,
            "steps": [
                {"name": "Set up job", "conclusion": "success"},
                *({"name": step, "conclusion": conclusion} for step in STEPS[name]),
                *([{"name": "lint", "conclusion": "failure"}] if conclusion == "failure" else []),
            ][: 0 if conclusion == "skipped" else 9],
        }
        for name, conclusion in {**names, **conclusions}.items()
    ]


@pytest.fixture(scope="module", autouse=True)
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    _TREES[:] = [folder]
    return folder


_TREES: list[Path] = []


def post(github: GitHub, run: int) -> str:
    """As the workflow does, in a small tree."""
    return posting.post(github, _TREES[0], run)


@pytest.fixture
def state() -> Iterator[State]:
    state = State(tokens={"writer": RIGHTS, "reader": {"actions": "read"}})
    state.runs[RUN] = run_of()
    state.pulls.append(pull_of())
    state.jobs[RUN] = jobs()
    state.changed[PULL] = [TRAIN]
    with serving(state):
        yield state


def training(state: State, run: int = TRAINED, commit: str = HEAD, **fields: Any) -> None:
    """A run of train.yml, whose training job has ended; the request is main's own."""
    path, event = ".github/workflows/train.yml", "issue_comment"
    url = f"https://github.com/team/models/actions/runs/{run}"
    state.runs[run] = run_of(id=run, path=path, event=event, conclusion=None, html_url=url)
    state.runs[run].update(fields)
    state.jobs[run] = [{"name": "train", "conclusion": "success", "steps": []}]
    state.artifact(run, "train-request", packed({"request.json": {"pull": PULL, "commit": commit}}))


def client(state: State, token: str = "writer") -> GitHub:
    return GitHub(state.repository, token, state.api)


def test_the_comment_is_created_then_updated(state: State) -> None:
    """One comment: the same run changes nothing, a rebase updates it, others' stay."""
    state.comment(PULL, "looks good", "somebody")
    assert post(client(state), RUN).endswith("the comment is created")
    _, body = state.bodies(PULL)
    assert body.startswith(f"{MARKER}\n<!-- commit: {HEAD} run: {RUN} -->\n")
    assert body.split("\n")[3] == "### ✅ Every check passed"
    assert post(client(state), RUN).endswith("the comment is as it should be")
    state.pulls[0]["head"]["sha"] = OLD
    state.runs[8] = run_of(id=8, head_sha=OLD, conclusion="failure")
    state.jobs[8] = jobs(change="failure", required="failure")
    assert post(client(state), 8).endswith("the comment is updated")
    assert len(state.bodies(PULL)) == 2
    assert "### ❌ Not ready to merge: `change` failed (lint" in state.bodies(PULL)[1]
    assert [method for method, _ in state.changes] == ["POST", "PATCH"]


def test_a_run_that_is_late_changes_nothing(state: State) -> None:
    """Two runs of one commit: the newer one's comment stays."""
    state.runs[9] = run_of(id=9)
    state.jobs[9] = jobs()
    post(client(state), 9)
    assert post(client(state), RUN).endswith("shows a newer run")
    assert shown_runs(state.bodies(PULL)[0]) == (9, 0)


def test_comments_of_others_are_left_alone(state: State) -> None:
    """Somebody pasted the marker, the account is gone, the marker is quoted or further down."""
    foreign = [
        (f"{MARKER}\n<!-- commit: {HEAD} run: 99999 -->\nall fine!", "mallory"),
        (f"{MARKER}\nold", None),
        (f"> {MARKER}\n> quoted", BOT),
        (f"words\n{MARKER}", BOT),
        ("", BOT),
    ]
    for body, login in foreign:
        state.comment(PULL, body, login)
    post(client(state), RUN)
    assert state.bodies(PULL)[:5] == [body for body, _ in foreign]
    assert len(state.bodies(PULL)) == 6


@pytest.mark.attack("An earlier attempt's artifact stands in for one that has expired")
def test_the_newest_artifact_counts_or_none(state: State) -> None:
    for number in (1, 2):
        state.artifact(RUN, "candidate-words", packed({"train.json": {"attempt": number}}))
    words = ("candidate-words", re.compile(r"(train)\.json"))
    assert posting.read_artifact(client(state), RUN, *words)[0] == {"train": {"attempt": 2}}
    max(state.artifacts[RUN], key=lambda one: int(one["id"]))["expired"] = True
    assert posting.read_artifact(client(state), RUN, *words) == ({}, [])


@pytest.mark.attack(
    "Who deletes the newest hand-over has an earlier attempt's registered or promoted"
)
@pytest.mark.parametrize(
    ("newest", "told"),
    [
        ({}, []),
        ({"run_attempt": 1}, []),
        ({"conclusion": "failure"}, [NOT_LEFT]),
        ({"conclusion": None, "completed_at": None}, [NOT_LEFT]),
        ({"started_at": "2026-01-02T03:00:01Z"}, [NOT_LEFT]),
        ({"completed_at": "2026-01-02T02:59:59Z"}, [NOT_LEFT]),
        ({"name": "candidate (words) "}, [NOT_LEFT]),
    ],
    ids=str,
)
def test_an_artifact_is_what_the_newest_attempt_left(
    newest: dict[str, Any], told: list[str], state: State
) -> None:
    """Made while it ran; a job that a later attempt did not start again has its own attempt."""
    state.artifact(RUN, "candidate-words", packed({"train.json": {"attempt": 2}}))
    state.artifacts[RUN][0]["created_at"] = "2026-01-02T03:00:00Z"
    job = {"name": "candidate (words)", "conclusion": "success", "run_attempt": 2}
    times = [f"2026-01-02T0{hour}:00:00Z" for hour in (1, 2, 3)]
    first = {**job, "run_attempt": 1, "started_at": times[0], "completed_at": times[1]}
    second = {**job, "started_at": times[2], "completed_at": times[2], **newest}
    earlier = [first] if second["name"] != job["name"] or second["run_attempt"] == 2 else []
    state.jobs[RUN] = [second, *earlier]
    words = ("candidate-words", re.compile(r"(train)\.json"), "candidate (words)")
    documents, unread = posting.read_artifact(client(state), RUN, *words)
    assert (unread, documents) == (told, {} if told else {"train": {"attempt": 2}})


@pytest.mark.attack("A comment in the workflows' name shows a run that there is not, or another's")
@pytest.mark.parametrize("shown", ["999999999999999999", "8", "8 train: 8", "7 train: 999", "9"])
def test_a_run_of_nobody_is_not_newer(shown: str, state: State) -> None:
    """Whoever may write can edit the comment: the next run puts it right."""
    state.runs[8] = run_of(id=8, head_sha=OLD)
    state.runs[9] = run_of(id=9, path=".github/workflows/evil.yml")
    forged = f"{MARKER}\n<!-- commit: {HEAD} run: {shown} -->\n\n### ✅ Every check passed"
    state.comment(PULL, forged, BOT)
    state.runs[RUN]["conclusion"] = "failure"
    state.jobs[RUN] = jobs(change="failure", required="failure")
    assert post(client(state), RUN).endswith("the comment is updated")
    assert "### ❌ Not ready to merge" in state.bodies(PULL)[0]


def test_a_second_comment_of_ours_is_removed(state: State) -> None:
    """Two runs at once may have created two; line ends may have changed."""
    for text in ("first", "second", "third"):
        state.comment(PULL, f"{MARKER}\r\n{text}")
    post(client(state), RUN)
    assert len(state.bodies(PULL)) == 1 and "Every check passed" in state.bodies(PULL)[0]


def changed(**fields: Any) -> Callable[[State], None]:
    return lambda state: state.runs[RUN].update(fields)


def pulls(*every: dict[str, Any]) -> Callable[[State], None]:
    return lambda state: state.pulls.__setitem__(slice(None), every)


STRANGE: dict[str, Callable[[State], None]] = {
    "a push": changed(event="push"),
    "another workflow of the same name": changed(path=".github/workflows/evil.yml"),
    "a workflow at another path": changed(path="x/.github/workflows/check.yml"),
    "another repository": changed(repository={"full_name": "team/other"}),
    "the fork is gone": changed(head_repository=None),
    "no commit": changed(head_sha="main"),
    "the pull request is closed": pulls(pull_of(state="closed")),
    "there are newer commits": pulls(
        pull_of(head={"sha": OLD, "label": "stranger:change", "repo": {"full_name": "x/y"}})
    ),
    "another branch has the same commit": pulls(pull_of(branch="other")),
    "another fork has the same branch": pulls(pull_of(owner="other")),
    "two pull requests of one branch": pulls(pull_of(1), pull_of(2)),
    "it is for another branch": pulls(pull_of(base={"ref": "other"})),
    "the run may be of one for another branch": pulls(
        pull_of(), pull_of(13, base={"ref": "other"}, state="closed")
    ),
}


@pytest.mark.attack("A run passes itself off as that of another pull request")
@pytest.mark.parametrize("change", STRANGE.values(), ids=list(STRANGE))
def test_nothing_is_posted(change: Callable[[State], None], state: State) -> None:
    change(state)
    assert post(client(state), RUN).endswith("nothing is posted")
    assert state.changes == []


def test_two_pull_requests_of_a_branch_of_ours(state: State) -> None:
    """GitHub names the one that the run was for."""
    state.runs[RUN] = run_of(owner="team", pull_requests=[{"number": 2}])
    state.pulls[:] = [pull_of(1, owner="team"), pull_of(2, owner="team")]
    post(client(state), RUN)
    assert not state.bodies(1) and len(state.bodies(2)) == 1


@pytest.mark.attack("A branch has a query or shell in its name")
@pytest.mark.parametrize(
    "branch", ["a/b", "x&state=closed", "$(touch pwned)", '";touch pwned;"', "ä b", "#1", "%2e%2e/"]
)
def test_the_name_of_a_branch_is_text(branch: str, state: State) -> None:
    state.runs[RUN] = run_of(branch)
    state.pulls[:] = [pull_of(branch=branch), pull_of(99, branch="change")]
    post(client(state), RUN)
    assert len(state.bodies(PULL)) == 1 and not state.bodies(99)


@pytest.mark.attack("An artifact says that a failed check passed")
def test_the_verdict_is_what_github_says(state: State) -> None:
    """Documents that lie do not turn a failed check into a passed one; a missing one fails."""
    state.artifacts.clear()
    state.artifact(RUN, "check-results", packed({"smoke.json": {"conclusion": "success"}}))
    state.runs[RUN]["conclusion"] = "failure"
    state.jobs[RUN] = jobs(change="failure", required="failure")
    post(client(state), RUN)
    assert "### ❌ Not ready" in state.bodies(PULL)[0]
    state.runs[RUN]["conclusion"] = "success"
    state.jobs[RUN] = jobs()[:4]
    post(client(state), RUN)
    assert "❌ Not ready to merge: a required check did not run" in state.bodies(PULL)[0]


@pytest.mark.attack("A pull request hides that it changes the rules")
def test_a_change_of_the_rules_is_said(state: State) -> None:
    """GitHub lists the files; an artifact cannot hide one."""
    state.changed[PULL] = ["README.md", "a.py", "Makefile", ".github/workflows/check.yml"]
    post(client(state), RUN)
    body = state.bodies(PULL)[0]
    names = "\\.github/workflows/check.yml, Makefile, a.py"
    assert f"changes its own checks: {names}.**" in body


@pytest.mark.attack("A pull request's workflow skips what its change needs, and its run succeeds")
@pytest.mark.parametrize(
    ("job", "step", "changed"),
    [
        ("change", "", TRAIN),
        ("change", "a small run of the projects", TRAIN),
        ("change", "tests of what is affected", TRAIN),
        ("change", "infrastructure, policies and cost", "infra/Pulumi.dev.yaml"),
        ("change", "lint, types and specs", "unknown.txt"),
        ("framework", "", "unknown.txt"),
        ("framework", "every test", "ml/core/x.py"),
        ("links", "", "README.md"),
    ],
)
def test_a_step_that_the_change_needs_is_said(
    job: str, step: str, changed: str, state: State
) -> None:
    """The same jobs are enough for a change that needs no such step."""
    state.changed[PULL] = [changed]
    if step:
        steps = [(each, step if each["name"] == job else "") for each in jobs()]
        state.jobs[RUN] = [
            {**each, "steps": [one for one in each["steps"] if one["name"] != missing]}
            for each, missing in steps
        ]
    else:
        state.jobs[RUN] = jobs(**{job: "skipped"})
    post(client(state), RUN)
    part = f"`{job}` did not run “{step}”" if step else f"`{job}` did not run"
    assert f"❌ Not ready to merge: {part}, which this change requires" in state.bodies(PULL)[0]
    if job != "links":
        state.changed[PULL] = ["README.md"]
        post(client(state), RUN)
        (body,) = state.bodies(PULL)
        assert "### ✅ Every check passed\n" in body and "Only documents changed." in body


def test_a_job_that_is_not_needed_is_said(state: State) -> None:
    state.jobs[RUN] = jobs(framework="skipped")
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "### ✅ Every check passed\n" in body and "| – | `framework` | not required |" in body


@pytest.mark.attack("A pull request renames a file that decides into one that does not")
def test_a_renamed_file_counts_under_both_names(state: State) -> None:
    renamed = {"filename": "README.md", "previous_filename": "ml/core/x.py", "status": "renamed"}
    state.changed[PULL] = [renamed]
    state.jobs[RUN] = jobs(framework="skipped")
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "`framework` did not run, which" in body and "checks: ml/core/x.py.**" in body


@pytest.mark.attack("A list of GitHub's is so long that what decides is at its end")
def test_a_list_is_read_to_its_end_or_refused(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml.repository.github.api.PAGES", 2)
    state.changed[PULL] = [f"{number}.md" for number in range(4)]
    assert len([*client(state).pages(f"pulls/{PULL}/files")]) == 4
    state.changed[PULL].append("Makefile")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="more than 2 pages"):
        [*client(state).pages(f"pulls/{PULL}/files")]


@pytest.mark.attack("A pull request changes more files than GitHub lists")
@pytest.mark.parametrize("counted", [3, 2])
def test_more_files_than_github_lists(
    counted: int, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents alone are listed: everything is affected, whether or not GitHub counts the rest."""
    monkeypatch.setattr("ml.repository.affected.projects.LISTED", 2)
    state.changed[PULL] = ["a.md", "b.md"]
    state.pulls[0]["changed_files"] = counted
    state.jobs[RUN] = jobs(framework="skipped")
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "`framework` did not run, which" in body and "checks: more than 2 files.**" in body
    monkeypatch.setattr("ml.repository.affected.projects.LISTED", 3)
    state.pulls[0]["changed_files"] = 2
    post(client(state), RUN)
    assert "Only documents changed." in state.bodies(PULL)[0]


@pytest.mark.attack("A pull request hides a rule among many files that it changes, or long names")
def test_no_changed_rule_is_cut_off(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """In full as long as there is room; a folder that somebody fills has its count."""
    few = [*sorted(JUDGES), *(f"policies/promotion/{name}.yml" for name in "abcdefgh")]
    state.changed[PULL] = few
    post(client(state), RUN)
    assert all(markdown.text(file) in state.bodies(PULL)[0] for file in few)
    for limit in ("RULES_LENGTH", "OTHERS_LENGTH"):
        monkeypatch.setattr(checks, limit, 1000)
    state.changed[PULL] = [
        *(f"policies/promotion/{'x' * 200}/{number}.yml" for number in range(20)),
        *(f"a/{'b/' * number}{'c' * 200}" for number in range(20)),
        *(f"Makefile{'d' * 200}{number}" for number in range(20)),
        *(rules := ("policies/promotion/gates.yml", ".github/workflows/merge.yml", "Makefile")),
    ]
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert all(markdown.text(file) in body for file in rules) and "xxx/ (20 files)" in body
    assert "(20 files)" in body and len(body) < 20_000


JUDGES = {
    *("Makefile", "GNUmakefile", "conftest.py", "sitecustomize.py", "pytest.ini", "setup.cfg"),
    *(".gitattributes", ".github/CODEOWNERS", "ml/core/errors.py", "policies/a/gates.yml"),
    *("requirements/main.lock", "infra/Pulumi.dev.yaml", "tests/conftest.py", "tests/README.md"),
    *("ml/projects/__init__.py", "tests/projects/test_every_project.py", "new/x.txt"),
    *("ml/projects/fraud_scoring/gates.yml", "ml/environments/cpu/conda.yml", "x.md/evil.py"),
}


@pytest.mark.attack("A pull request changes a file that no rule names, and is judged with it")
def test_what_is_no_projects_own_is_said(state: State, tree: Path) -> None:
    """All but documents and a project's own files: the comment names it, and who reads it."""
    own = ("release.yml", "evidence/gates.yml", "README.md")
    files = [TRAIN, *(f"ml/projects/fraud_scoring/{each}" for each in own), "x.md"]
    state.changed[PULL] = files
    post(client(state), RUN)
    assert "### ✅ Every check passed\n" in state.bodies(PULL)[0]
    state.changed[PULL] = [*files, "GNUmakefile"]
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "### ⚠️ Every check passed, but this pull request changes its own checks\n" in body
    assert "checks: GNUmakefile.**" in body and "`.github/CODEOWNERS` must review" in body
    state.changed[PULL] = [*files, *JUDGES]
    assert {*of_pull_request(tree, client(state), PULL)[0].self_affecting_files} == JUDGES
    assert all(map(owners, JUDGES)) and not any(map(OF_TEAMS.match_file, JUDGES))
    assert OF_TEAMS.match_file(TRAIN)


@pytest.mark.attack("A pull request's code leaves a stack or a project out of its report")
def test_what_no_document_is_about_is_said(state: State) -> None:
    state.changed[PULL] = [TRAIN, "infra/Pulumi.dev.yaml", "infra/Pulumi.prod.yaml"]
    report = {"stack": "dev", "cost": {"currency": "EUR", "month": {"idle": 0}}}
    state.artifact(RUN, "check-results", packed({"smoke.json": [], "infra.json": [report]}))
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "no result for the project fraud\\_scoring" in body
    assert (
        "no result for the stack prod" in body and "reported by the pull request's own code" in body
    )


@pytest.mark.attack(
    "A pull request's code fills its report, so that what a policy refuses is cut off"
)
def test_what_a_long_report_cuts_off_is_in_the_verdict(state: State) -> None:
    """What the change touches is shown first; what is not shown is counted."""
    state.changed[PULL] = [TRAIN, "infra/Pulumi.dev.yaml", "infra/Pulumi.prod.yaml"]
    month = {"cost": {"currency": "EUR", "month": {"idle": 0}}}
    filling = [{"stack": f"s{number}", **month} for number in range(30)]
    refused = {"stack": "prod", "refused": [{"policy": "storage", "message": "open"}], **month}
    metrics = {f"metric{number}": number for number in range(9)}
    small = {"project": "fraud_scoring", "status": "Completed", "metrics": metrics}
    small_runs = [
        *({"project": f"p{number}", "status": "Completed"} for number in range(30)),
        small,
    ]
    documents = {"smoke.json": small_runs, "infra.json": [*filling, {"stack": "dev"}, refused]}
    state.artifact(RUN, "check-results", packed(documents))
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "a policy rejects `prod`" in body.split("\n")[3]
    shown = body.partition("**Infrastructure after the merge**")[2]
    assert "**prod violates** `storage`" in shown and "20 more are not shown" in shown
    small_runs_shown = body.partition("**Smoke training")[2]
    assert "`fraud_scoring`" in small_runs_shown and "19 more are not shown" in small_runs_shown
    assert "metric5 5, and 3 more" in body


def test_a_push_while_the_comment_is_made(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files would be the newer commit's: its own run has the checks."""
    pages = GitHub.pages

    def pushes(github: GitHub, path: str, *words: str, **query: str) -> Iterator[Any]:
        if path.endswith("/files"):
            state.pulls[0]["head"]["sha"] = OLD
        return pages(github, path, *words, **query)

    monkeypatch.setattr(GitHub, "pages", pushes)
    post(client(state), RUN)
    assert state.bodies(PULL)[0].split("\n")[3] == "### ⏳ The checks are still running"


def test_two_jobs_post_in_the_same_second(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the checks and of a training: the comment shows both, whichever wrote first."""
    training(state)
    body = posting._body

    def meanwhile(github: GitHub, *words: Any) -> str:
        monkeypatch.setattr(posting, "_body", body)
        post(github, TRAINED)
        return body(github, *words)

    monkeypatch.setattr(posting, "_body", meanwhile)
    post(client(state), RUN)
    (comment,) = state.bodies(PULL)
    assert shown_runs(comment) == (RUN, TRAINED)


def test_two_comments_of_ours_become_one(state: State) -> None:
    """Each job created its own: both runs stay shown."""
    training(state)
    for run, trained in ((RUN, 0), (0, TRAINED)):
        of = f" train: {trained}" if trained else ""
        state.comment(PULL, f"{MARKER}\n<!-- commit: {HEAD} run: {run}{of} -->\n")
    post(client(state), RUN)
    (comment,) = state.bodies(PULL)
    assert shown_runs(comment) == (RUN, TRAINED)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def lying_size() -> bytes:
    """A ZIP file whose directory says that a document is 10 bytes long; it is 20 MB."""
    content = packed({"smoke.json": b" " * 20_000_000})
    start = content.index(b"PK\x01\x02")
    return content[: start + 24] + struct.pack("<I", 10) + content[start + 28 :]


def encrypted() -> bytes:
    content = bytearray(packed({"smoke.json": []}))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.attack("An artifact of an untrusted run has paths, sizes or bytes that lie")
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(content, id=name)
        for name, content in {
            "no ZIP": b"hello",
            "empty": b"",
            "cut off": packed({"smoke.json": []})[:-30],
            "a path upwards": packed({"../../../../etc/cron.d/x": b"x"}),
            "an absolute path": packed({"/etc/passwd": b"x"}),
            "a path of Windows": packed({"..\\x.json": b"x"}),
            "a script": packed({"Makefile": b"comment:\n\ttouch pwned"}),
            "a folder": packed({"smoke.json/": b""}),
            "a name with NUL": packed({"smoke.json\x00.py": b"x"}),
            "many files": packed({f"{number}.json": [] for number in range(1000)}),
            "a large document": packed({"smoke.json": b"[" + b" " * (MAX_DOCUMENT + 1) + b"]"}),
            "a size that lies": lying_size(),
            "encrypted": encrypted(),
            "not JSON": packed({"smoke.json": b"{"}),
            "not UTF-8": packed({"smoke.json": b'"\xff\xfe"'}),
            "deeply nested": packed({"smoke.json": nested(200_000)}),
            "a number of a million digits": packed({"smoke.json": b"1" * 1_000_000}),
        }.items()
    ],
)
def test_a_poisoned_artifact_is_not_read(
    content: bytes, state: State, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comment says so; nothing is written to the disk, and the verdict is GitHub's."""
    monkeypatch.chdir(tmp_path)
    state.artifacts.clear()
    state.artifact(RUN, "check-results", content)
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert "the results of check-results cannot be read" in body
    assert "### ✅ Every check passed" in body and len(body) < 3000
    assert [*tmp_path.iterdir()] == []


@pytest.mark.attack("An artifact of an untrusted run fills the disk")
def test_an_artifact_that_is_too_large_is_not_downloaded(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ml.repository.github.pull_requests.posting.MAX_ARTIFACT", 1000)
    state.artifact(RUN, "check-results", os.urandom(2000))
    post(client(state), RUN)
    assert "more than 1,000 bytes" in state.bodies(PULL)[0]


def test_artifacts_of_other_names_are_not_read(state: State) -> None:
    for name in ("check-results-2", "evil", "../check-results"):
        state.artifact(RUN, name, b"evil")
    post(client(state), RUN)
    assert "cannot be read" not in state.bodies(PULL)[0]


def hostile_documents(text: str) -> dict[str, object]:
    """Every document with the text in every place."""
    metrics = {text: 0.5, "gain": 0.5}
    run = {"project": text, "status": text, "seconds": 1, "metrics": metrics, "error": text}
    change = {
        "what": text,
        "name": text,
        "kind": text,
        "properties": [{"path": text, "before": text, "after": {text: [text]}}],
    }
    month = {"idle": 1, "typical": 2, "worst": text}
    report = {
        "stack": text,
        "problems": [text],
        "immutable": [text],
        "refused": [{"policy": text, "message": text}],
        "changes": [change],
        "cost": {"currency": text, "month": month},
        "cost_before": {"month": {}},
        "diagrams": [{"title": text, "mermaid": text}],
    }
    estimate = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = {
        "place": text,
        "metric": text,
        "candidate": estimate,
        "champion": estimate,
        "difference": {"mean": 0.1, "low": 0.05, "high": 0.2, "count": 400},
        "sign": 1,
        "verdict": text,
    }
    result = {"gate": text, "verdict": text, "actual": text, "required": text, "mode": text}
    compared = {
        "model": text,
        "environment": text,
        "candidate": {"name": text, "digest": text},
        "champion": {"name": text},
        "primary_metric": text,
        "confidence": 0.95,
        "metrics": [row],
        "slices": [row],
        "amounts": [{"what": text, "unit": text, "ours": 1, "theirs": 2}],
        "hardware": {"measured": text, "deployed": text},
        "decision": {"outcome": text, "results": [result], "blocking": [result]},
        "lineage": {"commit": text, "run": text, "dirty": True},
        "data": {text: {"asset": text, "sha256": text}},
        "missing": [text],
        "unpaired": text,
        "notes": [text],
    }
    return {
        "smoke.json": [run],
        "infra.json": [report],
        "train.json": [{"project": text, "run": text, "error": text, "comparison": compared}] * 4,
    }


def poisoned(state: State, documents: Mapping[str, object]) -> None:
    """The checks and a training wrote these; the comment shows the training already."""
    training(state)
    checked = {name: document for name, document in documents.items() if name != "train.json"}
    state.artifact(RUN, "check-results", packed(checked))
    state.artifact(TRAINED, "train-results", packed({"train.json": documents["train.json"]}))
    post(client(state), TRAINED)
    assert shown_runs(state.bodies(PULL)[0]) == (0, TRAINED)


@pytest.mark.attack("An artifact of an untrusted run has Markdown, HTML or mentions in it")
@pytest.mark.parametrize(
    "text", [*HOSTILE, "### title", f"{MARKER}\n", "```\n</details>\n@octocat"]
)
def test_hostile_documents_are_text(text: str, state: State) -> None:
    """In every place of every document: no element, link or mention, one marker, within bounds."""
    poisoned(state, hostile_documents(text))
    state.changed[PULL] = [f"policies/{text}"]
    state.jobs[RUN][1]["name"] = text
    post(client(state), RUN)
    (body,) = state.bodies(PULL)
    assert len(body) < MAX_LENGTH and RENDER.render(body).replace(APART, "").count("<!--") == 2
    assert elements(body) <= OURS | {"em", "ul", "li", "code"}
    # Mentions may stand in code, which GitHub does not read for them.
    assert not MENTION.search(re.sub(r"<code.*?</code>", "", RENDER.render(body), flags=re.S))
    links = [part.partition(">")[0] for part in body.split("](<")[1:]]
    assert {*links} <= {state.runs[run]["html_url"] for run in (RUN, TRAINED)}


@pytest.mark.parametrize(
    "document",
    [None, True, 3, "text", [], {}, [[]], [None], [{}], {"a": 1}, [1e999], 10**400, {"causes": []}],
    ids=str,
)
def test_documents_of_any_shape(document: object, state: State) -> None:
    """Each name with each value: a comment comes of it."""
    names = ("smoke", "infra", "train")
    poisoned(state, {f"{name}.json": document for name in names})
    post(client(state), RUN)
    assert "Every check passed" in state.bodies(PULL)[0]


def test_a_comment_has_a_bound(state: State) -> None:
    """Hundreds of stacks, runs and rows with long texts."""
    documents = hostile_documents("[" * 5000)
    huge = {
        key: [*value] * 200 if isinstance(value, list) else value
        for key, value in documents.items()
    }
    compared: Any = huge["train.json"][0]["comparison"]
    for key in ("metrics", "slices", "amounts", "missing", "notes"):
        compared[key] *= 200
    compared["decision"]["results"] *= 200
    huge["train.json"] = huge["train.json"][:20]
    poisoned(state, huge)
    state.changed[PULL] = [f"policies/{'x' * 500}{number}" for number in range(70)]
    state.jobs[RUN] = jobs() + [{"name": "x" * 5000, "conclusion": "failure"}] * 70
    post(client(state), RUN)
    assert len(state.bodies(PULL)[0]) < MAX_LENGTH
    assert state.bodies(PULL)[0].split("\n")[3].startswith("### ⚠️")


def ask(state: State, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The program as the workflow starts it, with no package but a YAML parser, in `folder`."""
    (folder / "yaml").symlink_to(Path(yaml.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-m", "ml.repository.github.pull_requests.posting", *words],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(folder),
            "GITHUB_API_URL": state.api,
            "GITHUB_REPOSITORY": state.repository,
            **variables,
        },
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_program_without_packages(state: State, tmp_path: Path) -> None:
    code, text = ask(state, tmp_path, "--run", str(RUN), GH_TOKEN="writer")
    assert (code, text) == (0, f"pull request {PULL}: the comment is created\n")


@pytest.mark.parametrize(
    ("run", "variables", "code", "error"),
    [
        ("7; id", {"GH_TOKEN": "writer"}, 2, "error[no-such-run]"),
        ("٧", {"GH_TOKEN": "writer"}, 2, "error[no-such-run]"),
        ("7", {}, 2, "error[no-github]: GH_TOKEN is not set"),
        ("7", {"GH_TOKEN": "writer", "GITHUB_REPOSITORY": "../x/y"}, 2, "error[no-github]"),
        ("8", {"GH_TOKEN": "writer"}, 1, "error[github-failed]"),
        ("7", {"GH_TOKEN": "stolen"}, 1, "401"),
        ("7", {"GH_TOKEN": "reader"}, 1, "403"),
    ],
)
def test_a_wrong_call(
    run: str, variables: dict[str, str], code: int, error: str, state: State, tmp_path: Path
) -> None:
    """No traceback, no token in the output, nothing posted."""
    result, text = ask(state, tmp_path, "--run", run, **variables)
    assert result == code and error in text and "Traceback" not in text
    assert "stolen" not in text and state.changes == []


@pytest.mark.attack("An answer leads the token to another host")
def test_a_page_of_another_host_is_not_asked(state: State) -> None:
    """`Link` is followed below the API's own address alone: the token goes nowhere else."""
    state.jobs[RUN] *= 3
    github = GitHub(state.repository, "writer", state.api.replace("127.0.0.1", "localhost"))
    with pytest.raises(UserError, match="the next page is at http://127"):
        post(github, RUN)
