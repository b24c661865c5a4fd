"""Posts the comment about a run of the checks; `python -m ml.repository.posting --run ID`.

The workflow that starts it has a token that writes, and runs the code of the default branch. The
checks ran a pull request's code: which pull request it is, and whether its checks passed, is what
GitHub says. Of what they wrote, files of known names and sizes are read as JSON; nothing is
unpacked, and no path, number or Markdown of it is used.
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
from ml.reports.pull_request import MARKER, MAX_LENGTH, Job, Run, comment_of, shown_run
from ml.repository.github import GitHub

WORKFLOW = ".github/workflows/check.yml"
AUTHOR = "github-actions[bot]"
# The artifacts of its jobs, and the documents in them.
ARTIFACTS = ("check-affected", "check-results")
_DOCUMENT = re.compile(r"(affected|smoke|infra|compare-[1-4])\.json")
# Bytes of an artifact and of a document, entries of an artifact.
MAX_ARTIFACT, MAX_DOCUMENT, MAX_ENTRIES = 5_000_000, 8_000_000, 20
# What reading a ZIP file and JSON may raise.
UNREADABLE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RecursionError, OSError)
_SHA = re.compile(r"[0-9a-f]{40}")


def post(github: GitHub, run_id: int, author: str = AUTHOR) -> str:
    """Create or update the comment about a run; a sentence on what was done.

    Nothing is posted for a run of another workflow or event, for a pull request that is closed,
    has newer commits, or cannot be told apart, and where a newer run was posted before.
    """
    run = github.get(f"actions/runs/{run_id}")
    path = str(run.get("path") or "").partition("@")[0]
    if path != WORKFLOW or run.get("event") != "pull_request":
        return f"run {run_id} is not of {WORKFLOW} for a pull request: nothing is posted"
    if run.get("repository", {}).get("full_name", "").lower() != github.repository.lower():
        return f"run {run_id} is of another repository: nothing is posted"
    pull = _pull_request(github, run)
    if pull is None:
        return f"no open pull request has the commit of run {run_id} as its last: nothing is posted"
    number = int(pull["number"])
    documents, unread = read_artifacts(github, run_id)
    server = str(run.get("html_url") or "").partition("/actions/")[0]
    body = comment_of(_facts(github, run, number), documents, unread, server)
    return _publish(github, number, body, author)


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


def read_artifacts(github: GitHub, run_id: int) -> tuple[dict[str, object], list[str]]:
    """The documents of a run by their names, and a sentence for each artifact that has a fault."""
    documents: dict[str, object] = {}
    unread: list[str] = []
    artifacts = list(github.pages(f"actions/runs/{run_id}/artifacts", "artifacts"))
    for name in ARTIFACTS:
        ids = [int(one["id"]) for one in artifacts if one["name"] == name and not one["expired"]]
        if not ids:
            continue
        try:
            content = github.download(f"actions/artifacts/{max(ids)}/zip", MAX_ARTIFACT)
            documents |= dict(_documents(content))
        except (Refused, *UNREADABLE) as error:
            reason = error.problems[0].found if isinstance(error, Refused) else str(error)
            unread.append(f"the results of {name} cannot be read: {reason[:200]}")
    return documents, unread


def _documents(content: bytes) -> Iterator[tuple[str, object]]:
    """The documents of a ZIP file, read in memory; ValueError for one that is not as agreed."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        entries = packed.infolist()
        if len(entries) > MAX_ENTRIES:
            raise ValueError(f"{len(entries):,} files, at most {MAX_ENTRIES} are read")
        for entry in entries:
            match = _DOCUMENT.fullmatch(entry.filename)
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


def _publish(github: GitHub, number: int, body: str, author: str) -> str:
    """Create the comment, or update the oldest of the author's own and remove the others."""
    if len(body) > MAX_LENGTH:
        raise ValueError(f"the comment has {len(body):,} characters")
    own = {
        int(comment["id"]): str(comment.get("body") or "").replace("\r\n", "\n")
        for comment in github.pages(f"issues/{number}/comments")
        # The account of a comment may have been deleted.
        if (comment.get("user") or {}).get("login") == author
        and str(comment.get("body") or "").splitlines()[:1] == [MARKER]
    }
    if not own:
        github.send("POST", f"issues/{number}/comments", {"body": body})
        return f"pull request {number}: the comment is created"
    first, *others = sorted(own)
    if shown_run(own[first]) > shown_run(body):
        return f"pull request {number}: the comment shows a newer run"
    for other in others:
        github.send("DELETE", f"issues/comments/{other}")
    if own[first].strip() == body.strip():
        return f"pull request {number}: the comment is as it should be"
    github.send("PATCH", f"issues/comments/{first}", {"body": body})
    return f"pull request {number}: the comment is updated"


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m ml.repository.posting`, which needs no installed package."""
    parser = argparse.ArgumentParser(prog="posting", description=(__doc__ or "").split(";")[0])
    parser.add_argument("--run", required=True, help="The id of the run of the checks.")
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
