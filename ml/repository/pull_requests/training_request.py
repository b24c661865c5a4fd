"""Who may have a pull request trained, and which commit of it.

A comment `/train` asks for it. It counts if its author may write to the repository, as GitHub says
now. It is of the commit that is the pull request's last one now; a comment on a pull request from a
fork names it, because a stranger may push between the review and the comment.

It needs no installed package. The command `ask` reads the event of the workflow and outputs `pull`
and `commit`; `fetch` puts the files of a commit into a folder, as data.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.core import files, repository
from ml.core.errors import Exit, Problem, Refused
from ml.repository.github import GitHub

# The first line of a comment, spaces around it aside.
_COMMAND = re.compile(r"/train(?:[ \t]+([0-9a-f]{40}))?[ \t]*", re.ASCII)
WRITERS = ("admin", "maintain", "write")
_SHA = re.compile(r"[0-9a-f]{40}")
# What git does with files besides writing them: links could lead to files of this machine, and
# hooks and filters are programs.
_AS_DATA = (
    *("-c", "core.symlinks=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "filter.lfs.smudge=", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"),
)


def ask(github: GitHub, event: Mapping[str, Any]) -> tuple[int, str] | None:
    """The pull request and the commit that a comment asks to train.

    None for any other comment, and for one of somebody who may not write to the repository. Raises
    Refused where the commit is not the one to train.
    """
    comment, number = event["comment"], int(event["issue"]["number"])
    lines = str(comment.get("body") or "").strip().splitlines() or [""]
    match = _COMMAND.fullmatch(lines[0].strip())
    if match is None or "pull_request" not in event["issue"]:
        return None
    login = str(comment["user"]["login"])
    account = urllib.parse.quote(login, safe="")
    if github.get(f"collaborators/{account}/permission")["permission"] not in WRITERS:
        return None
    pull = github.get(f"pulls/{number}")
    head = pull["head"]
    if pull["state"] != "open":
        raise _refused(f"pull request {number} is {pull['state']}", "an open one")
    is_ours = (head.get("repo") or {}).get("full_name") == github.repository
    if match[1] is None and not is_ours:
        hint = f"/train {head['sha']}, once you have read that commit"
        raise _refused("the pull request is from a fork", "the commit that you read", hint)
    if match[1] not in (None, head["sha"]):
        found = f"{match[1][:12]} is not the last commit of pull request {number}"
        raise _refused(found, f"{head['sha']}", "read the newer commits, then name the last")
    return number, str(head["sha"])


def _refused(found: str, expected: str, hint: str = "") -> Refused:
    return Refused(Problem("not-trained", found, expected, hint), exit_code=Exit.RUN_FAILED)


def fetch(number: int, commit: str, to: Path) -> None:
    """Put the files of a pull request's commit into a folder, links as texts; run nothing of them.

    Raises Refused where the pull request does not have the commit any more.
    """
    if not _SHA.fullmatch(commit):
        raise Refused(Problem("no-commit", f"{commit!r}", "a commit: 40 hexadecimal digits"))
    root = repository.root()
    _git(root, "fetch", "--quiet", "--no-tags", "origin", f"refs/pull/{number}/head")
    _git(root, "merge-base", "--is-ancestor", commit, "FETCH_HEAD")
    _git(root, *_AS_DATA, "worktree", "add", "--quiet", "--detach", str(to.absolute()), commit)
    if not repository.is_root(to):
        raise Refused(Problem("no-root", f"the commit has no {repository.MARK}", "a repository"))


def _git(root: Path, *words: str) -> None:
    """Run git, with the workflow's token where there is one."""
    variables = dict(os.environ)
    if token := os.environ.get("GH_TOKEN"):
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        basic = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        variables |= {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
            "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {basic}",
        }
    done = subprocess.run(["git", *words], cwd=root, env=variables, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["the commit is not in the pull request"]
        hint = "a force-push removes commits: read the new one, and comment /train again"
        raise Refused(Problem("no-commit", reason[0], "a commit of the pull request", hint))


def main(argv: Sequence[str] | None = None) -> int:
    """The commands of the workflow."""
    parser = argparse.ArgumentParser(prog="training_request")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--save", required=True, type=Path, help="A file for the request.")
    fetching = commands.add_parser("fetch")
    fetching.add_argument("--pull", required=True, type=int)
    fetching.add_argument("--commit", required=True)
    fetching.add_argument("--to", required=True, type=Path)
    options = parser.parse_args(argv)
    try:
        if options.command == "fetch":
            fetch(options.pull, options.commit, options.to)
            return int(Exit.DONE)
        event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        request = ask(GitHub.of_workflow(), event)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    if request is None:
        print("nobody who may write to the repository asks for a training")
        return int(Exit.DONE)
    number, commit = request
    files.replace(options.save, json.dumps({"pull": number, "commit": commit}))
    if path := os.environ.get("GITHUB_OUTPUT"):
        with Path(path).open("a", encoding="utf-8") as outputs:
            outputs.write(f"pull={number}\ncommit={commit}\n")
    print(f"pull request {number}: {commit} is trained")
    return int(Exit.DONE)


if __name__ == "__main__":
    sys.exit(main())
