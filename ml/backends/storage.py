"""Disk usage of runs, and the port of the cleaner that removes them."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

# The unit of st_blocks: POSIX does not define it, all systems use 512.
BLOCK_BYTES = 512
ItemKind = Literal["run", "snapshot", "environment", "model", "reuse", "leftover"]


@dataclass(frozen=True)
class Needed:
    """The paths and runs that must not be removed, each with the reason."""

    paths: Mapping[Path, str]  # path, with everything below it → reason
    runs: Mapping[str, str]  # MLflow run id → reason
    models: Path  # folder of stored models, each named by its digest


@dataclass(frozen=True)
class Item:
    """A run, copied file or leftover to remove."""

    kind: ItemKind
    name: str
    paths: tuple[Path, ...]
    size: int  # in bytes
    why: str


@dataclass(frozen=True)
class Cleaning:
    """The result of planning a cleaning; nothing is removed yet."""

    items: tuple[Item, ...]
    frees: int  # in bytes
    stay: Mapping[str, str]  # requested run that is kept → reason
    grace_s: float  # minimum age of unreferenced copies to remove, in seconds


class Cleaner(Protocol):
    """Removes runs, and copies that nothing references."""

    def cleaning(
        self,
        needed: Needed,
        *,
        keep: int | None = None,
        older_than: float | None = None,
        experiment: str | None = None,
    ) -> Cleaning:
        """Return what would be removed now: the selected runs, and copies that nothing references.

        Select runs (of the experiment) beyond the `keep` latest that ended before `older_than`
        (epoch seconds); none if both are None. Nothing is changed.
        """

    def remove(self, planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        """Remove the items of `planned` still in `current`; return freed bytes and errors."""


def size_of(*paths: Path) -> int:
    """Return the disk usage of files and folders in bytes; links are not followed."""
    return sum(size for _, _, size in _inodes(paths))


def freed_by(paths: Iterable[Path]) -> int:
    """Return the bytes that are freed if all paths are removed.

    They are less than the paths' size if a file has other hard links, as reused outputs do.
    """
    seen: Counter[tuple[int, int]] = Counter()
    freed = 0
    for inode, links, size in _inodes(paths, every_name=True):
        seen[inode] += 1
        freed += size if seen[inode] == links else 0
    return freed


def _inodes(
    paths: Iterable[Path], every_name: bool = False
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Yield (inode, link count, bytes) of each file, once or (`every_name`) for each hard link."""
    counted = set()
    for path in _walk(paths):
        with suppress(OSError):  # it may be removed meanwhile
            state = path.stat(follow_symlinks=False)
            inode = state.st_dev, state.st_ino
            if inode in counted and not every_name:
                continue
            counted.add(inode)
            links = 1 if stat.S_ISDIR(state.st_mode) else state.st_nlink
            yield inode, links, state.st_blocks * BLOCK_BYTES


def _walk(paths: Iterable[Path]) -> Iterator[os.DirEntry[str] | Path]:
    for path in paths:
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _below(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)
