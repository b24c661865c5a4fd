"""The runs of this machine: the local implementation of the port `RunStore`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from ml.backends.local.runs import records
from ml.backends.local.runs.lifecycle import with_current_status
from ml.backends.local.tracking import reader
from ml.backends.runs import (
    Curve,
    Entry,
    Filter,
    Run,
    Service,
    TrackingUnavailable,
    latest,
)
from ml.core import home
from ml.core.errors import Problem, UserError
from ml.specs.plan.plans import Sample, Value


class LocalRuns:
    """Every run with a record on this machine; implements `ml.backends.runs.RunStore`.

    Lists read only records, so a thousand runs take a fraction of a second.
    """

    poll_s = 0.2
    document = staticmethod(records.to_json)
    original = staticmethod(records.original)
    patience_s = None  # local reads need no retry

    @property
    def records(self) -> LocalRuns:
        return self

    def find(self, name: str, experiment: str | None = None) -> Run:
        if name == "latest" and (run := latest(self.entries(), experiment)):
            return run
        runs = [run for run in self.all() if experiment in {None, run.experiment}]
        for run in runs:
            for part in (run, *run.below()):
                if name in {part.name, part.id}:
                    return part
        if records.is_damaged(home.jobs() / PurePath(name).name):
            raise UserError(_damaged(name))
        raise UserError(_no_such_run(name, experiment, runs))

    def writer(self, pipeline: Run, output: str) -> Run:
        """See `RunStore`: find the step that wrote the output, or the run that it reused."""
        wrote = pipeline.outputs[output].resolve()
        for run in pipeline.below():
            if run.steps or wrote not in {path.resolve() for path in run.outputs.values()}:
                continue
            with suppress(UserError):  # if it was removed, the reusing run has its outputs
                return self.find(run.reused_from) if run.reused_from else run
            return run
        return pipeline

    def entries(self) -> list[Entry]:
        entries = []
        for folder in _folders():
            # A folder without a record is new, or its run was killed before writing one.
            with suppress(OSError, ValueError, KeyError):
                entry = records.entry(folder)
                entries.append(Entry(with_current_status(entry.run), entry.kind, entry.lineage))
        return sorted(entries, key=lambda entry: (-entry.run.started, entry.run.name))

    def newest(self, wanted: Filter, count: int) -> list[Entry]:
        return wanted.apply(self.entries())

    def unreadable(self, entries: Iterable[Entry]) -> list[str]:
        listed = {entry.run.name for entry in entries}
        others = [folder for folder in _folders() if folder.name not in listed]
        return [folder.name for folder in others if records.is_damaged(folder)]

    def entry(self, run: Run) -> Entry:
        """Return the run's entry; a step that never started has no record and no lineage."""
        try:
            entry = records.entry(run.folder)
        except FileNotFoundError:
            return Entry(run, "command", {})
        return Entry(run, entry.kind, entry.lineage)

    def parent(self, run: Run) -> Run | None:
        if run.folder.parent.name not in records.PARTS.values():
            return None
        return records.read_if_whole(run.folder.parent.parent)

    def metrics(self, run: Run) -> Mapping[str, float]:
        with _available():
            return reader.latest(run.id)

    def parameters(self, run: Run) -> Mapping[str, Value]:
        with _available():
            logged = reader.parameters(run.id)
        others = {name: logged[name] for name in sorted(logged) if name not in run.parameters}
        return {**run.parameters, **others}

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        with _available():
            return reader.curves([run.id for run in runs], metric)

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        with _available():
            return reader.all_curves(run.id)

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        with _available():
            return reader.tag([run.id for run in runs], key)

    def sample(self, trial: Run) -> Sample | None:
        return records.read_sample(trial.folder)

    def logs(self, run: Run) -> Mapping[str, Path]:
        files = sorted((run.folder / "logs").glob("*_*.txt"))
        ranks = {path: path.stem.removeprefix("rank_") for path in files}
        return {"0" if rank == "std_log" else rank: path for path, rank in ranks.items()}

    def services(self, run: Run) -> Sequence[Service]:
        return ()  # unsupported here, and `ml run` reports it

    def artifacts(self, run: Run) -> Path | None:
        place = reader.artifacts(run.id)
        return Path(place) if place else None

    def all(self) -> Iterator[Run]:
        """Yield every root run with a readable record, by name, with its steps and trials."""
        for folder in _folders():
            with suppress(OSError, ValueError, KeyError):
                yield with_current_status(records.read(folder))


def _folders() -> list[Path]:
    return sorted(home.jobs().iterdir()) if home.jobs().is_dir() else []


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise TrackingUnavailable(str(error)) from error


def _damaged(name: str) -> Problem:
    return Problem(
        "record-unreadable",
        f"{home.jobs() / name / records.FILE} cannot be read: probably the machine lost power, or "
        "the disk was full, during the write",
        "a complete record",
        f"a sweep or pipeline: ml runs resume {name}, which rewrites the record; a command: "
        "ml run SPEC",
    )


def _no_such_run(name: str, experiment: str | None, runs: list[Run]) -> Problem:
    where = f" of the experiment `{experiment}`" if experiment else ""
    names = [run.name for run in sorted(runs, key=lambda run: -run.started)][:5]
    return Problem(
        "no-such-run",
        f"this machine has no run `{name}`{where}",
        f"one of: {', '.join(names)}" if names else "a run; this machine has none yet",
        "start one: ml run SPEC" if not names else "`latest` names the last",
    )
