"""The program as it was: the tree of a git revision, in a folder of its own."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml.core.errors import Problem, Refused

# What the program imports, and its settings.
ROOMS = ("infra", "ml")


@contextlib.contextmanager
def tree(root: Path, revision: str) -> Iterator[Path | None]:
    """A folder with the program of a revision, None where it had none; Refused when unknown."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:
        raise Refused(_unknown(root, revision))
    there = (_git(root, "ls-tree", "--name-only", commit, "--", *ROOMS) or "").split()
    if "infra" not in there:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="infra-base-") as folder:
        archive = Path(folder) / "tree.tar"
        _git(root, "archive", "--output", str(archive), commit, "--", *there)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        found = Path(folder)
        yield found if (found / "infra" / "__main__.py").is_file() else None


def _unknown(root: Path, revision: str) -> Problem:
    found, expected = f"git knows no revision `{revision}`", "a branch, tag or commit"
    shallow = _git(root, "rev-parse", "--is-shallow-repository")
    branch = revision.removeprefix("origin/")
    hint = f"git fetch origin {branch}, then --against origin/{branch}"
    if shallow is None:
        found, expected = f"{root} is no repository of git", "a clone, to compare with a revision"
        hint = "git clone it, or leave out --against"
    elif shallow == "true":
        hint = "git fetch --unshallow: this clone has its last commits alone"
    return Problem("unknown-revision", found, expected, hint)


def _git(root: Path, *words: str) -> str | None:
    """What git answers, None where it refuses; Refused where there is no git."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        hint = "install git, or leave out --against"
        raise Refused(Problem("no-git", "no program `git`", "git on the PATH", hint)) from None
    return done.stdout.strip() if done.returncode == 0 else None
