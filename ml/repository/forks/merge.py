"""A merge of three trees by path, in git's object store: no work tree is read or written.

What the team changed is kept. Nothing is guessed about files that moved: the path decides.
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

# A file of a tree: its mode and blob. Files by path with mode and content, None for no file.
Entry = tuple[str, str]
Files = dict[str, tuple[str, bytes] | None]


@dataclass
class Merge:
    """Three trees by path, of what is shared; `files` are those that change, None for none."""

    root: Path
    template: Path
    base: Mapping[str, Entry]
    ours: Mapping[str, Entry]
    theirs: Mapping[str, Entry]
    files: Files = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Decide every path that the template changed; whatever the team changed is kept."""
        for name in sorted({*self.base} | {*self.theirs}):
            old, our, new = (tree.get(name) for tree in (self.base, self.ours, self.theirs))
            if new in (old, our):
                continue
            if our == old:
                self.files[name] = new and (new[0], content_of(self.template, new[1]))
            elif our is None:
                self.left.append(name)
            elif new is None:
                self.conflicts[name] = REMOVED
            else:
                self._both(name, old, our, new)
        self._free()

    def _both(self, name: str, old: Entry | None, our: Entry, new: Entry) -> None:
        """Both changed a file, or both added it: line by line; a link or bytes stay the team's."""
        if not {our[0], new[0]} <= _FILES:
            self.conflicts[name] = "both changed it, and it is no file; yours is left"
            return
        ours, theirs = content_of(self.root, our[1]), content_of(self.template, new[1])
        former = content_of(self.template, old[1]) if old and old[0] in _FILES else b""
        mode = new[0] if old and our[0] == old[0] else our[0]
        lines, conflicts = _lines(ours, former, theirs)
        if lines is None:
            self.conflicts[name] = "both changed it, and it is no text; yours is left"
            return
        self.files[name] = (mode, lines)
        if conflicts:
            self.conflicts[name] = MARKED

    def _free(self) -> None:
        """A file cannot be where the team has a folder, nor below where it has a file, nor where on
        some disks one of the team's is, whose name differs in case alone.
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
                self.conflicts[name] = f"new in the template; yours is {ours}"


def _lines(ours: bytes, former: bytes, new: bytes) -> tuple[bytes | None, bool]:
    """The texts merged, with markers for conflicts; None for no text."""
    if new in (former, ours) or ours == former:
        return (new if ours == former else ours), False
    return git.merge_lines((ours, former, new), _LABELS)


# git's object store.


def write(root: Path, head: str, files: Files, text: str) -> str:
    """A commit on `head` with these files, which no branch has."""
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
    """Each file of a commit → its mode and blob."""
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
    """A file of a commit; "" where it has none."""
    entry = tree_of(repo, commit).get(name)
    return content_of(repo, entry[1]).decode(errors="replace") if entry else ""


def content_of(repo: Path, blob: str) -> bytes:
    """The bytes of a blob."""
    return as_bytes(git.run(repo, "cat-file", "blob", blob))


def as_bytes(text: str) -> bytes:
    """Convert git's output or input to bytes without loss."""
    return text.encode(errors="surrogateescape")


def differences(root: Path, before: str, after: str) -> list[str]:
    """The files in which two commits differ."""
    words = ("-r", "--no-renames", "--name-only", "-z", before, after)
    return [name for name in git.run(root, "diff-tree", *words).split("\0") if name]


def as_in(root: Path, commit: str, names: Iterable[str]) -> set[str]:
    """Return the files whose state in the work tree (content or absence) is that of the commit.

    Uses a temporary index, so that flags in the user's index (`assume-unchanged`) hide no change.
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
    """Yield a temporary index with the files of a commit, separate from the user's index."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        git.run(root, "read-tree", commit, index=index)
        yield index
