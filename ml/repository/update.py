"""`make update`: the template's changes since the last time, merged into a fork.

copier merges the files that copier.yml of the template shares, three ways: as they were, as they
are in the template, as they are here. Where both changed the same lines it leaves markers in the
file and ends with 0, so they are looked for. A thin fork then locks the wheel of the new version.

    make update             in this tree, to look at and to commit
    make update-request     in a tree of its own, opened or updated as a pull request
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from ml.core import repository
from ml.core.errors import Exit, Problem, Refused
from ml.repository import wheel
from ml.repository.github import GitHub
from ml.repository.init import ANSWERS, lock_of
from ml.repository.links import unmerged

BRANCHES = "template-update/"
CONFLICT, LABELS = "conflict", "labels"
_TAG = re.compile(r"v(\d+(?:\.\d+)*\S*)")
_SECRETS = ("GH_TOKEN", "GITHUB_TOKEN")


@dataclass(frozen=True)
class Update:
    """What a merge did: the versions, and the files that nobody could merge."""

    before: str
    after: str
    conflicts: tuple[str, ...]


def update(root: Path, revision: str = "", source: str = "") -> Update:
    """Merge a version of the template, by default its newest, into the clean tree at `root`.

    `source` is the wheel's address or file; by default the release's where the lock has an address,
    else it is built of the template. Raises Refused where copier or git fails, and for a tree that
    is no fork.
    """
    before = _answers(root)
    words = ["update", "--defaults", "--quiet", "--conflict", "inline"]
    words += ["--vcs-ref", revision] if revision else []
    _run([sys.executable, "-m", "copier", *words, str(root)], root)
    after = _answers(root)
    if before["_commit"] != after["_commit"] and not after["full"]:
        _lock(root, str(after["_src_path"]), str(after["_commit"]), source)
    return Update(str(before["_commit"]), str(after["_commit"]), tuple(unmerged(root)))


def _answers(root: Path) -> dict[str, object]:
    try:
        answers = yaml.safe_load((root / ANSWERS).read_text())
        return {"_commit": answers["_commit"], "_src_path": answers["_src_path"], **answers}
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        hint = "make init, in a clone of the template"
        raise Refused(
            Problem("no-fork", f"no {ANSWERS} of `make init`", "its answers", hint),
            exit_code=Exit.WRONG_CALL,
        ) from None


def _lock(root: Path, template: str, revision: str, source: str) -> None:
    """Lock the wheel of a revision: as before by an address, or built into wheels/."""
    lock = root / repository.FRAMEWORK_LOCK
    address = re.search(r"@ (\S+)", lock.read_text())
    if source:
        lock.write_text(lock_of(source if "://" in source else Path(source), root))
    elif address:
        old, new = re.search(r"-(\d[^-]*)-py3", address[1]), _TAG.fullmatch(revision)
        if not old or not new:
            hint = "make update TO=v1.2.3, or WHEEL= with the address of a wheel"
            raise Refused(Problem("no-release", f"{revision} is no release", "a tag", hint))
        lock.write_text(lock_of(address[1].replace(old[1], new[1]), root))
    else:
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "template"
            _run(["git", "clone", "--quiet", "--bare", template, str(clone)], root)
            lock.write_text(lock_of(wheel.build(clone, Path(folder) / "dist", revision), root))


def _run(words: Sequence[str], root: Path) -> str:
    """Run a program that reads the template: no token is in its environment."""
    variables = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    process = subprocess.run(words, cwd=root, env=variables, capture_output=True, text=True)
    if process.returncode:
        lines = [line for line in process.stderr.splitlines() if line.strip()]
        found = f"{' '.join(words[2:4] if 'copier' in words else words[:2])}: {lines[-1:] or ''}"
        hint = f"commit what is here first; the template's address is in {ANSWERS}"
        raise Refused(Problem("update-failed", found, "exit 0", hint), exit_code=Exit.RUN_FAILED)
    return process.stdout


# The pull request.


def request(root: Path, github: GitHub, revision: str = "", source: str = "") -> str:
    """Keep one pull request with the update; what was done.

    Its branch is of the version: one that was closed stays closed, and the next version has its
    own. Those of older versions are closed.
    """
    with _tree(root) as tree:
        result = update(tree, revision, source)
        if result.before == result.after:
            return f"{result.after} of the template is merged already"
        files, modes = _changes(tree)
    branch = f"{BRANCHES}{result.after}"
    title = f"Template {result.after}"
    number, done = github.keep_pull_request(branch, title, _body(result), files, modes)
    if result.conflicts:
        github.send("POST", f"issues/{number}/{LABELS}", {LABELS: [CONFLICT]})
    for pull in github.pages("pulls", state="open"):
        head = str(pull["head"]["ref"])
        if head.startswith(BRANCHES) and head != branch and pull["number"] != number:
            github.send("PATCH", f"pulls/{pull['number']}", {"state": "closed"})
            done += f"; {pull['number']} is closed"
    return done


@contextmanager
def _tree(root: Path) -> Iterator[Path]:
    """The commit of HEAD in a folder of its own, for as long as the block takes.

    The commands of this tree stay those that are reviewed, while a token is there.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _run(["git", "worktree", "add", "--quiet", "--detach", str(tree), "HEAD"], root)
        try:
            yield tree
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], root)


def _changes(tree: Path) -> tuple[dict[str, str | bytes | None], dict[str, str]]:
    """The changed files with their content, and the modes of those that can be run."""
    _run(["git", "add", "--all"], tree)
    names = _run(["git", "diff", "--cached", "--name-only", "--no-renames", "-z"], tree).split("\0")
    files: dict[str, str | bytes | None] = {}
    modes = {}
    for name in filter(None, names):
        path = tree / name
        if not path.exists():
            files[name] = None
            continue
        content = path.read_bytes()
        try:
            files[name] = content.decode()
        except UnicodeDecodeError:
            files[name] = content
        if os.access(path, os.X_OK):
            modes[name] = "100755"
    return files, modes


def _body(result: Update) -> str:
    lines = [f"The template's changes from {result.before} to {result.after}, merged with yours."]
    if result.conflicts:
        lines += [
            "",
            "**Both changed the same lines** of these files. Resolve the markers on the branch "
            "before you merge; the check `required` fails until then.",
            "",
            *(f"- `{name}`" for name in result.conflicts),
        ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was merged; 1 where lines are left to merge by hand."""
    parser = argparse.ArgumentParser(prog="update", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", default="", help="A version of the template; else the newest.")
    parser.add_argument("--wheel", default="", help="The address or the file of its wheel.")
    parser.add_argument("--pull-request", action="store_true", help="Keep one on GitHub.")
    options = parser.parse_args(argv)
    root = repository.root()
    try:
        if options.pull_request:
            print(request(root, GitHub.of_workflow(), options.to, options.wheel))
            return 0
        result = update(root, options.to, options.wheel)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return int(refused.exit_code)
    print(f"{result.before} → {result.after}")
    for name in result.conflicts:
        print(f"{name}: both changed the same lines; look for <<<<<<<")
    if (root / repository.FRAMEWORK_LOCK).exists() and (root / repository.LOCK).exists():
        print(f"{repository.LOCK} is of the former version: make lock")
    print("next: git diff; make test; git commit")
    return int(Exit.RUN_FAILED) if result.conflicts else 0


if __name__ == "__main__":
    sys.exit(main())
