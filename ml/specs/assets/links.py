"""Finds paths that leave the repository through `..` or a link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ml.core import repository
from ml.specs.sdk.load import stays_behind

# Paths that no job needs, for specs outside of a repository.
_SYSTEM = tuple(
    map(Path, ("/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/usr", "/bin", "/sbin"))
)
_PRIVATE = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".netrc", ".docker"})
_MAX_ENTRIES = 20_000


class Links:
    """Looks paths up, each folder once: 100 specs share one `code:`."""

    def __init__(self) -> None:
        self._scanned: dict[Path, list[Path]] = {}
        self._real: dict[str, Path] = {}

    def escape(self, written: Path, folder: Path, boundary: Path | None) -> Path | None:
        """Where `written` (in a spec in `folder`) leads when that is out of bounds, else None."""
        base = self.real(folder)
        lexical = Path(os.path.normpath(base / written))
        real = self.real(lexical)
        if boundary is not None:
            return None if real.is_relative_to(self.real(boundary)) else real
        if _is_private(real, base):
            return real
        climbs = [part for part in written.parts if part != "."]
        after = next((part for part in climbs if part != ".."), "")
        if ".." in climbs and f"/{after}" in {"/etc", "/proc", "/root", "/sys"}:
            return real
        through_link = lexical.is_relative_to(base) and not real.is_relative_to(base)
        return real if through_link else None

    def real(self, path: Path) -> Path:
        """`path` with its links followed."""
        if (key := str(path)) not in self._real:
            self._real[key] = Path(os.path.realpath(path))
        return self._real[key]

    def escapes_inside(
        self, top: Path, folder: Path, boundary: Path | None
    ) -> Iterator[tuple[Path, Path]]:
        """The links below `top` that lead out of bounds, each with where it leads."""
        allowed = [self.real(boundary)] if boundary else [self.real(folder), self.real(top)]
        for link in self._links(self.real(top)):
            real = self.real(link)
            if not any(real.is_relative_to(place) for place in allowed):
                yield link, real

    def _links(self, top: Path) -> list[Path]:
        if top not in self._scanned:
            self._scanned[top] = list(_scan(top))
        return self._scanned[top]


def _scan(top: Path) -> Iterator[Path]:
    """The links below a folder that would travel with it (`.amlignore`, else `.gitignore`)."""
    waiting, count = [top], 0
    while waiting and count < _MAX_ENTRIES:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        count += len(entries)
        for entry in entries:
            if entry.is_symlink():
                if not stays_behind(Path(entry.path), top):
                    yield Path(entry.path)
            elif entry.is_dir() and entry.name not in repository.SKIPPED:
                waiting.append(Path(entry.path))


def _is_private(real: Path, base: Path) -> bool:
    if any(real.is_relative_to(place) and not base.is_relative_to(place) for place in _SYSTEM):
        return True
    return bool(_PRIVATE & set(real.parts) - set(base.parts))
