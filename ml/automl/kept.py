"""What the trials of a search compute alike is kept beside them: each is a process of its own."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")
# Bytes that are kept of a search; what was not read for the longest time goes first.
MOST = 256 * 2**20


@dataclass(frozen=True)
class Kept:
    """Values by what they were computed of, in a folder of the search; without one, none is kept.

    They are pickles that the search wrote itself, and no part of any model.
    """

    folder: Path | None = None

    def of(self, compute: Callable[[], Value], *keys: str | bytes) -> Value:
        """The value that was kept for these keys, else what is computed now."""
        if self.folder is None:
            return compute()
        parts = (key.encode() if isinstance(key, str) else key for key in keys)
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        file = self.folder / hashlib.sha256(digests).hexdigest()
        try:
            with file.open("rb") as stream:
                value: Value = pickle.load(stream)
            file.touch()
        except (OSError, EOFError, ImportError, AttributeError, pickle.UnpicklingError):
            value = compute()
            self._keep(file, value)
        return value

    def _keep(self, file: Path, value: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = file.with_suffix(f".{os.getpid()}")
        with whole.open("wb") as stream:
            pickle.dump(value, stream, protocol=5)
        whole.replace(file)
        total = 0
        states = {of: of.stat() for of in file.parent.iterdir() if not of.suffix}
        for of, state in sorted(states.items(), key=lambda each: -each[1].st_mtime_ns):
            total += state.st_size
            if total > MOST:
                of.unlink(missing_ok=True)
