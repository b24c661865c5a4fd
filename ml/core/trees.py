"""The content of a code folder: its digest, and whether it equals a git commit.

Both are computed from the files themselves, because git's own report on a work tree can be made to
omit a change (skip-worktree, assume-unchanged, .git/info/exclude, a file system monitor).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ml.core import git
from ml.core.errors import Problem, UserError
from ml.core.files import content as file_content

DIGEST_PREFIX = "sha256:"
_LINK, _FOLDER, _REPOSITORY = "120000", "40000", "160000"


def digest(files: Iterable[tuple[str, Path]]) -> str:
    """Return `sha256:<hex>` of the names, contents and executable bits of files, in their order.

    `files` are (relative name, path). Times and owners are ignored.
    """
    content_hash = hashlib.sha256()
    for relative, path in files:
        content = file_content(path)
        runs = "x" if os.access(path, os.X_OK) else "-"
        content_hash.update(f"{relative}\0{runs}\0{len(content)}\0".encode())
        content_hash.update(content)
    return f"{DIGEST_PREFIX}{content_hash.hexdigest()}"


def files(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield every file below the folder as (relative name, path), in the order of `digest`."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            yield from files(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}", path


def is_content(folder: Path, expected: str) -> bool:
    """Return whether the folder has the content with that digest; False if it cannot be read."""
    try:
        return digest(files(folder)) == expected
    except OSError:
        return False


@dataclass(frozen=True)
class Commit:
    """A commit of a work tree."""

    root: Path
    id: str
    branch: str  # the current branch
    entries: Mapping[str, tuple[str, str]]  # path of a file → (mode, blob id)

    def has(self, path: Path, copy: Path | None = None) -> bool:
        """Return whether the commit has the file with the content of `copy` (default: its own).

        Symbolic links in the path must be in the commit too.
        """
        real = Path(os.path.realpath(path))
        entry = self._entry(real)
        if entry is None or entry[1] != self._blob(file_content(copy or real)):
            return False
        return real == Path(os.path.abspath(path)) or all(map(self._has_link, _links(path)))  # noqa: PTH100

    def has_folder(self, folder: Path) -> bool:
        """Return whether some folder of the commit has all files of `folder`, a copy."""
        copies = {name: self._blob(file_content(path)) for name, path in files(folder)}
        first = next(iter(copies), "")
        starts = (name[: -len(first)] for name in self.entries if f"/{name}".endswith(f"/{first}"))
        blobs = {name: blob for name, (_, blob) in self.entries.items()}
        return any(
            all(blobs.get(start + name) == blob for name, blob in copies.items())
            for start in starts
        )

    def below(self, folder: Path) -> Iterator[str]:
        """Return the names, relative to the folder, of the files that the commit has in it."""
        inside = Path(os.path.realpath(folder)).relative_to(self.root).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        return (name[len(prefix) :] for name in self.entries if name.startswith(prefix))

    def _has_link(self, link: Path) -> bool:
        entry = self._entry(link)
        if entry is None:  # valid only for a link above the work tree
            return not link.is_relative_to(self.root)
        return entry == (_LINK, self._blob(str(link.readlink()).encode()))

    def _entry(self, path: Path) -> tuple[str, str] | None:
        try:
            return self.entries.get(path.relative_to(self.root).as_posix())
        except ValueError:
            return None

    def _blob(self, content: bytes) -> str:
        """Return git's blob id of the content: SHA-1, or SHA-256 if the repository uses that."""
        algorithm = hashlib.sha1 if len(self.id) == 40 else hashlib.sha256
        return algorithm(b"blob %d\0" % len(content) + content).hexdigest()


def commit(folder: Path, name: str = "HEAD") -> Commit | None:
    """Return a commit of the repository above the folder, by default the checked-out one.

    None without git, outside a work tree, and if there is no such commit.
    """
    revision = f"{name}^{{commit}}"
    parsed = git.ask(folder, "rev-parse", "--show-toplevel", revision, "--abbrev-ref", "HEAD")
    if parsed is None:
        return None
    root, commit_id, branch = parsed.split("\n")
    return Commit(Path(os.path.realpath(root)), commit_id, branch, _entries(root, commit_id))


@cache
def _entries(root: str, commit_id: str) -> Mapping[str, tuple[str, str]]:
    """Return the files of a commit: path → (mode, blob id). Cached, since commits never change."""
    entries = {}
    listed = git.ask(Path(root), "ls-tree", "-r", "-z", "--full-tree", commit_id) or ""
    for line in filter(None, listed.split("\0")):
        about, _, name = line.partition("\t")
        mode, _, blob = about.split(" ")
        entries[name] = (mode, blob)
    return entries


@dataclass(frozen=True)
class Extent:
    """The size of a commit's files."""

    files: int
    size: int  # in bytes
    depth: int  # of the folders; 1: no folder


def measure(root: Path, commit: str, deepest: int = 100) -> Extent:
    """Return the extent of a commit; repeated folders and files count each time they occur.

    Each object is read only once, since a pack of a few kilobytes may expand to more than a disk
    holds. Folders deeper than `deepest` levels are not counted.
    """
    level = Counter({git.run(root, "rev-parse", f"{commit}^{{tree}}").strip(): 1})
    blobs: Counter[str] = Counter()
    depth = 0
    while level and depth <= deepest:
        depth += 1
        inner: Counter[str] = Counter()
        for tree, mode, id in _named(root, level):
            if mode != _REPOSITORY:
                (inner if mode == _FOLDER else blobs)[id] += level[tree]
        level = inner
    return Extent(blobs.total(), _size(root, blobs), depth)


def _named(root: Path, trees: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each entry of the trees: the tree, the entry's mode, and its id."""
    ids = "".join(f"{tree}\n" for tree in trees).encode()
    answer = git.run(root, "cat-file", "--batch", content=ids)
    content = answer.encode(errors="surrogateescape")
    start = 0
    while start < len(content):
        # ID `tree` SIZE, then for each entry MODE NAME NUL and the bytes of its id.
        line = content.index(b"\n", start)
        tree, _, size = content[start:line].decode().split(" ")
        start = line + 1
        end = start + int(size)
        while start < end:
            name = content.index(b"\0", start) + 1
            mode = content[start:name].partition(b" ")[0].decode()
            start = name + len(tree) // 2
            yield tree, mode, content[name:start].hex()
        start = end + 1


def _size(root: Path, blobs: Mapping[str, int]) -> int:
    """Return the total size of blobs times their counts; raise UserError if one is missing."""
    words = ("cat-file", "--batch-check=%(objectname) %(objectsize)")
    answer = git.run(root, *words, content="".join(f"{blob}\n" for blob in blobs).encode())
    sizes = dict(line.split(" ") for line in answer.splitlines())
    if missing := [blob for blob, size in sizes.items() if not size.isdecimal()]:
        actual = f"the commit names {missing[0]}, which is not in the object database"
        expected = "a commit whose objects all exist"
        hint = "git fsck lists missing objects; git fetch --refetch downloads them"
        raise UserError(Problem("broken-commit", actual, expected, hint))
    return sum(blobs[blob] * int(size) for blob, size in sizes.items())


def _links(path: Path) -> Iterator[Path]:
    """Yield the symbolic links in the path of the file; their own parents are resolved."""
    way = Path(path.anchor) if path.is_absolute() else Path.cwd()
    parts = list(path.parts[1:] if path.is_absolute() else path.parts)
    while parts:
        way = Path(os.path.normpath(way / parts.pop(0)))
        if way.is_symlink():
            yield way
            target = way.readlink()
            parts = [*target.parts, *parts]
            way = way.parent
