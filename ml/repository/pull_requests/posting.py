"""Posts the comment about a run of check.yml or train.yml.

It runs the code of the default branch with a token that writes, and needs no installed package. The
checks ran a pull request's code: which pull request it is, and whether its checks passed, is what
GitHub says. Which commit was trained is what main's code wrote down before. Of what they wrote
besides, files of known names and sizes are read as JSON; nothing is unpacked, and no path, number
or Markdown of it is used.
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
from typing import Any

from ml.core.errors import Exit, Problem, Refused
from ml.reports.pull_request import (
    MARKER,
    MAX_LENGTH,
    Job,
    Run,
    Training,
    comment_of,
    shown_runs,
)
from ml.repository.github import GitHub

CHECK, TRAIN = ".github/workflows/check.yml", ".github/workflows/train.yml"
AUTHOR = "github-actions[bot]"
# The artifacts of the checks, and of a training: what was asked for, and what came of it.
CHECKED = ("check-affected", "check-results")
REQUESTED, TRAINED = ("train-request",), ("train-results",)
# The documents in them.
_OF_CHECKS, _REQUEST, _RESULTS = (
    re.compile(rf"({names})\.json") for names in ("affected|smoke|infra", "request", "train")
)
# Bytes of an artifact and of a document, entries of an artifact.
MAX_ARTIFACT, MAX_DOCUMENT, MAX_ENTRIES = 5_000_000, 8_000_000, 20
# What reading a ZIP file and JSON may raise.
UNREADABLE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RecursionError, OSError)
_SHA = re.compile(r"[0-9a-f]{40}")


def post(github: GitHub, run_id: int, author: str = AUTHOR) -> str:
    """Create or update the comment about a run of the checks or of a training; what was done.

    Each shows what the other has shown. Nothing is posted for a run of another workflow or event,
    for a pull request that is closed, cannot be told apart, or has commits newer than those
    checked, and where a newer run was posted before.
    """
    run = github.get(f"actions/runs/{run_id}")
    if run.get("repository", {}).get("full_name", "").lower() != github.repository.lower():
        return f"run {run_id} is of another repository: nothing is posted"
    if _is_of(run, TRAIN, "issue_comment"):
        return _post_training(github, run, author)
    if not _is_of(run, CHECK, "pull_request"):
        return f"run {run_id} is not of {CHECK} for a pull request: nothing is posted"
    pull = _pull_request(github, run)
    if pull is None:
        return f"no open pull request has the commit of run {run_id} as its last: nothing is posted"
    number = int(pull["number"])
    own = _own_comments(github, number, author)
    shown, trained = shown_runs(min(own.items(), default=(0, ""))[1])
    if shown > run_id:
        return f"pull request {number}: the comment shows a newer run"
    facts = _facts(github, run, number)
    documents, unread = read_artifacts(github, run_id, CHECKED, _OF_CHECKS)
    body = _body(github, number, facts, documents, unread, trained)
    return _publish(github, number, own, body)


def _is_of(run: Mapping[str, Any], workflow: str, event: str) -> bool:
    return str(run.get("path") or "").partition("@")[0] == workflow and run.get("event") == event


def _post_training(github: GitHub, run: Mapping[str, Any], author: str) -> str:
    """Add a training to the comment, which keeps the checks that it shows."""
    run_id = int(run["id"])
    request = _request(github, run_id)
    if request is None:
        return f"run {run_id} trained nothing: nothing is posted"
    number, _ = request
    pull = github.get(f"pulls/{number}")
    if pull["state"] != "open":
        return f"pull request {number} is closed: nothing is posted"
    own = _own_comments(github, number, author)
    shown, trained = shown_runs(min(own.items(), default=(0, ""))[1])
    if trained > run_id:
        return f"pull request {number}: the comment shows a newer run"
    if shown:
        checked = github.get(f"actions/runs/{shown}")
        facts = _facts(github, checked, number)
        documents, unread = read_artifacts(github, shown, CHECKED, _OF_CHECKS)
    else:
        files = tuple(str(file["filename"]) for file in github.pages(f"pulls/{number}/files"))
        facts = Run(0, str(pull["head"]["sha"]), "", "", (), files)
        documents, unread = {}, []
    body = _body(github, number, facts, documents, unread, run_id)
    return _publish(github, number, own, body)


def _body(
    github: GitHub,
    number: int,
    facts: Run,
    documents: dict[str, object],
    unread: list[str],
    trained: int,
) -> str:
    """The comment about the checks and the training with that number, if there is one."""
    training = None
    if trained and (request := _request(github, trained)) is not None and request[0] == number:
        run = github.get(f"actions/runs/{trained}")
        jobs = github.pages(f"actions/runs/{trained}/jobs", "jobs", filter="latest")
        conclusion = next((job.get("conclusion") for job in jobs if job["name"] == "train"), "")
        url = str(run.get("html_url") or "")
        training = Training(trained, request[1], str(conclusion or ""), url)
        results, more = read_artifacts(github, trained, TRAINED, _RESULTS)
        documents, unread = {**documents, **results}, [*unread, *more]
    url = facts.url or (training.url if training else "")
    return comment_of(facts, documents, unread, url.partition("/actions/")[0], training)


def _request(github: GitHub, run_id: int) -> tuple[int, str] | None:
    """The pull request and the commit that a run trained, as main's code wrote them down."""
    run = github.get(f"actions/runs/{run_id}")
    if not _is_of(run, TRAIN, "issue_comment"):
        return None
    request = read_artifacts(github, run_id, REQUESTED, _REQUEST)[0].get("request")
    if not isinstance(request, dict):
        return None
    number, commit = request.get("pull"), request.get("commit")
    if not isinstance(number, int) or not _SHA.fullmatch(str(commit)):
        return None
    return number, str(commit)


def _pull_request(github: GitHub, run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The open pull request whose last commit the run checked; None without exactly one.

    The branch is the one that GitHub names; a run for a fork names no pull request.
    """
    head, commit = run.get("head_repository") or {}, str(run.get("head_sha") or "")
    owner = (head.get("owner") or {}).get("login")
    if not owner or not _SHA.fullmatch(commit):
        return None
    pulls = [
        pull
        for pull in github.pages("pulls", state="open", head=f"{owner}:{run.get('head_branch')}")
        if pull["head"]["sha"] == commit
        and ((pull["head"].get("repo") or {}).get("full_name") == head.get("full_name"))
    ]
    if len(pulls) > 1:
        named = {one.get("number") for one in run.get("pull_requests") or ()}
        pulls = [pull for pull in pulls if pull["number"] in named]
    return pulls[0] if len(pulls) == 1 else None


def _facts(github: GitHub, run: Mapping[str, Any], number: int) -> Run:
    jobs = tuple(
        Job(
            str(job["name"]),
            str(job.get("conclusion") or ""),
            tuple(
                str(step["name"])
                for step in job.get("steps") or ()
                if step.get("conclusion") == "failure"
            ),
        )
        for job in github.pages(f"actions/runs/{run['id']}/jobs", "jobs", filter="latest")
    )
    files = tuple(str(file["filename"]) for file in github.pages(f"pulls/{number}/files"))
    return Run(
        int(run["id"]),
        str(run["head_sha"]),
        str(run.get("conclusion") or ""),
        str(run.get("html_url") or ""),
        jobs,
        files,
    )


def read_artifacts(
    github: GitHub, run_id: int, names: Sequence[str], allowed: re.Pattern[str]
) -> tuple[dict[str, object], list[str]]:
    """The documents of a run by their names, and a sentence for each artifact that has a fault.

    `allowed` matches the files that may be in them; its group is a document's name.
    """
    documents: dict[str, object] = {}
    unread: list[str] = []
    artifacts = list(github.pages(f"actions/runs/{run_id}/artifacts", "artifacts"))
    for name in names:
        ids = [int(one["id"]) for one in artifacts if one["name"] == name and not one["expired"]]
        if not ids:
            continue
        try:
            content = github.download(f"actions/artifacts/{max(ids)}/zip", MAX_ARTIFACT)
            documents |= dict(_documents(content, allowed))
        except (Refused, *UNREADABLE) as error:
            reason = error.problems[0].found if isinstance(error, Refused) else str(error)
            unread.append(f"the results of {name} cannot be read: {reason[:200]}")
    return documents, unread


def _documents(content: bytes, allowed: re.Pattern[str]) -> Iterator[tuple[str, object]]:
    """The documents of a ZIP file, read in memory; ValueError for one that is not as agreed."""
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
                raise ValueError(f"{entry.filename} is packed in a way that is not read")
            with packed.open(entry) as file:
                text = file.read(MAX_DOCUMENT + 1)
            if len(text) > MAX_DOCUMENT:
                raise ValueError(f"{entry.filename} is larger than {MAX_DOCUMENT:,} bytes")
            # A command that failed has printed nothing.
            if text.strip():
                yield match[1], json.loads(text)


def _own_comments(github: GitHub, number: int, author: str) -> dict[int, str]:
    """The author's comments that begin with the marker, by their ids."""
    return {
        int(comment["id"]): str(comment.get("body") or "").replace("\r\n", "\n")
        for comment in github.pages(f"issues/{number}/comments")
        # The account of a comment may have been deleted.
        if (comment.get("user") or {}).get("login") == author
        and str(comment.get("body") or "").splitlines()[:1] == [MARKER]
    }


def _publish(github: GitHub, number: int, own: Mapping[int, str], body: str) -> str:
    """Create the comment, or update the oldest of the author's own and remove the others."""
    if len(body) > MAX_LENGTH:
        raise ValueError(f"the comment has {len(body):,} characters")
    if not own:
        github.send("POST", f"issues/{number}/comments", {"body": body})
        return f"pull request {number}: the comment is created"
    first, *others = sorted(own)
    for other in others:
        github.send("DELETE", f"issues/comments/{other}")
    if own[first].strip() == body.strip():
        return f"pull request {number}: the comment is as it should be"
    github.send("PATCH", f"issues/comments/{first}", {"body": body})
    return f"pull request {number}: the comment is updated"


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m ml.repository.pull_requests.posting`, which needs no installed package."""
    parser = argparse.ArgumentParser(prog="posting", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--run", required=True, help="The id of the run.")
    parser.add_argument("--author", default=AUTHOR, help="Whose comment is updated.")
    options = parser.parse_args(argv)
    try:
        if not re.fullmatch(r"\d{1,18}", options.run, re.ASCII):
            expected, hint = "the number of a run", "it is in the address of its page"
            raise Refused(Problem("no-such-run", f"--run {options.run}", expected, hint))
        print(post(GitHub.of_workflow(), int(options.run), options.author))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main())
