"""What cleaning leaves: what others need, what running runs may use, and the targets of links."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ml.backends.base import Entry, Run
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.storage import Needed
from ml.core import home

# Time from taking a snapshot, or storing a model, until something refers to it.
GRACE_S = 600.0
# In a run's folder: a person protects the run.
KEPT = "kept"


@dataclass(frozen=True)
class References:
    """What a run refers to: snapshots, environments and runs by name, paths outside its folder."""

    snapshots: frozenset[str]
    runs: frozenset[str]
    paths: frozenset[Path]
    environments: frozenset[str]


def is_kept(run: Run) -> bool:
    """Whether a person protects the run."""
    return (run.folder / KEPT).exists()


def references(entry: Entry) -> References:
    """What the run and its parts refer to.

    A run that has ended needs no other run's folder: what its steps reuse is linked into its own.
    """
    snapshots, runs, paths, environments = set(), set(), set(), set()
    for run in (entry.run, *entry.run.below()):
        for path in run.outputs.values():
            if path.is_symlink() and not path.resolve().is_relative_to(entry.run.folder.resolve()):
                paths.add(path.resolve())
    is_running = jobs.is_alive(entry.run.name)
    # Trials have the snapshot and the data of their sweep.
    for part in (entry, *(LocalRuns().entry(step) for step in _steps(entry.run))):
        code = part.lineage.get("code") or {}
        snapshots.add(str(code.get("digest", "")).removeprefix("sha256:"))
        environments.add(str((part.lineage.get("interpreter") or {}).get("built", "")))
        if is_running:
            data = (part.lineage.get("data") or {}).values()
            texts = [str(source.get("source", "")) for source in data]
            texts += [str(value) for value in part.run.parameters.values()]
            runs |= {name for text in texts for name in PurePath(text).parts}
            runs.add(part.run.reused_from.partition(".")[0])
    return References(
        frozenset(snapshots), frozenset(runs), frozenset(paths), frozenset(environments)
    )


def _steps(run: Run) -> Iterator[Run]:
    for step in run.steps:
        yield step
        yield from _steps(step)


class Retention:
    """The rules of one cleaning; `entries` are all runs that there are."""

    def __init__(self, needed: Needed, entries: Sequence[Entry]) -> None:
        self.needed = needed
        self._entries = entries
        self._paths = {path.resolve(): why for path, why in needed.paths.items()}
        locks = list(home.live().iterdir()) if home.live().is_dir() else []
        running = [path for path in locks if jobs.is_alive(path.name)]
        started = [path.stat().st_mtime for path in running if path.exists()]
        # A pipeline takes the code of all its steps before the first: it may use it hours later.
        self._horizon = min([time.time(), *started]) - GRACE_S

    def is_settled(self, path: Path) -> bool:
        """Whether the path is too old for a run to be about to refer to it."""
        return path.lstat().st_mtime < self._horizon

    def is_held(self, path: Path) -> bool:
        """Whether something needs the path, or may be about to."""
        return self._why(path) != "" or not self.is_settled(path)

    def stay(self, requested: Sequence[Entry]) -> dict[str, str]:
        """Of the requested runs, those that have to stay: name → why."""
        stay = {entry.run.name: why for entry in requested if (why := self._why_run(entry))}
        before = -1
        while before != len(stay):
            before = len(stay)
            names = {entry.run.name for entry in requested} - set(stay)
            for entry in self._entries:
                if entry.run.name not in names:
                    others = [other for other in requested if other.run.name in names]
                    stay |= self._referred(entry, others)
        return stay

    def _referred(self, entry: Entry, others: Sequence[Entry]) -> dict[str, str]:
        """Those of the others that a run which stays refers to."""
        if not others:
            return {}
        referred = references(entry)
        return {
            other.run.name: f"{entry.run.name} refers to it"
            for other in others
            if other.run.name in referred.runs or any(_owns(other, path) for path in referred.paths)
        }

    def _why_run(self, entry: Entry) -> str:
        if jobs.is_alive(entry.run.name):
            return "it is still running"
        if is_kept(entry.run):
            return f"it is kept (ml runs keep --undo {entry.run.name})"
        for run in (entry.run, *entry.run.below()):
            if run.id in self.needed.runs:
                return self.needed.runs[run.id]
        return self._why(entry.run.folder)

    def _why(self, path: Path) -> str:
        """Why the path stays: it is needed, is below a needed path, or contains one."""
        target = path.resolve()
        for folder in (target, *target.parents):
            if folder in self._paths:
                return self._paths[folder]
        return next((why for p, why in self._paths.items() if p.is_relative_to(target)), "")


def _owns(entry: Entry, path: Path) -> bool:
    if path.is_relative_to(entry.run.folder.resolve()):
        return True
    ids = {run.id for run in (entry.run, *entry.run.below()) if run.id}
    return path.is_relative_to(home.artifacts().resolve()) and bool(ids & set(path.parts))
