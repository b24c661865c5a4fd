"""The program as it was: the tree of a git revision, in a folder of its own."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml.specs.problems import Problem, Refused

# What the program imports, and its settings.
ROOMS = ("infra", "ml")


@contextlib.contextmanager
def tree(root: Path, revision: str) -> Iterator[Path | None]:
    """A folder with the program of a revision, None where it had none; Refused when unknown."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if commit is None:
        raise Refused(
            Problem(
                "unknown-revision",
                f"git knows no revision `{revision}`",
                "a branch, tag or commit",
                f"git fetch origin {revision}, then --against origin/{revision}",
            )
        )
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


def _git(root: Path, *words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
