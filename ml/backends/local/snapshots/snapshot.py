"""A copy of `code:` for every content: a run never works in the folder that a person edits."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ml.backends.local.snapshots.ignore import IgnoreFile
from ml.core import home


@dataclass(frozen=True)
class Snapshot:
    """The files of `code:` as they were when the run was planned; `digest` is `sha256:<hex>`."""

    folder: Path
    digest: str


def take(code: Path | None) -> Snapshot | None:
    """The snapshot of `code` (a folder or one file), copied unless its content is there already.

    Two runs that take the same snapshot at the same moment both copy; the first to finish renames
    its copy into place and the other throws its own away. Raises OSError when the disk is full.
    """
    if code is None:
        return None
    if code.is_file():
        files = [(code.name, code)]
    else:
        files = list(IgnoreFile(code).files(besides=home.home()))
    digest = _digest(files)
    try:
        # When it was last taken: cleaning leaves what a run may be about to work with.
        os.utime(_place(digest))
    except FileNotFoundError:
        digest = _copy(files)
    return Snapshot(_place(digest), digest)


def is_whole(snapshot: Snapshot) -> bool:
    """Whether the copy still has the content that its digest says."""
    return _digest(list(_files(snapshot.folder, ""))) == snapshot.digest


def working_copy(snapshot: Snapshot | None, into: Path) -> Path:
    """A folder for one run to work in, as a node has one.

    Files are copied, not linked: a script that appends to a file of its own code would change
    the snapshot, and with it every later run of the same content, through a hard link.
    """
    if snapshot is None:
        into.mkdir(parents=True)
    else:
        shutil.copytree(snapshot.folder, into)
    return into


def _digest(files: list[tuple[str, Path]]) -> str:
    """Of names, contents and whether a file may be executed; times and owners do not count."""
    whole = hashlib.sha256()
    for relative, path in files:
        content = path.read_bytes()
        runs = "x" if os.access(path, os.X_OK) else "-"
        whole.update(f"{relative}\0{runs}\0{len(content)}\0".encode())
        whole.update(content)
    return f"sha256:{whole.hexdigest()}"


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """Every file of a copy, in the order in which `IgnoreFile` yields them."""
    for path in sorted(folder.iterdir(), key=lambda one: one.name):
        if path.is_dir():
            yield from _files(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}", path


def _place(digest: str) -> Path:
    return home.snapshots() / digest.removeprefix("sha256:")


def _copy(files: list[tuple[str, Path]]) -> str:
    """The digest of what was copied: a file may be saved between reading and copying it."""
    home.snapshots().mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=home.snapshots()))
    try:
        for relative, path in files:
            copy = unfinished / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        unfinished.chmod(0o755)
        digest = _digest([(relative, unfinished / relative) for relative, _ in files])
        try:
            unfinished.rename(_place(digest))
        except OSError:
            # Another run of the same content was faster.
            if not _place(digest).is_dir():
                raise
        return digest
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
