"""Finds paths that leave the repository through `..` or a link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ml.core import faults, home
from ml.specs.assets.ignore_file import IgnoreFile

# Paths that no job needs, for specs outside of a repository.
_SYSTEM = tuple(
    map(Path, ("/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run", "/usr", "/bin", "/sbin"))
)
_PRIVATE = frozenset({".ssh", ".aws", ".azure", ".gnupg", ".kube", ".netrc", ".docker"})


class Links:
    """Looks paths up, each folder once: 100 specs share one `code:`."""

    def __init__(self) -> None:
        self._escapes: dict[tuple[Path, ...], list[tuple[Path, Path]]] = {}
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
        allowed = (self.real(boundary),) if boundary else (self.real(folder), self.real(top))
        if (key := (self.real(top), *allowed)) not in self._escapes:
            with faults.as_refusals():
                entries = IgnoreFile(key[0]).entries({home.home()}, allowed)
                self._escapes[key] = [(link, real) for _, link, real in entries if real is not None]
        yield from self._escapes[key]


def _is_private(real: Path, base: Path) -> bool:
    if any(real.is_relative_to(place) and not base.is_relative_to(place) for place in _SYSTEM):
        return True
    return bool(_PRIVATE & set(real.parts) - set(base.parts))
