"""A cache of what the trials of a search compute alike: each is a process of its own."""

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
# Its name in the folder of a search, where it is deleted once the job is Completed.
FOLDER = "cache"
# Bytes of a search; what was not read for the longest time goes first.
MOST = 256 * 2**20


@dataclass(frozen=True)
class Cache:
    """Values by what they were computed of, in a folder of the search; without one, nowhere.

    They are pickles that the search wrote itself, and no part of any model. A search that is
    resumed after its code has changed reads none of them.
    """

    folder: Path | None = None

    def of(self, compute: Callable[[], Value], *keys: str | bytes) -> Value:
        """The value for these keys, computed where the cache has none."""
        if self.folder is None:
            return compute()
        parts = (key.encode() if isinstance(key, str) else key for key in keys)
        digests = b"".join(hashlib.sha256(part).digest() for part in (_code(), *parts))
        file = self.folder / hashlib.sha256(digests).hexdigest()
        # pickle raises nearly anything for a file that was damaged.
        with suppress(Exception), file.open("rb") as stream:
            value: Value = pickle.load(stream)
            file.touch()
            return value
        value = compute()
        # A disk that is full keeps nothing.
        with suppress(OSError):
            # An empty file says that the value is too large.
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
        states = {of: of.stat() for of in file.parent.iterdir() if not of.suffix}
        for of, state in sorted(states.items(), key=lambda each: -each[1].st_mtime_ns):
            total += state.st_size
            if total > MOST:
                of.unlink(missing_ok=True)


@functools.cache
def _code() -> bytes:
    """The content of the modules that read, encode and fit a table."""
    # The job's own process, which trains nothing, has no need of NumPy.
    from ml.serving.scoring import columns
    from ml.toolkit import automl

    folders = [Path(__file__).parent, *map(Path, automl.__path__)]
    modules = [module for folder in folders for module in sorted(folder.rglob("*.py"))]
    return b"\0".join(module.read_bytes() for module in (*modules, Path(columns.__file__)))
