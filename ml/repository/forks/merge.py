"""Merge three git trees path by path, without reading or writing a work tree.

The team's changes are kept. Renames are not detected: a moved file is a removed and a new one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ml.core import git

ANSWERS = ".copier-answers.yml"
REMOVED = "you edited it; the template removed it"
MARKED = "both changed the same lines; look for <<<<<<<"
_LABELS = ("before updating", "last update", "after updating")
_AUTHOR = {"user.name": "update@localhost", "user.email": "update@localhost"}
_FILES = frozenset({"100644", "100755"})

# Entry: mode and blob of a file in a tree. Files: mode and content by path; None means removed.
Entry = tuple[str, str]
Files = dict[str, tuple[str, bytes] | None]


@dataclass
class Merge:
    """A three-way merge of the files that the template shares with a fork."""

    root: Path
    template: Path
    base: Mapping[str, Entry]
    ours: Mapping[str, Entry]
    theirs: Mapping[str, Entry]
    files: Files = field(default_factory=dict)  # result: the files to change in `ours`
    conflicts: dict[str, str] = field(default_factory=dict)  # path → why it needs a decision
    # Paths that the template changed and the team removed: they stay removed.
    stay_removed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Merge every path that the template changed; the team's changes are kept."""
        for name in sorted({*self.base} | {*self.theirs}):
            old, our, new = (tree.get(name) for tree in (self.base, self.ours, self.theirs))
            if new in (old, our):
                continue
            if our == old:
                self.files[name] = new and (new[0], content_of(self.template, new[1]))
            elif our is None:
                self.stay_removed.append(name)
            elif new is None:
                self.conflicts[name] = REMOVED
            else:
                self._both(name, old, our, new)
        self._drop_colliding()

    def _both(self, name: str, old: Entry | None, our: Entry, new: Entry) -> None:
        """Merge a path that both sides changed or added, line by line.

        If it is not a text file on both sides, keep the team's version and record a conflict.
        """
        if not {our[0], new[0]} <= _FILES:
            self.conflicts[name] = (
                "both sides changed it, and it is not a regular file; your version is kept"
            )
            return
        ours, theirs = content_of(self.root, our[1]), content_of(self.template, new[1])
        former = content_of(self.template, old[1]) if old and old[0] in _FILES else b""
        mode = new[0] if old and our[0] == old[0] else our[0]
        lines, conflicts = _lines(ours, former, theirs)
        if lines is None:
            self.conflicts[name] = "both sides changed it, and it is not text; your version is kept"
            return
        self.files[name] = (mode, lines)
        if conflicts:
            self.conflicts[name] = MARKED

    def _drop_colliding(self) -> None:
        """Drop files of the template whose path collides with the team's files or folders.

        A path collides if it is one of the team's folders, is below one of the team's files, or
        differs from one of their paths only in case, which some file systems ignore.
        """
        present = {
            name for name in {*self.ours} | {*self.files} if self.files.get(name, ()) is not None
        }
        cases = {name.casefold(): name for name in present & {*self.ours}}
        folders = {str(parent) for name in present for parent in PurePosixPath(name).parents}
        for name in [name for name, file in self.files.items() if file]:
            above = {str(parent) for parent in PurePosixPath(name).parents}
            if name in folders or above & present:
                del self.files[name]
                self.conflicts[name] = "new in the template, but your file or folder exists"
            elif (ours := cases.get(name.casefold(), name)) != name:
                del self.files[name]
                self.conflicts[name] = (
                    f"new in the template, but differs only in case from your {ours}"
                )


def _lines(ours: bytes, former: bytes, new: bytes) -> tuple[bytes | None, bool]:
    """Return the merged content, and whether it has conflict markers; (None, …) if not text."""
    if new in (former, ours) or ours == former:
        return (new if ours == former else ours), False
    return git.merge_lines((ours, former, new), _LABELS)


# git's object store.


def write(root: Path, head: str, files: Files, text: str) -> str:
    """Write a commit that changes these files of `head`; return its id. No branch is changed.

    `text` is the commit message.
    """
    lines = []
    for name, file in files.items():
        if file is None:
            lines.append(f"0 {'0' * 40}\t{name}\0")
            continue
        blob = git.run(root, "hash-object", "-w", "--stdin", content=file[1]).strip()
        lines.append(f"{file[0]} {blob}\t{name}\0")
    with own_index(root, head) as index:
        words = ("update-index", "-z", "--index-info")
        git.run(root, *words, content=as_bytes("".join(lines)), index=index)
        tree = git.run(root, "write-tree", index=index).strip()
    commit = ("commit-tree", "--no-gpg-sign", tree, "-p", head, "-F", "-")
    return git.run(root, *commit, content=as_bytes(text), settings=_AUTHOR).strip()


def tree_of(
    repo: Path, commit: str, wanted: Callable[[str], bool] = lambda name: True
) -> dict[str, Entry]:
    """Return each wanted path of a commit → its mode and blob id."""
    entries = {}
    for line in filter(
        None, git.run(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    ):
        details, _, name = line.partition("\t")
        mode, _, blob = details.split()
        if wanted(name):
            entries[name] = (mode, blob)
    return entries


def text_of(repo: Path, commit: str, name: str) -> str:
    """Return the text of a file in a commit; "" if it does not exist."""
    entry = tree_of(repo, commit).get(name)
    return content_of(repo, entry[1]).decode(errors="replace") if entry else ""


def content_of(repo: Path, blob: str) -> bytes:
    """Return the bytes of a blob."""
    return as_bytes(git.run(repo, "cat-file", "blob", blob))


def as_bytes(text: str) -> bytes:
    """Encode a text that git printed, without loss for paths that are not UTF-8."""
    return text.encode(errors="surrogateescape")


def differences(root: Path, before: str, after: str) -> list[str]:
    """Return the files in which two commits differ."""
    words = ("-r", "--no-renames", "--name-only", "-z", before, after)
    return [name for name in git.run(root, "diff-tree", *words).split("\0") if name]


def unchanged_since(root: Path, commit: str, names: Iterable[str]) -> set[str]:
    """Return the `names` of files that are in the same state in the work tree as in the commit.

    A file that is missing in both counts. Uses a temporary index, since flags in the user's index
    (`assume-unchanged`) could hide changes.
    """
    with own_index(root, commit) as index:
        present = {*git.run(root, "ls-files", "--cached", "-z", index=index).split("\0")}
        words = ("--no-ext-diff", "--no-renames", "--name-only", "-z")
        differs = {*git.run(root, "diff", *words, index=index).split("\0")}
    return {
        name
        for name in names
        if (name not in differs if name in present else not os.path.lexists(root / name))
    }


@contextmanager
def own_index(root: Path, commit: str) -> Iterator[Path]:
    """Yield the path of a temporary git index with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        git.run(root, "read-tree", commit, index=index)
        yield index
