"""The disk space of this machine's runs, as the port `Storage` offers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ml.backends.base import Run
from ml.backends.local.cleaning import bounding, cleaning, disk, keeping
from ml.backends.storage import Cleaning, Needed, Usage


class LocalStorage:
    """It implements `ml.backends.base.Storage`."""

    grace_s = keeping.GRACE_S
    limit_variable = bounding.VARIABLE

    def size(self, run: Run) -> int:
        """See `Storage`."""
        return disk.taken(run.folder)

    def usage(self) -> Usage:
        """See `Storage`. Raises Refused when the limit is not a size."""
        return bounding.measure()

    def parts(self) -> Mapping[str, int]:
        """See `Storage`."""
        return cleaning.usage()

    def keep(self, run: Run, keep: bool) -> None:
        """See `Storage`."""
        keeping.keep(run, keep)

    def is_kept(self, run: Run) -> bool:
        """See `Storage`."""
        return keeping.is_kept(run)

    def evicted(self, run: Run) -> float | None:
        """See `Storage`."""
        return bounding.evicted(run)

    def cleaning(
        self,
        needed: Needed,
        *,
        keep: int | None = None,
        older_than: float | None = None,
        experiment: str | None = None,
    ) -> Cleaning:
        """See `Storage`."""
        return cleaning.plan(needed, keep=keep, older_than=older_than, experiment=experiment)

    def eviction(self, usage: Usage, needed: Needed, reads: Iterable[Path] = ()) -> Usage:
        """See `Storage`."""
        return bounding.plan(usage, needed, reads)

    def remove(self, cleaning_: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        """See `Storage`."""
        return cleaning.remove(cleaning_, current)

    def evict(self, usage: Usage, current: Usage) -> tuple[int, list[str]]:
        """See `Storage`."""
        return bounding.carry_out(usage, current)
