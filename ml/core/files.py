"""Files that several processes use: replaced atomically, appended to, locked, cached."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

# Larger files are not cached.
_KEPT_BYTES = 50_000
# A file that changed so recently may change again within one tick of the kernel's clock, which is
# 1 to 10 ms, and keep its times. Git calls such an entry of its index racy.
_RACY_NS = 100_000_000


def content(path: Path) -> bytes:
    """Return the content of a file, cached until it changes; raise OSError as `open` does."""
    file = path.stat()
    # Programs can set the time of modification, not that of the inode's change.
    is_settled = max(file.st_mtime_ns, file.st_ctime_ns) < time.time_ns() - _RACY_NS
    if not (is_settled and stat.S_ISREG(file.st_mode) and file.st_size <= _KEPT_BYTES):
        return path.read_bytes()
    times = file.st_mtime_ns, file.st_ctime_ns
    return _content(path, (file.st_dev, file.st_ino, file.st_size, *times))


@lru_cache(maxsize=2_000)
def _content(path: Path, _: tuple[int, ...]) -> bytes:
    return path.read_bytes()


def replace(path: Path, text: str, durable: bool = True) -> None:
    """Replace the file atomically; with `durable` the text is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8") as stream:
            stream.write(text)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def sweep(path: Path) -> None:
    """Remove temporary files that killed writers left; the caller must be the only writer."""
    for unfinished in path.parent.glob(f".{path.name}.*.tmp"):
        unfinished.unlink(missing_ok=True)


def append(path: Path, content: bytes, durable: bool = False) -> None:
    """Append complete lines to a file of mode 0600; on OSError the file is unchanged.

    If a killed writer left an unfinished line, a newline is added first. With `durable` the lines
    are on the disk when this returns. Only one process may write at a time.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            content = b"\n" + content
        try:
            while content:
                content = content[os.write(descriptor, content) :]
            if durable:
                os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON object of each line; {} for a line without one, such as a truncated line.

    Empty lines are skipped.
    """
    with path.open("rb") as stream:
        for text in filter(bytes.strip, stream):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            yield line if isinstance(line, dict) else {}


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path` in the block; it ends with its process.

    If the lock is held already, call `waiting` once and wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def is_locked(path: Path, or_shared: bool = False) -> bool:
    """Return whether the lock at `path` is held exclusively or, with `or_shared`, in any mode.

    False if the file does not exist. The test itself holds the lock for some microseconds: in
    shared mode, or in exclusive mode with `or_shared`.
    """
    try:
        with path.open() as stream:
            fcntl.flock(stream, (fcntl.LOCK_EX if or_shared else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
