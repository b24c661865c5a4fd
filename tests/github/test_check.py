"""check.yml and comment.yml as events start them: what runs and is posted, what attacks get."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml.reports.pull_requests.checks import MAX_LENGTH
from tests.conftest import EXAMPLE, ROOT
from tests.github.events import MYPY_CACHE, ORIGIN, PULL, Repository, git, template_in
from tests.shared import once
from tests.stand_ins.github import State, serving

TRAIN = f"ml/projects/{EXAMPLE.name}/train.py"
PROD = "infra/Pulumi.prod.yaml"
ALWAYS = ["make affected", "make links"]


def text(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "team", template_in)


# Where files are in memory: every job has a checkout, and a disk takes longer for its files than
# the job for its work.
MEMORY, ENOUGH = Path("/dev/shm"), 4 * 2**30


def memory_serves() -> bool:
    """Whether it has a few gigabytes, and programs may run there (Docker forbids it)."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(MEMORY).free > ENOUGH


@pytest.fixture
def team(template: Path, tmp_path: Path) -> Iterator[Repository]:
    with tempfile.TemporaryDirectory(dir=MEMORY if memory_serves() else tmp_path) as name:
        folder = Path(name)
        git(folder, "clone", "-q", "--bare", "--shared", str(template / ORIGIN), "origin")
        with serving(State(folder=folder / "origin")) as state:
            yield Repository(folder, folder / "origin", state, template)


@pytest.mark.parametrize(
    ("changed", "commands"),
    {
        "documents": (["README.md"], []),
        "a stack": ([PROD], ["make lint", "make preview"]),
        "the organisation policy": (
            ["policies/promotion/gates.yml"],
            ["make lint", "make affected-tests"],
        ),
        "a workflow": ([".github/CODEOWNERS"], ["make lint", "make affected-tests"]),
        "the framework": (["ml/specs/kinds.py"], ["make lint", "make test"]),
        "the core": (["ml/core/errors.py"], ["make lint", "make preview", "make test"]),
        "a lock": (
            ["requirements/main.lock"],
            ["make lint", "make smoke", "make preview", "make test"],
        ),
    }.values(),
    ids=str,
)
def test_a_pull_request_runs_what_it_touches(
    changed: list[str], commands: list[str], team: Repository
) -> None:
    """And the comment follows; a second time it changes nothing, which one case shows."""
    if not EXAMPLE.is_dir():
        commands = [command for command in commands if command != "make smoke"]
    team.pull_request({name: f"{text(name)}\n# edited\n" for name in changed})
    jobs = team.check()
    assert jobs["required"].result == "success"
    assert team.commands() == [*ALWAYS, *commands]
    assert team.follow()["comment"].result == "success"
    assert team.commands() == ["make comment"]
    (body,) = team.state.bodies(PULL)
    is_document = changed == ["README.md"]
    verdict = "### ✅ Every check passed\n" if is_document else "### ⚠️ Every check passed, but this"
    assert verdict in body and ("Only documents changed." in body) is is_document
    assert ("changes its own checks: " in body) is not is_document
    if is_document:
        team.follow()
    assert team.state.changes == [("POST", f"issues/{PULL}/comments")]


@pytest.mark.example
def test_a_pull_request_to_a_project(team: Repository) -> None:
    team.pull_request({TRAIN: f"{text(TRAIN)}\n# edited\n"})
    assert team.check()["required"].result == "success"
    assert team.commands() == [*ALWAYS, "make lint", "make smoke", "make affected-tests"]


def test_a_push_to_main_runs_every_test(team: Repository) -> None:
    """And no comment: there is no pull request."""
    team.pull_request({"docs/page.md": "# words\n"})
    git(team.folder / "fork", "push", "-q", "origin", f"{team.branch}:main")
    assert team.check("push")["required"].result == "success"
    assert team.commands() == [*ALWAYS, "make test"]
    assert team.follow()["comment"].result == "skipped"
    assert team.state.changes == []


def test_a_merge_queue_skips_no_job(team: Repository) -> None:
    """Documents too: what no check looked at must not be merged as passed."""
    team.pull_request({"docs/page.md": "# words\n"})
    assert team.check("merge_group")["required"].result == "success"
    assert team.commands() == [*ALWAYS, "make lint", "make test"]


@pytest.mark.parametrize("job", ["change", "framework"])
def test_a_skipped_job_does_not_pass_a_merge_queue(job: str, team: Repository) -> None:
    """Whatever the workflow of the pull request did to have it skipped."""
    workflow = text(".github/workflows/check.yml")
    head, mark, tail = workflow.partition(f"  {job}:\n    needs: affected\n    if: ")
    lies = f"{head}{mark}false && {tail}" if job == "framework" else ""
    lies = lies or f"{head}{mark}false && ({tail.replace(chr(10), ')' + chr(10), 1)}"
    team.pull_request({".github/workflows/check.yml": lies})
    jobs = team.check("merge_group")
    assert jobs[job].result == "skipped" and jobs["required"].result == "failure"


@pytest.mark.parametrize(
    ("event", "variables", "commands"),
    [
        ("schedule", {}, []),
        ("schedule", {"NIGHTLY": "true"}, ["make torture"]),
        ("workflow_dispatch", {}, ["make torture"]),
    ],
)
def test_a_night(
    event: str, variables: dict[str, str], commands: list[str], team: Repository
) -> None:
    """The rounds that take an hour run where a variable asks for them, or a person."""
    team.fake, team.variables = ("torture",), variables
    github = {"event_name": event, "event": {}}
    (job,) = team.run("nightly", "refs/heads/main", github, trusted=True).values()
    assert team.commands() == commands
    assert job.result == ("success" if commands else "skipped")


@pytest.mark.parametrize("has_it", [True, False])
def test_code_security_scans_where_it_is_switched_on(has_it: bool, team: Repository) -> None:
    """CodeQL on main, the review of dependencies for a pull request."""
    team.variables = {"CODE_SECURITY": "true"} if has_it else {}
    team.fake = ("advisories", "vulnerabilities")
    team.scheduled("security")
    team.fake = ("lint", "preview")
    languages = ["init python", "analyze python", "init actions", "analyze actions"]
    assert team.reviewed == (languages if has_it else [])
    team.reviewed.clear()
    team.pull_request({PROD: f"{text(PROD)}\n# edited\n"})
    team.check()
    assert team.reviewed == (["dependencies"] if has_it else [])


def test_a_failure_is_in_the_first_line(team: Repository) -> None:
    """The steps after it run all the same; a push that mends it updates the comment."""
    team.failing = ("lint", "preview")
    team.pull_request({PROD: f"{text(PROD)}\n# edited\n"})
    jobs = team.check()
    assert (jobs["change"].result, jobs["required"].result) == ("failure", "failure")
    assert team.commands() == [*ALWAYS, "make lint", "make preview"]
    team.follow()
    (body,) = team.state.bodies(PULL)
    first = "### ❌ Not ready to merge: `change` failed (lint, types and specs, infrastructure"
    assert body.split("\n")[3].startswith(first)
    team.failing = ()
    team.pull_request({"docs/page.md": "# words\n"})
    team.check()
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "### ⚠️ Every check passed" in body


def test_a_broken_link_stops_a_document(team: Repository) -> None:
    team.pull_request({"docs/page.md": "[there](../nowhere.md)\n"})
    jobs = team.check()
    results = ["success", "failure", "skipped", "skipped", "failure"]
    assert [job.result for job in jobs.values()] == results
    team.follow()
    assert "`links` failed (links)" in team.state.bodies(PULL)[0]


def test_an_event_that_happens_twice_has_one_comment(team: Repository) -> None:
    """A re-run has a number of its own; a rebase has another commit."""
    for number in range(3):
        if number < 2:
            team.pull_request({"docs/page.md": f"# words {number}\n"})
        team.check()
        team.follow()
        team.follow()
    assert len(team.state.bodies(PULL)) == 1
    assert [method for method, _ in team.state.changes] == ["POST", "PATCH", "PATCH"]


def test_a_newer_push_overtakes_a_run(team: Repository) -> None:
    """The comment waits for the run of the last commit."""
    team.pull_request({"docs/page.md": "# words\n"})
    team.check()
    team.pull_request({"docs/page.md": "# other words\n"})
    team.follow()
    assert team.state.changes == []


@pytest.mark.parametrize(
    ("affected", "links", "change", "framework", "passes"),
    [
        ("success", "success", "success", "success", True),
        ("success", "success", "success", "skipped", True),
        ("success", "success", "skipped", "skipped", True),
        ("success", "success", "failure", "skipped", False),
        ("success", "success", "cancelled", "skipped", False),
        ("success", "success", "success", "failure", False),
        ("success", "success", "success", "cancelled", False),
        ("success", "failure", "success", "success", False),
        ("success", "skipped", "skipped", "skipped", False),
        ("failure", "success", "skipped", "skipped", False),
        ("skipped", "success", "skipped", "skipped", False),
        ("cancelled", "success", "success", "success", False),
        ("", "", "", "", False),
    ],
)
def test_the_required_check(
    affected: str, links: str, change: str, framework: str, passes: bool, team: Repository
) -> None:
    import yaml

    (step,) = yaml.safe_load(text(".github/workflows/check.yml"))["jobs"]["required"]["steps"]
    home = team.folder / "home"
    home.mkdir()
    results = {
        name: {"result": result}
        for name, result in (
            *(("affected", affected), ("links", links)),
            *(("change", change), ("framework", framework)),
        )
    }
    event = {"sha": "0" * 40, "event_name": "pull_request"}
    code, _ = team._command(step, home, {"github": event, "needs": results})
    assert (code == 0) is passes


def test_documents_take_seconds(team: Repository) -> None:
    """Processor time of everything from the push to the comment, with nothing installed."""
    team.pull_request({"README.md": text("README.md") + "\nMore words.\n"})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    team.check()
    team.follow()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 20


# Attacks: a stranger's pull request.

EVIL_MAKE = """
affected links lint smoke preview affected-tests test comment:
\t@env > {canary}-env
\t@touch {canary}-$@
\t@mkdir -p .local/check
\t@echo '[{{"stack": "@admin <img src=x>"}}]' > .local/check/infra.json
\t@echo '{{}}' > .local/check/evil.json
"""


@pytest.mark.attack("A pull request has shell in its branch and Markdown in its title")
@pytest.mark.parametrize(
    "branch",
    ["$(touch${IFS}pwned)", '";touch${IFS}pwned;"', "--help"],
)
def test_the_name_of_a_branch_runs_nothing(branch: str, team: Repository) -> None:
    """Nor does a title; neither is in the comment."""
    team.branch = "change"
    team.title = "<script>alert(1)</script> $(touch pwned) @everyone [x](javascript:alert(1))"
    team.pull_request({"docs/page.md": "# words\n"})
    team.branch = branch
    team.state.pulls[0]["head"]["label"] = f"stranger:{branch}"
    assert team.check()["required"].result == "success"
    assert team.follow()["comment"].result == "success"
    (body,) = team.state.bodies(PULL)
    assert "script" not in body and "everyone" not in body and branch not in body
    assert not [*team.folder.rglob("pwned")]


@pytest.mark.attack("A pull request edits the Makefile, and what its workflow hands over")
def test_an_edited_makefile_gets_nothing(team: Repository) -> None:
    """It runs where there is no token; the comment is made by main's, and names the file."""
    canary = team.folder / "canary"
    team.fake = ()
    workflow = ".github/workflows/check.yml"
    everything = text(workflow).replace(".local/check/smoke.json", ".local/check/*.json")
    evil = {"Makefile": EVIL_MAKE.format(canary=canary), TRAIN: "evil\n", workflow: everything}
    team.pull_request(evil)
    team.check()
    variables = Path(f"{canary}-env").read_text()
    assert "token" not in variables.lower().replace(str(team.folder).lower(), "")
    assert Path(f"{canary}-links").exists() and not Path(f"{canary}-affected").exists()
    team.follow()
    assert not Path(f"{canary}-comment").exists()
    (body,) = team.state.bodies(PULL)
    assert f"changes its own checks: \\{workflow}, Makefile.**" in body
    assert "the results of check-results cannot be read: a file of another name" in body
    assert "<img" not in body and "@admin" not in body
    assert not any(line.startswith(("az", "gh", "pulumi")) for line in team.commands())


@pytest.mark.attack("A file at the root runs in place of the Makefile, or of a module of Python")
def test_a_file_at_the_root_runs_nothing(team: Repository) -> None:
    """Neither by make nor by Python; the check names it, though documents alone install nothing."""
    canary = team.folder / "canary"
    rule = f"%:\n\ttouch {canary}\n"
    module = f"open({str(canary)!r}, 'w')\n"
    names = ("argparse", "subprocess", "runpy", "sitecustomize", "tomllib/__init__")
    files = {f"{name}.py": module for name in names}
    team.pull_request({"GNUmakefile": rule, "makefile": rule, "Makefile.sh": rule, **files})
    jobs = team.check()
    assert jobs["links"].result == jobs["required"].result == "failure"
    assert not canary.exists()
    team.pull_request(
        {**dict.fromkeys(("GNUmakefile", "makefile", "Makefile.sh", *files)), "A.md": ""}
    )
    assert team.check()["required"].result == "failure"


@pytest.mark.attack("A pull request edits a workflow")
def test_an_edited_workflow_gets_a_token_that_reads(team: Repository) -> None:
    """GitHub gives a fork no more than that, whatever its workflow asks for."""
    workflow = text(".github/workflows/check.yml")
    ask = (
        'curl --fail -X POST -H "Authorization: Bearer $TOKEN" -d \'{"body": "all fine"}\''
        f" $GITHUB_API_URL/repos/team/models/issues/{PULL}/comments"
    )
    evil = workflow.replace(
        "        run: make -f Makefile links\n",
        f"        env: {{TOKEN: '${{{{ github.token }}}}'}}\n        run: |\n          {ask}\n",
        1,
    ).replace("contents: read", "contents: read\n      pull-requests: write")
    assert "all fine" in evil
    team.pull_request({".github/workflows/check.yml": evil})
    assert team.check()["links"].result == "failure"
    assert team.state.changes == []
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "### ❌ Not ready" in body and "changes its own checks: \\.github/workflows" in body


@pytest.mark.attack("A pull request takes the checks out of a workflow")
def test_a_workflow_without_checks_is_not_ready(team: Repository) -> None:
    """Its run succeeds, and the required check is not in it."""
    workflow = "on: pull_request\njobs:\n  fine:\n    runs-on: x\n    steps:\n      - run: 'true'\n"
    team.pull_request({".github/workflows/check.yml": workflow})
    team.check()
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "❌ Not ready to merge: `affected` did not run, which this change requires" in body


LIES = """
import os, sys
if "ml.repository.affected.projects" in sys.orig_argv:
    print("documents=true\\nframework=false", file=open(os.environ["GITHUB_OUTPUT"], "a"))
    os._exit(0)
"""


@pytest.mark.attack("A pull request says itself that it changes documents alone")
def test_what_runs_is_not_the_pull_requests_to_say(team: Repository) -> None:
    """The code that it is merged into decides, and the comment names what the checks ran with."""
    team.pull_request({"ml/core/errors.py": text("ml/core/errors.py") + LIES})
    jobs = team.check()
    assert jobs["framework"].result == jobs["change"].result == "success"
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "Only documents" not in body and "### ✅" not in body
    assert "changes its own checks: ml/core/errors.py.**" in body


@pytest.mark.attack("A pull request edits a workflow so that its checks are skipped")
def test_a_skipped_job_that_the_change_needs_is_said(team: Repository) -> None:
    """GitHub lists the files, and main's code says what they need, whatever the workflow did."""
    workflow = ".github/workflows/check.yml"
    lies = text(workflow).replace("${{ steps.affected.outputs.documents }}", "'true'")
    lies = lies.replace("${{ steps.affected.outputs.framework }}", "'false'")
    team.pull_request({workflow: lies, "ml/core/errors.py": text("ml/core/errors.py") + "\n"})
    assert team.check()["required"].result == "success"
    team.follow()
    (body,) = team.state.bodies(PULL)
    first = (
        "### ❌ Not ready to merge: `change` did not run, which this change requires; "
        "`framework` did"
    )
    assert body.split("\n")[3].startswith(first)
    assert "| ❌ | `framework` | skipped, but required |" in body


@pytest.mark.attack("A pull request has shell in the name of a folder")
@pytest.mark.parametrize("name", ["ml/projects/$(touch pwned)/x.py", "infra/Pulumi.`id`.yaml"])
def test_a_name_of_a_folder_runs_nothing(name: str, team: Repository) -> None:
    team.pull_request({name: "x: 1\n"})
    assert team.check()["affected"].result == "failure"
    assert not [*team.folder.rglob("pwned")]


# The whole way.


def whole(team: Repository, changes: dict[str, Callable[[str], str]]) -> str:
    """The comment of a pull request, every command run; its processor time is bounded."""
    team.fake = ()
    edited = {name: change(text(name)) for name, change in changes.items()}
    assert all(edited[name] != text(name) for name in edited)
    team.pull_request(edited)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    team.check()
    team.follow()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 240
    (body,) = team.state.bodies(PULL)
    assert len(body) < MAX_LENGTH
    return body


@pytest.mark.slow
@pytest.mark.example
def test_a_pull_request_to_a_project_and_a_stack(team: Repository) -> None:
    """Lint, a small run, tests, the preview: the comment has the numbers of each."""
    if (known := ROOT / MYPY_CACHE).is_dir():  # `make lint` has looked at most files already
        shutil.copytree(known, team.folder / MYPY_CACHE)
    body = whole(
        team,
        {
            TRAIN: lambda text: f"{text}\n# A remark.\n",
            PROD: lambda text: text.replace("max_nodes: 2\n", "max_nodes: 3\n"),
        },
    )
    assert "### ⚠️ Every check passed, but this pull request changes its own checks\n" in body
    assert re.search(
        rf"\| `{EXAMPLE.name}` \| Completed \| .* \| .*validation\\_gain\\_at\\_3 0\.", body
    )
    assert "| `dev` | no changes |" in body and "| `prod` | 1 changed |" in body
    (changed,) = re.findall(r"\| changed \| .*maxNodeCount.*", body)
    assert "gpu-large" in changed
    assert "```mermaid\nflowchart LR\n" in body
    escaped = EXAMPLE.name.replace("_", r"\_")
    assert f"| project {escaped} |" in body


@pytest.mark.slow
def test_a_policy_refuses_in_the_first_line(team: Repository) -> None:
    team.fake = ("lint",)
    team.pull_request({PROD: text(PROD).replace("redundancy: GZRS", "redundancy: LRS")})
    jobs = team.check()
    assert jobs["required"].result == "failure"
    assert "storage-redundancy" in jobs["change"].summary
    team.follow()
    (body,) = team.state.bodies(PULL)
    assert "❌ Not ready to merge: `change` failed (infrastructure" in body.split("\n")[3]
    assert "a policy rejects `prod`" in body.split("\n")[3]
    assert "**prod violates** `storage-redundancy`" in body
