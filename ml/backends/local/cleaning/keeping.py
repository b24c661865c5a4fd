"""What cleaning must leave: what others need, what runs that go on may use, what links lead to."""

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


@dataclass(frozen=True)
class References:
    """What a run refers to: snapshots, environments and runs by name, paths outside its folder."""

    snapshots: frozenset[str]
    runs: frozenset[str]
    paths: frozenset[Path]
    environments: frozenset[str]


# In a run's folder: a person wants all of it to stay.
KEPT = "kept"


def keep(run: Run, yes: bool) -> None:
    """Protect a run, with all that belongs to it, from cleaning, or no more."""
    if yes:
        (run.folder / KEPT).touch()
    else:
        (run.folder / KEPT).unlink(missing_ok=True)


def is_kept(run: Run) -> bool:
    """Whether a person protects it."""
    return (run.folder / KEPT).exists()


def references(entry: Entry) -> References:
    """What the run and its parts refer to. A run that has ended needs no other run's folder: what
    its steps reuse is linked into its own."""
    snapshots, runs, paths, built = set(), set(), set(), set()
    for run in (entry.run, *entry.run.below()):
        for path in run.outputs.values():
            if path.is_symlink() and not path.resolve().is_relative_to(entry.run.folder.resolve()):
                paths.add(path.resolve())
    goes_on = jobs.is_alive(entry.run.name)
    for part in _own_lineages(entry):
        code = part.lineage.get("code") or {}
        snapshots.add(str(code.get("digest", "")).removeprefix("sha256:"))
        built.add(str((part.lineage.get("interpreter") or {}).get("built", "")))
        if goes_on:
            data = (part.lineage.get("data") or {}).values()
            said = [str(one.get("source", "")) for one in data]
            said += [str(value) for value in part.run.parameters.values()]
            runs |= {name for text in said for name in PurePath(text).parts}
            runs.add(part.run.reused_from.partition(".")[0])
    return References(frozenset(snapshots), frozenset(runs), frozenset(paths), frozenset(built))


def _own_lineages(entry: Entry) -> Iterator[Entry]:
    """The run and its steps; trials have their sweep's snapshot and data."""
    yield entry
    for step in _steps(entry.run):
        yield LocalRuns().entry(step)


def _steps(run: Run) -> Iterator[Run]:
    for step in run.steps:
        yield step
        yield from _steps(step)


class Keeping:
    """The rules of one cleaning. `every` are all runs there are."""

    def __init__(self, needed: Needed, every: Sequence[Entry]) -> None:
        self.needed = needed
        self._every = every
        self._paths = {path.resolve(): why for path, why in needed.paths.items()}
        going_on = [path for path in _locks() if jobs.is_alive(path.name)]
        started = [path.stat().st_mtime for path in going_on if path.exists()]
        # A pipeline takes the code of all its steps before the first: it may use it hours later.
        self._horizon = min([time.time(), *started]) - GRACE_S

    def is_settled(self, path: Path) -> bool:
        """Whether nobody can be about to refer to it."""
        return path.lstat().st_mtime < self._horizon

    def is_held(self, path: Path) -> bool:
        """Whether something needs the path, or may be about to."""
        return self._why(path) != "" or not self.is_settled(path)

    def settle(self, asked: Sequence[Entry]) -> dict[str, str]:
        """Name → why it stays, of the runs that were asked for and have to stay."""
        stay = {one.run.name: why for one in asked if (why := self._why_run(one))}
        before = -1
        while before != len(stay):
            before = len(stay)
            names = {one.run.name for one in asked} - set(stay)
            for one in self._every:
                if one.run.name not in names:
                    stay |= self._claimed(one, [e for e in asked if e.run.name in names])
        return stay

    def _claimed(self, holder: Entry, others: Sequence[Entry]) -> dict[str, str]:
        """Those of the others that a run which stays refers to."""
        if not others:
            return {}
        found = references(holder)
        return {
            one.run.name: f"{holder.run.name} refers to it"
            for one in others
            if one.run.name in found.runs or any(_owns(one, path) for path in found.paths)
        }

    def _why_run(self, entry: Entry) -> str:
        if jobs.is_alive(entry.run.name):
            return "it goes on"
        if is_kept(entry.run):
            return f"it is kept (ml runs keep --undo {entry.run.name})"
        for run in (entry.run, *entry.run.below()):
            if run.id in self.needed.runs:
                return self.needed.runs[run.id]
        return self._why(entry.run.folder)

    def _why(self, path: Path) -> str:
        """Why the path stays: it is needed, lies in what is, or holds some of it."""
        there = path.resolve()
        for one in (there, *there.parents):
            if one in self._paths:
                return self._paths[one]
        return next((why for p, why in self._paths.items() if p.is_relative_to(there)), "")


def _owns(entry: Entry, path: Path) -> bool:
    if path.is_relative_to(entry.run.folder.resolve()):
        return True
    ids = {run.id for run in (entry.run, *entry.run.below()) if run.id}
    return path.is_relative_to(home.artifacts().resolve()) and bool(ids & set(path.parts))


def _locks() -> list[Path]:
    return list(home.live().iterdir()) if home.live().is_dir() else []
