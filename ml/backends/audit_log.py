"""Where a backend keeps the audit log: a part of the port. `ml.release.audit` writes its lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ml.core import faults, files, home


class AuditLog(Protocol):
    """One file that is only ever added to, by all machines that release to the same place."""

    @property
    def place(self) -> str:
        """Its path or address, for messages."""
        ...

    def read(self) -> bytes | None:
        """All of it; None before the first line. Raises Refused."""
        ...

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        """Append what `line` makes of the present content; nobody else appends in between.

        `line` is called again when another machine was faster. It is on the disk when this returns,
        whole or not at all. Raises Refused.
        """
        ...


class LocalAuditLog:
    """`audit.jsonl` in the local home: implements `AuditLog`."""

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
