"""Post the comment about a run of check.yml or train.yml.

It runs the default branch's code with a write token, and needs no package besides PyYAML. The
checks ran a pull request's code, so their results are untrusted. Therefore the pull request, its
files, the jobs and whether they passed come from GitHub's API. The default branch's code determines
which jobs the files require; a workflow of main recorded which commit was trained. Artifacts are
read in memory: only files of known names and limited size are parsed as JSON, and no path, number
or Markdown in them is used.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ml.core import repository
from ml.core.errors import Exit, Problem, UserError, as_program
from ml.reports.pull_requests.checks import (
    MARKER,
    MAX_LENGTH,
    Job,
    PullRequestChange,
    Run,
    Training,
    comment_of,
    shown_runs,
)
from ml.repository.affected.projects import (
    BAD_NAME,
    Affected,
    of_pull_request,
)
from ml.repository.github.api import AUTHOR, MAIN, GitHub

CHECK, TRAIN = ".github/workflows/check.yml", ".github/workflows/train.yml"
# Names of the artifacts: results of the checks, a training's request, results of a training.
CHECKED, REQUESTED, TRAINED = "check-results", "train-request", "train-results"
# Allowed file names in each artifact; the group is the document's name.
_OF_CHECKS, _REQUEST, _RESULTS = (
    re.compile(rf"({names})\.json") for names in ("smoke|infra", "request", "train")
)
# Attempts to write the comment while others change it.
ATTEMPTS = 3
# Maximum bytes of an artifact and of a document, and maximum entries of an artifact.
MAX_ARTIFACT, MAX_DOCUMENT, MAX_ENTRIES = 5_000_000, 8_000_000, 20
# Exceptions that reading an invalid ZIP file or JSON may raise.
UNREADABLE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RecursionError, OSError)
_SHA = re.compile(r"[0-9a-f]{40}")


def post(github: GitHub, root: Path, run_id: int) -> str:
    """Create or update the comment about a run of the checks or a training; return what was done.

    The comment shows the latest checks and the latest training; this run replaces one of them.
    `root` is a checkout of the default branch. Nothing is posted for a run of another workflow or
    event, if the comment shows a newer run, or if the pull request is closed, ambiguous, not for
    the default branch, or has newer commits than the run checked.
    """
    run = github.get(f"actions/runs/{run_id}")
    if run.get("repository", {}).get("full_name", "").lower() != github.repository.lower():
        return f"run {run_id} is of another repository: nothing is posted"
    if _is_of(run, TRAIN, "issue_comment"):
        request = _request(github, run_id)
        if request is None:
            return f"run {run_id} trained nothing: nothing is posted"
        pull = github.get(f"pulls/{request[0]}")
        if pull["state"] != "open":
            return f"pull request {request[0]} is closed: nothing is posted"
        checks, training = 0, run_id
    elif _is_of(run, CHECK, "pull_request"):
        pull = _pull_request(github, run)
        if pull is None:
            words = f"no open pull request for {MAIN} has the commit of run {run_id} as its last"
            return f"{words}: nothing is posted"
        checks, training = run_id, 0
    else:
        return f"run {run_id} is not of {CHECK} for a pull request: nothing is posted"
    number = int(pull["number"])
    comments = _own_comments(github, number)
    for _ in range(ATTEMPTS):
        comment, trained = _shown(github, pull, comments)
        if (checks and comment > checks) or (training and trained > training):
            return f"pull request {number}: the comment shows a newer run"
        body = _body(github, root, number, checks or comment, training or trained)
        read, comments = comments, _own_comments(github, number)
        if read == comments:
            return _publish(github, number, comments, body)
    actual = f"the comment of pull request {number} changed {ATTEMPTS} times while it was written"
    problem = Problem("comment-conflict", actual, "an unchanged comment", "re-run the job")
    raise UserError(problem, exit_code=Exit.RUN_FAILED)


def _is_of(run: Mapping[str, Any], workflow: str, event: str) -> bool:
    return str(run.get("path") or "").partition("@")[0] == workflow and run.get("event") == event


def _shown(github: GitHub, pull: Mapping[str, Any], comments: Mapping[int, str]) -> tuple[int, int]:
    """Return the ids of the newest checks run and training run in the comments; 0 for none.

    Anyone with write access can edit a comment, or post one from a branch's workflow. So an id
    counts only if GitHub confirms that its run belongs to the pull request; checks must be of the
    last commit.
    """
    runs = [shown_runs(body) for body in comments.values()]
    checks = max((run for run, _ in runs if _checked(github, run, pull)), default=0)
    return checks, max((run for _, run in runs if _trained(github, run, pull)), default=0)


def _checked(github: GitHub, run_id: int, pull: Mapping[str, Any]) -> bool:
    run = _run(github, run_id)
    return _is_of(run, CHECK, "pull_request") and run.get("head_sha") == pull["head"]["sha"]


def _trained(github: GitHub, run_id: int, pull: Mapping[str, Any]) -> bool:
    request = _request(github, run_id) if _run(github, run_id) else None
    return request is not None and request[0] == int(pull["number"])


def _run(github: GitHub, run_id: int) -> Mapping[str, Any]:
    """Return a workflow run; {} if it does not exist."""
    try:
        return dict(github.get(f"actions/runs/{run_id}")) if run_id else {}
    except UserError as refused:
        if f"runs/{run_id}: 404" not in refused.problems[0].actual:
            raise
        return {}


def _body(github: GitHub, root: Path, number: int, checks: int, trained: int) -> str:
    """Return the comment's Markdown; `checks` and `trained` are ids of runs, 0 for none."""
    change, commit, unread = _change(github, root, number)
    facts, documents = Run(0, commit, "", "", (), change), dict[str, object]()
    run = github.get(f"actions/runs/{checks}") if checks else {}
    if run.get("head_sha") == commit:
        facts = _facts(github, run, change)
        documents, faults = read_artifact(github, checks, CHECKED, _OF_CHECKS)
        unread += faults
    training = None
    if trained and (request := _request(github, trained)) is not None and request[0] == number:
        run = github.get(f"actions/runs/{trained}")
        jobs = github.pages(f"actions/runs/{trained}/jobs", "jobs", filter="latest")
        conclusion = next((job.get("conclusion") for job in jobs if job["name"] == "train"), "")
        url = str(run.get("html_url") or "")
        training = Training(trained, request[1], str(conclusion or ""), url)
        results, faults = read_artifact(github, trained, TRAINED, _RESULTS)
        documents, unread = {**documents, **results}, [*unread, *faults]
    url = facts.url or (training.url if training else "")
    return comment_of(facts, documents, unread, url.partition("/actions/")[0], training)


def _change(github: GitHub, root: Path, number: int) -> tuple[PullRequestChange, str, list[str]]:
    """Return what the pull request affects, its last commit, and sentences about problems.

    Main's code determines what it affects.
    """
    try:
        touched, commit = of_pull_request(root, github, number)
        unread = []
    except UserError as refused:
        if refused.problems[0].code != BAD_NAME:
            raise
        unread = [refused.problems[0].actual]
        touched = Affected("", 0, False, True, self_affecting_files=(*unread,))
        commit = str(github.get(f"pulls/{number}")["head"]["sha"])
    return change_of(touched), commit, unread


def change_of(touched: Affected) -> PullRequestChange:
    """Return what the comment shows about a change, with the jobs that it requires."""
    needed = [("affected", "affected"), ("links", "links")]
    if not touched.documents:
        needed.append(("change", "lint, types and specs"))
    if touched.projects:
        needed.append(("change", "a small run of the projects"))
    if touched.stacks:
        needed.append(("change", "infrastructure, policies and cost"))
    if touched.framework:
        needed.append(("framework", "every test"))
    elif touched.tests:
        needed.append(("change", "tests of what is affected"))
    return PullRequestChange(
        touched.documents,
        tuple(needed),
        touched.self_affecting_files,
        touched.projects,
        touched.stacks,
        touched.causes,
    )


def _request(github: GitHub, run_id: int) -> tuple[int, str] | None:
    """Return the pull request's number and the commit that a run trained; None if it trained none.

    They come from the artifact that a job with main's code created.
    """
    run = github.get(f"actions/runs/{run_id}")
    if not _is_of(run, TRAIN, "issue_comment"):
        return None
    request = read_artifact(github, run_id, REQUESTED, _REQUEST)[0].get("request")
    if not isinstance(request, dict):
        return None
    number, commit = request.get("pull"), request.get("commit")
    if not isinstance(number, int) or not _SHA.fullmatch(str(commit)):
        return None
    return number, str(commit)


def _pull_request(github: GitHub, run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the only open pull request for main whose last commit is the run's; None otherwise.

    It is searched by the run's branch, since GitHub lists no pull request for a run of a fork. If
    the commit is also in a pull request for another base branch, return None: the run may have used
    that branch's workflow.
    """
    head, commit = run.get("head_repository") or {}, str(run.get("head_sha") or "")
    owner = (head.get("owner") or {}).get("login")
    if not owner or not _SHA.fullmatch(commit):
        return None
    pulls = [
        pull
        for pull in github.pages("pulls", state="all", head=f"{owner}:{run.get('head_branch')}")
        if pull["head"]["sha"] == commit
        and ((pull["head"].get("repo") or {}).get("full_name") == head.get("full_name"))
    ]
    if any(pull["base"]["ref"] != MAIN for pull in pulls):
        return None
    pulls = [pull for pull in pulls if pull["state"] == "open"]
    if len(pulls) > 1:
        named = {item.get("number") for item in run.get("pull_requests") or ()}
        pulls = [pull for pull in pulls if pull["number"] in named]
    return pulls[0] if len(pulls) == 1 else None


def _facts(github: GitHub, run: Mapping[str, Any], change: PullRequestChange) -> Run:
    jobs = tuple(
        Job(
            str(job["name"]),
            str(job.get("conclusion") or ""),
            *(
                tuple(
                    str(step["name"])
                    for step in job.get("steps") or ()
                    if step.get("conclusion") == conclusion
                )
                for conclusion in ("failure", "success")
            ),
        )
        for job in github.pages(f"actions/runs/{run['id']}/jobs", "jobs", filter="latest")
    )
    return Run(
        int(run["id"]),
        str(run["head_sha"]),
        str(run.get("conclusion") or ""),
        str(run.get("html_url") or ""),
        jobs,
        change,
    )


def read_artifact(
    github: GitHub,
    run_id: int,
    name: str,
    allowed: re.Pattern[str],
    job: str = "",
    *,
    failed_too: bool = False,
) -> tuple[dict[str, object], list[str]]:
    """Return the parsed documents of a run's artifact by name, and sentences about its faults.

    Both are empty without the artifact. `allowed` must match its file names; the group is a
    document's name. With `job`, the artifact must be from the newest attempt of that job, since
    anyone with write access could delete it so that an older one is read. That attempt must have
    succeeded; `failed_too` also accepts one that failed.
    """
    # Artifacts of earlier attempts are not the final result of the run.
    every = github.pages(f"actions/runs/{run_id}/artifacts", "artifacts")
    named = [artifact for artifact in every if artifact["name"] == name]
    newest = max(named, key=lambda artifact: int(artifact["id"]), default=None)
    if newest is None or newest["expired"]:
        return {}, []
    if job and not _is_left_by(github, run_id, job, newest, failed_too):
        return {}, [f"{name} is not what the newest attempt of the job {job} left"]
    try:
        content = github.download(f"actions/artifacts/{int(newest['id'])}/zip", MAX_ARTIFACT)
        return dict(_documents(content, allowed)), []
    except (UserError, *UNREADABLE) as error:
        reason = error.problems[0].actual if isinstance(error, UserError) else str(error)
        return {}, [f"the results of {name} cannot be read: {reason[:200]}"]


def _is_left_by(
    github: GitHub,
    run_id: int,
    name: str,
    artifact: Mapping[str, Any],
    failed_too: bool,
) -> bool:
    """Return whether the job's newest attempt succeeded and created the artifact.

    With `failed_too`, use the newest attempt that succeeded or failed. All attempts of the run are
    queried, since GitHub lists a job only for the attempts that ran it.
    """
    every = github.pages(f"actions/runs/{run_id}/jobs", "jobs", filter="all")
    attempts = [job for job in every if job["name"] == name]
    if failed_too:
        attempts = [job for job in attempts if job["conclusion"] in ("success", "failure")]
    newest = max(attempts, key=lambda job: int(job["run_attempt"]), default=None)
    if newest is None or not (failed_too or newest["conclusion"] == "success"):
        return False
    times = (newest["started_at"], artifact["created_at"], newest["completed_at"])
    started, created, ended = (datetime.fromisoformat(str(time)) for time in times)
    return artifact["workflow_run"]["id"] == run_id and started <= created <= ended


def _documents(content: bytes, allowed: re.Pattern[str]) -> Iterator[tuple[str, object]]:
    """Yield the name and parsed JSON of each file in a ZIP archive, which is read in memory.

    Raises ValueError for entries with another name, compression or size than allowed.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        entries = packed.infolist()
        if len(entries) > MAX_ENTRIES:
            raise ValueError(f"{len(entries):,} files, at most {MAX_ENTRIES} are read")
        for entry in entries:
            match = allowed.fullmatch(entry.filename)
            if match is None:
                raise ValueError(f"a file of another name: {entry.filename[:80]!r}")
            if entry.flag_bits & 1 or entry.compress_type not in (
                zipfile.ZIP_STORED,
                zipfile.ZIP_DEFLATED,
            ):
                raise ValueError(f"{entry.filename} uses an unsupported compression")
            with packed.open(entry) as file:
                text = file.read(MAX_DOCUMENT + 1)
            if len(text) > MAX_DOCUMENT:
                raise ValueError(f"{entry.filename} is larger than {MAX_DOCUMENT:,} bytes")
            # The file is empty if the command that writes it failed.
            if text.strip():
                yield match[1], json.loads(text)


def _own_comments(github: GitHub, number: int) -> dict[int, str]:
    """Return the id → text of the comments by AUTHOR that begin with the marker."""
    return {
        int(comment["id"]): str(comment.get("body") or "").replace("\r\n", "\n")
        for comment in github.pages(f"issues/{number}/comments")
        # `user` is null if the account was deleted.
        if (comment.get("user") or {}).get("login") == AUTHOR
        and str(comment.get("body") or "").splitlines()[:1] == [MARKER]
    }


def _publish(github: GitHub, number: int, comments: Mapping[int, str], body: str) -> str:
    """Create the comment, or update the oldest one and delete the others; return what was done."""
    if len(body) > MAX_LENGTH:
        raise ValueError(f"the comment has {len(body):,} characters")
    if not comments:
        github.send("POST", f"issues/{number}/comments", {"body": body})
        return f"pull request {number}: the comment is created"
    first, *others = sorted(comments)
    for duplicate in others:
        github.send("DELETE", f"issues/comments/{duplicate}")
    if comments[first].strip() == body.strip():
        return f"pull request {number}: the comment is as it should be"
    github.send("PATCH", f"issues/comments/{first}", {"body": body})
    return f"pull request {number}: the comment is updated"


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Post the comment about the workflow run given on the command line."""
    parser = argparse.ArgumentParser(prog="posting", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--run", required=True, help="The id of the run.")
    options = parser.parse_args(argv)
    if not re.fullmatch(r"\d{1,18}", options.run, re.ASCII):
        expected, hint = "the number of a run", "it is in the address of its page"
        raise UserError(Problem("no-such-run", f"--run {options.run}", expected, hint))
    print(post(GitHub.of_workflow(), repository.root(), int(options.run)))


if __name__ == "__main__":
    sys.exit(main())
