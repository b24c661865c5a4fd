"""Check who requests a training of a pull request, and which commit of it.

The comment `/train COMMIT` requests a training. Its author must have write access to the
repository. COMMIT must be the pull request's last commit, since somebody may push between the
review and the comment. For a branch of the repository, the first seven digits are enough. A fork
needs all 40, since its owner could create another commit with the same first digits.

It needs no package besides PyYAML. The command `ask` reads the workflow's event and outputs `pull`
and `commit`; `fetch` writes the files of a commit into a folder without running them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.core import files, git, repository, trees
from ml.core.errors import Exit, Problem, UserError, as_program
from ml.core.terminal import printable
from ml.repository.forks import layout
from ml.repository.github.api import GitHub, write_outputs

# The first line of a comment, stripped; the commit may be in backticks.
_COMMAND = re.compile(r"/train(?:[ \t]+(?:`([^`]+)`|(.+)))?")
WRITERS = ("admin", "maintain", "write")
_SHA, _SHORT = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{7,40}")
# Maximum bytes and files that a commit may add to main's, and maximum folder depth.
_MOST_BYTES, _MOST_FILES, _DEEPEST = 256 << 20, 20_000, 100


def ask(github: GitHub, event: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the pull request's number and the commit that a comment requests to train.

    Returns None for any other comment, and if its author has no write access. If the commit is not
    the last one, replies with the right command and raises UserError.
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
    named, last = match[1] or match[2] or "", str(head["sha"])
    is_short = is_ours and _SHORT.fullmatch(named) and last.startswith(named)
    if named == last or is_short:
        return number, last
    # Do not quote the comment: its text would appear under the workflow's name.
    reply = f"Nothing is trained. Read the last commit, then comment `/train {last}`."
    github.send("POST", f"issues/{number}/comments", {"body": reply})
    argument = printable(lines[0].strip()[:60])
    actual = f"`{argument}` does not name the last commit of pull request {number}"
    raise _refused(actual, last, f"/train {last}, once you have read that commit")


def _refused(actual: str, expected: str, hint: str = "") -> UserError:
    return UserError(Problem("not-trained", actual, expected, hint), exit_code=Exit.RUN_FAILED)


def fetch(root: Path, number: int, commit: str, to: Path) -> None:
    """Write the files of a pull request's commit into the folder `to`, without running any code.

    Symbolic links become text files; the result of an earlier fetch is replaced. Raises UserError
    if the pull request no longer has the commit, if it is much larger than main, if `layout`
    rejects a file's name, or if its .gitattributes make git write other bytes than the commit has.
    """
    remote = f"refs/pull/{number}/head"
    if _SHA.fullmatch(commit):
        # Keep the objects packed: unpacked, they may be many times as large.
        packed = {"fetch.unpackLimit": "1"}
        git.fetch(
            root,
            "origin",
            remote,
            settings={**git.sign_in(os.environ.get("GH_TOKEN", "")), **packed},
        )
    if (
        not _SHA.fullmatch(commit)
        or git.ask(root, "merge-base", "--is-ancestor", commit, "FETCH_HEAD") is None
    ):
        hint = "a force-push removes commits: read the new one, and comment /train again"
        raise UserError(Problem("no-commit", f"{commit!r}", "a commit of the pull request", hint))
    _demand_space(root, commit)
    tree = trees.commit(root, commit)
    if tree is None or not tree.entries:
        raise UserError(Problem("no-root", f"{commit[:12]} has no files", hint="push a commit"))
    entries = [(mode, path) for path, (mode, _) in tree.entries.items()]
    if refused := [*layout.problems(entries, layout.own_names(root))]:
        raise UserError(*refused)
    # Remove the worktree of an earlier fetch, even if somebody deleted its folder.
    git.ask(root, "worktree", "remove", "--force", str(to.absolute()))
    words = ("worktree", "add", "--quiet", "--detach", str(to.absolute()), commit)
    # Write symbolic links as text: they could lead to files of this machine.
    git.run(root, *words, settings={"core.symlinks": "false"})
    copy = trees.commit(to)
    if changed := [path for path in copy.entries if not copy.has(to / path)] if copy else ["."]:
        actual = f"{len(changed)} files differ from the commit: {printable(changed[0])}"
        hint = "take their encoding, line ends or `ident` out of .gitattributes"
        raise UserError(Problem("content-mismatch", actual, "the reviewed bytes", hint))
    if not repository.is_root(to):
        raise UserError(Problem("no-root", f"no {repository.MARK}", "the repository", "restore it"))


def _demand_space(root: Path, commit: str) -> None:
    """Raise UserError if a commit exceeds the size limits; main is checked out at `root`."""
    main, branch = (trees.measure(root, name, _DEEPEST) for name in ("HEAD", commit))
    if branch.depth > _DEEPEST:
        actual = f"{commit[:12]} is more than {_DEEPEST} folders deep"
        expected, hint = f"at most {_DEEPEST}", "move the deepest files into a higher folder"
    elif branch.size > main.size + _MOST_BYTES or branch.files > main.files + _MOST_FILES:
        actual = f"{commit[:12]} expands to {branch.size >> 20:,} MiB in {branch.files:,} files"
        has = f"which has {main.size >> 20:,} MiB in {main.files:,}"
        most = f"at most {_MOST_BYTES >> 20} MiB and {_MOST_FILES:,} files beyond main"
        expected = f"{most}, {has}"
        hint = "upload data to Azure, and commit a data asset with its path"
    else:
        return
    raise UserError(Problem("too-large", actual, expected, hint))


@as_program
def main(argv: Sequence[str] | None = None) -> None:
    """Run a command of the workflow train.yml."""
    parser = argparse.ArgumentParser(prog="training_request")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask")
    asking.add_argument("--save", required=True, type=Path, help="A file for the request.")
    fetching = commands.add_parser("fetch")
    fetching.add_argument("--pull", required=True, type=int)
    fetching.add_argument("--commit", required=True)
    fetching.add_argument("--to", required=True, type=Path)
    options = parser.parse_args(argv)
    if options.command == "fetch":
        fetch(repository.root(), options.pull, options.commit, options.to)
        return
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    request = ask(GitHub.of_workflow(), event)
    if request is None:
        print("no training requested by a user with write access")
        return
    number, commit = request
    files.replace(options.save, json.dumps({"pull": number, "commit": commit}))
    write_outputs({"pull": number, "commit": commit})
    print(f"pull request {number}: {commit} is trained")


if __name__ == "__main__":
    sys.exit(main())
