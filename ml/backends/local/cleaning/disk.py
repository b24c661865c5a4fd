"""How much of the disk files take, and how much is free once some of them are gone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

# What st_blocks counts in, on every file system (POSIX leaves it to the system; all take 512).
BLOCK_BYTES = 512


def taken(*paths: Path) -> int:
    """Bytes of the disk that the files and folders take; links are not followed."""
    return sum(size for _, _, size in _inodes(paths))


def freed(paths: Iterable[Path]) -> int:
    """Bytes that removing all of the paths gives back.

    Less than what they take where a file has a second name elsewhere, as the outputs of a reused
    step do.
    """
    seen: dict[tuple[int, int], int] = {}
    return sum(
        size
        for inode, links, size in _inodes(paths, every_name=True)
        if _count(seen, inode) == links
    )


def _count(seen: dict[tuple[int, int], int], inode: tuple[int, int]) -> int:
    seen[inode] = seen.get(inode, 0) + 1
    return seen[inode]


def _inodes(
    paths: Iterable[Path], every_name: bool = False
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """(inode, names that it has, bytes) of every file, once or once for each name met."""
    counted = set()
    for path in _walk(paths):
        with suppress(OSError):  # it may be removed meanwhile
            state = path.stat(follow_symlinks=False)
            inode = state.st_dev, state.st_ino
            if inode in counted and not every_name:
                continue
            counted.add(inode)
            is_folder = (state.st_mode & 0o170000) == 0o040000
            yield inode, 1 if is_folder else state.st_nlink, state.st_blocks * BLOCK_BYTES


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
