"""The audit log of this machine; `ml.release.audit` writes its lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ml.core import faults, files, home


class LocalAuditLog:
    """`audit.jsonl` in the local home: implements `ml.backends.base.AuditLog`."""

    @property
    def path(self) -> Path:
        """The file."""
        return home.home() / "audit.jsonl"

    @property
    def place(self) -> str:
        return str(self.path)

    def read(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        with faults.as_refusals(), files.locked(self.path.with_suffix(".lock")):
            # All of it or nothing: half a line would break the chain.
            files.append(self.path, line(self.read()), durable=True)
