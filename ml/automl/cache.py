"""Cache results that an AutoML job's trials, which are separate processes, have in common."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")
# Name of the cache's folder in a search's folder; it is deleted once the job is Completed.
FOLDER = "cache"
# Maximum bytes per search; the least recently read values are evicted first.
MOST = 256 * 2**20


@dataclass(frozen=True)
class Cache:
    """A cache of pickled values in a folder.

    The search reads only pickles that it wrote itself; they are never part of a model. The keys
    include the source code, so that a resumed search does not read values of older code.
    """

    folder: Path | None = None  # None: nothing is cached

    def get_or_compute(self, compute: Callable[[], Value], *keys: str | bytes) -> Value:
        """Return the value for these keys; compute it if it is not cached."""
        if self.folder is None:
            return compute()
        parts = (key.encode() if isinstance(key, str) else key for key in keys)
        digests = b"".join(hashlib.sha256(part).digest() for part in (_code(), *parts))
        file = self.folder / hashlib.sha256(digests).hexdigest()
        # pickle may raise almost any exception for a damaged file.
        with suppress(Exception), file.open("rb") as stream:
            value: Value = pickle.load(stream)
            file.touch()
            return value
        value = compute()
        # Go on without the cache if the disk is full.
        with suppress(OSError):
            # An empty file marks a value that is too large for the cache.
            if not file.exists() or file.stat().st_size:
                self._keep(file, value)
        return value

    def _keep(self, file: Path, value: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        try:
            with new.open("wb") as stream:
                pickle.dump(value, stream, protocol=5)
                if stream.tell() > MOST:
                    stream.truncate(0)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)
        total = 0
        states = {path: path.stat() for path in file.parent.iterdir() if not path.suffix}
        for path, state in sorted(states.items(), key=lambda item: -item[1].st_mtime_ns):
            total += state.st_size
            if total > MOST:
                path.unlink(missing_ok=True)


@functools.cache
def _code() -> bytes:
    """Return the source code of the modules that read, encode and fit a table, as a cache key."""
    # Import here, since the process of the sweep itself does not need NumPy.
    from ml.serving.scoring import columns
    from ml.toolkit import automl

    folders = [Path(__file__).parent, *map(Path, automl.__path__)]
    modules = [module for folder in folders for module in sorted(folder.rglob("*.py"))]
    return b"\0".join(module.read_bytes() for module in (*modules, Path(columns.__file__)))
