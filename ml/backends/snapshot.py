"""Content-addressed snapshots of `code:`, so that edits during a run do not change it.

The files are those that azure-ai-ml would upload (`IgnoreFile`).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ml.core import faults, home, trees
from ml.core.errors import Exit, Problem, UserError
from ml.core.repository import boundary, shown
from ml.specs.assets.ignore_file import IgnoreFile
from ml.specs.plan.plans import AutoMLPlan, PipelinePlan, Plan, SweepPlan, commands

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Snapshot:
    """A copy of the files of `code:` from the start of a run."""

    folder: Path
    digest: str  # `sha256:<hex>`


def take(code: Path | None, skipped_folders: Collection[Path] = ()) -> Snapshot | None:
    """Return the snapshot of `code` (a folder or a file) without `skipped_folders`.

    The files are copied, unless a snapshot with this content exists. If two runs copy concurrently,
    the first to finish renames its copy into place and the other one discards its own. Raise
    OSError if the disk is full, and UserError (snapshot-changed) if the copy does not match its
    digest.
    """
    if code is None:
        return None
    if code.is_file():
        files = [(code.name, code)]
    else:
        files = list(IgnoreFile(code).files({home.home(), *skipped_folders}))
    digest = trees.digest(files)
    try:
        # Set the time of the last use: cleaning keeps recent snapshots.
        os.utime(_place(digest))
    except FileNotFoundError:
        digest = _copy(files, boundary(code))
    snapshot = Snapshot(_place(digest), digest)
    if not is_whole(snapshot):
        raise UserError(
            Problem(
                "snapshot-changed",
                f"the copy of {shown(code)} was changed: {shown(snapshot.folder)}",
                f"files with the digest {digest[:19]}…, as in its name",
                f"check who changed it, then `rm -r {shown(snapshot.folder)}`: "
                "the next run copies the code again",
            ),
            exit_code=Exit.GATE_SAID_NO,
        )
    return snapshot


def copy(code: Path, skipped_folders: Collection[Path] = ()) -> Path:
    """Take a snapshot of `code` as `take`, and return its folder.

    Raise UserError if the disk is full.
    """
    with faults.as_user_errors():
        snapshot = take(code, skipped_folders)
    assert snapshot is not None  # None only without code
    return snapshot.folder


def of_plan(plan: Plan) -> dict[Path | None, Snapshot | None]:
    """Return the snapshot of each code folder in a plan.

    Projects that no command with that code names are left out, so that their changes do not change
    the digest.
    """
    texts = [*_texts(plan)]
    by_code: dict[Path | None, list[str]] = {}
    for command in commands(plan):
        entry = command.parallel.entry_script if command.parallel else ""
        by_code.setdefault(command.code, []).append(f"{command.command} {entry}")
    return {
        code: take(code, unnamed_projects(code, texts, started) if code else ())
        for code, started in by_code.items()
    }


def _texts(plan: Plan) -> Iterator[str]:
    """Yield all texts of a plan that may name a project: commands, inputs, variables, choices."""
    if isinstance(plan, AutoMLPlan):
        return
    if isinstance(plan, SweepPlan):
        yield str(plan.search_space)
        yield from _texts(plan.trial)
        return
    yield from (str(data.value) for data in plan.inputs.values())
    if isinstance(plan, PipelinePlan):
        for step in plan.steps.values():
            yield from _texts(step.plan)
    else:
        yield plan.command
        yield from plan.environment_variables.values()
        yield plan.parallel.entry_script if plan.parallel else ""


def unnamed_projects(
    code: Path, texts: Collection[str], started: Collection[str] = ()
) -> frozenset[Path]:
    """Return the project folders in `code` that neither the texts nor the named projects use.

    Return an empty set if one of `started` names no project, or if a text or used code refers to
    `ml/projects` without naming a project: its imports are then unknown.
    """
    folder = code / "ml" / "projects"
    others = {path.name: path for path in _folders(folder)}
    if not others or not all(others.keys() & _WORD.findall(text) for text in started):
        return frozenset()
    named = rf"(?:\.|/|\s+import\s+\(?\s*)(?:{'|'.join(map(re.escape, others))})\b"
    unknown = re.compile(rf"""(?:\bml[./]|["'])projects\b(?!{named})|\bml import .*\bprojects\b""")
    waiting = [*texts]
    while waiting:
        text = waiting.pop()
        if unknown.search(text):
            return frozenset()
        for name in others.keys() & _WORD.findall(text):
            files = others.pop(name).rglob("*.py")
            waiting += [path.read_text(errors="replace") for path in files]
    return frozenset(others.values())


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if path.is_dir())


def is_whole(snapshot: Snapshot) -> bool:
    """Return whether the snapshot's files still match its digest."""
    return trees.is_content(snapshot.folder, snapshot.digest)


def working_copy(snapshot: Snapshot | None, into: Path) -> Path:
    """Copy the snapshot to the folder `into`, a run's working directory; return the folder.

    Without a snapshot it is empty. Files are not hard links, through which a script could change
    the snapshot and all later runs with the same code.
    """
    if snapshot is None:
        into.mkdir(parents=True)
    else:
        shutil.copytree(snapshot.folder, into)
    return into


def _place(digest: str) -> Path:
    return home.snapshots() / digest.removeprefix("sha256:")


def _copy(files: list[tuple[str, Path]], within: Path | None) -> str:
    """Copy the files into a snapshot; return the digest of the copy.

    A file may change between hashing and copying, so the copy is hashed again. Raise UserError
    (link-escape) if a link leads out of `within`.
    """
    home.snapshots().mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=home.snapshots()))
    try:
        for relative, path in files:
            copy = unfinished / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            with _open(path, within) as source, copy.open("wb") as target:
                shutil.copyfileobj(source, target)
                copy.chmod(stat.S_IMODE(os.fstat(source.fileno()).st_mode))
        unfinished.chmod(0o755)
        digest = trees.digest([(relative, unfinished / relative) for relative, _ in files])
        try:
            unfinished.rename(_place(digest))
        except OSError:
            # Another run copied the same content first.
            if not _place(digest).is_dir():
                raise
        return digest
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _open(path: Path, within: Path | None) -> BinaryIO:
    """Open the file that `path` resolves to, without following links in the resolved path.

    This prevents a race in which a folder is replaced by a link after the check. Raise UserError
    (link-escape) for such a link, or if the file is outside of `within`.
    """
    real = Path(os.path.realpath(path))
    root = Path(os.path.realpath(within)) if within else Path(real.anchor)
    folder = -1
    try:
        parts = real.relative_to(root).parts
        folder = os.open(root, os.O_RDONLY)
        for part in parts[:-1]:
            outer, folder = folder, os.open(part, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(outer)
        return os.fdopen(os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb")
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        actual = f"{shown(path)} now has the target {real}, outside of the repository"
        hint = "run it again, without changing links meanwhile"
        raise UserError(Problem("link-escape", actual, "links that stay in it", hint)) from error
    finally:
        if folder >= 0:
            os.close(folder)
