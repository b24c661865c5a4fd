"""The runs of this machine, as the port `RunStore` offers them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ml.backends.base import Curve, Entry, Link, Run, TrackingUnavailable
from ml.backends.local.runs import ancestry, listing, records, runs
from ml.backends.local.sweeps import samples
from ml.backends.local.tracking import reader
from ml.specs.search.domain import Sample


class LocalRuns:
    """Every run that left a record on this machine; it implements `ml.backends.base.RunStore`."""

    def find(self, name: str, experiment: str | None = None) -> Run:
        """See `RunStore`."""
        return runs.find(name, experiment)

    def entries(self) -> list[Entry]:
        """See `RunStore`. It reads records only: a thousand runs take a fraction of a second."""
        return listing.entries()

    def unreadable(self, entries: Iterable[Entry]) -> list[str]:
        """See `RunStore`."""
        return listing.torn(entries)

    def entry(self, run: Run) -> Entry:
        """See `RunStore`."""
        return listing.entry_of(run)

    def parent(self, run: Run) -> Run | None:
        """See `RunStore`."""
        if run.folder.parent.name not in records.PARTS.values():
            return None
        return records.read_if_whole(run.folder.parent.parent)

    def original(self, run: Run) -> Run | None:
        """See `RunStore`."""
        return records.original(run)

    def metrics(self, run: Run) -> Mapping[str, float]:
        """See `RunStore`."""
        with _available():
            return reader.latest(run.id)

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        """See `RunStore`."""
        with _available():
            return reader.curves([run.id for run in runs], metric)

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        """See `RunStore`."""
        with _available():
            return reader.all_curves(run.id)

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        """See `RunStore`."""
        with _available():
            return reader.tag([run.id for run in runs], key)

    def sample(self, trial: Run) -> Sample | None:
        """See `RunStore`."""
        return samples.read(trial.folder)

    def logs(self, run: Run) -> Mapping[str, Path]:
        """See `RunStore`."""
        files = sorted((run.folder / "logs").glob("*_*.txt"))
        ranks = {path: path.stem.removeprefix("rank_") for path in files}
        return {"0" if rank == "std_log" else rank: path for path, rank in ranks.items()}

    def outputs(self, run: Run) -> Mapping[str, Path]:
        """See `RunStore`."""
        return run.outputs

    def snapshot(self, entry: Entry) -> Path | None:
        """See `RunStore`."""
        return ancestry.snapshot_of(entry.lineage)

    def lineage(self, run: Run) -> list[Link]:
        """See `RunStore`."""
        return ancestry.ancestry(run)


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise TrackingUnavailable(str(error)) from error
