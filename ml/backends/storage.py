"""Disk space that runs take: what may be removed, and which limit applies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from ml.backends.runs import Run

ItemKind = Literal["run", "outputs", "snapshot", "environment", "model", "reuse", "leftover"]


@dataclass(frozen=True)
class Needed:
    """What has to stay, each with the reason: paths (and all below them), and runs by MLflow id.

    `models` is the folder of stored model copies, one a digest.
    """

    paths: Mapping[Path, str]
    runs: Mapping[str, str]
    models: Path


@dataclass(frozen=True)
class Item:
    """Something to remove: its paths, their size in bytes, and why it may be removed."""

    kind: ItemKind
    name: str
    paths: tuple[Path, ...]
    size: int
    why: str


@dataclass(frozen=True)
class Cleaning:
    """What is removed, the bytes that this frees, and why requested runs stay (by name)."""

    items: tuple[Item, ...]
    frees: int
    stay: Mapping[str, str]


@dataclass(frozen=True)
class Usage:
    """Bytes in use, the limit in bytes (None: no limit), and what is removed to keep it."""

    taken: int
    limit: float | None
    cleaning: Cleaning

    @property
    def is_over(self) -> bool:
        """Whether more than the limit is in use."""
        return self.limit is not None and self.taken > self.limit


class Cleaner(Protocol):
    """Removes what runs left, where a limit is kept."""

    @property
    def grace_s(self) -> float:
        """Seconds for which a copy that nothing refers to yet is left alone."""

    @property
    def limit_variable(self) -> str:
        """The environment variable that sets the limit."""

    @property
    def grew(self) -> bool:
        """Whether this process has run anything."""

    def usage(self) -> Usage:
        """What is in use and what the limit is; nothing is removed."""

    def evicted(self, run: Run) -> float | None:
        """When outputs of the run were removed to keep the limit (epoch seconds); None if never."""

    def cleaning(
        self,
        needed: Needed,
        *,
        keep: int | None = None,
        older_than: float | None = None,
        experiment: str | None = None,
    ) -> Cleaning:
        """What would be removed now: requested runs, and copies that nothing refers to.

        Runs are removed when they are beyond the `keep` latest and ended before `older_than`
        (epoch seconds); without both, no run is. It changes nothing.
        """

    def eviction(self, usage: Usage, needed: Needed, reads: Iterable[Path] = ()) -> Usage:
        """What would be removed to get below the limit, the least valuable first.

        `reads` are paths that the next run reads. It changes nothing.
        """

    def remove(self, planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        """Remove the items of `planned` that are still in `current`; bytes freed, and errors."""

    def evict(self, planned: Usage, current: Usage) -> tuple[int, list[str]]:
        """As `remove`, for the result of `eviction`; the runs keep a note of it."""


class Storage(Protocol):
    """The disk space of a backend's runs."""

    @property
    def cleaner(self) -> Cleaner | None:
        """What removes runs and copies; None where this machine removes none."""

    def size(self, run: Run) -> int:
        """Bytes that the folder of the run takes."""

    def parts(self) -> Mapping[str, int]:
        """Bytes that each part of the home takes, the largest first."""

    def keep(self, run: Run, keep: bool) -> None:
        """Protect a run from being removed, or end that."""

    def is_kept(self, run: Run) -> bool:
        """Whether a person protects the run."""
