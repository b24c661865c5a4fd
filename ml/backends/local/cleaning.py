"""Remove runs on request, and collect unreferenced snapshots, environments and models.

Files that other runs, running jobs or symbolic links reference are kept.
"""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from ml.backends.local.environments import building
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Entry, Filter, Run
from ml.backends.storage import Cleaning, Item, ItemKind, Needed, freed_by, size_of
from ml.core import home

# Minimum age in seconds of unreferenced files: a new snapshot or model is referenced later.
GRACE_S = 600.0
_REMOVING, _UNFINISHED = ".removing-", ".unfinished-"


def plan(
    needed: Needed,
    *,
    keep: int | None = None,
    older_than: float | None = None,
    experiment: str | None = None,
) -> Cleaning:
    """Return the items that a cleaning would remove now; see `Cleaner.cleaning`."""
    entries = LocalRuns().entries()
    retention = Retention(needed, entries)
    requested = _requested(Filter(experiment=experiment).apply(entries), keep, older_than)
    stay = retention.stay(requested)
    removed = [entry for entry in requested if entry.run.name not in stay]
    names = {entry.run.name for entry in removed}
    others = [entry for entry in entries if entry.run.name not in names]
    items = [_run(entry, keep, older_than) for entry in removed]
    items += _orphans(retention, others)
    items += _stale_notes(names)
    items += _unfinished(retention, {entry.run.name for entry in entries})
    frees = freed_by(path for item in items for path in item.paths)
    return Cleaning(tuple(items), frees, stay, GRACE_S)


def remove(planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
    """Remove the items of `planned` that are still in `current`; return freed bytes and errors.

    Each is first moved to a trash folder, so that a killed command leaves no partial run.
    """
    paths = {path for item in current.items for path in item.paths}
    errors: list[str] = []
    trash = Path(tempfile.mkdtemp(prefix=_REMOVING, dir=home.home()))
    for number, item in enumerate(planned.items):
        move: Callable[[Path, Path], object] = Path.rename
        if item.kind == "environment":
            move = building.move
        for path in item.paths:
            is_busy = item.kind == "run" and jobs.is_alive(item.name)
            if path in paths and not is_busy:
                try:
                    move(path, trash / f"{number}-{len(list(trash.iterdir()))}-{path.name}")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    errors.append(str(error))
    freed = freed_by([trash])
    shutil.rmtree(trash, onerror=_remove_protected)
    if trash.exists():
        errors.append(f"{trash} could not be removed completely")
    return freed, errors


def _requested(entries: Sequence[Entry], keep: int | None, older_than: float | None) -> list[Entry]:
    if keep is None and older_than is None:
        return []
    return [
        entry
        for entry in entries[keep or 0 :]
        if older_than is None or (entry.run.ended or entry.run.started) < older_than
    ]


def _run(entry: Entry, keep: int | None, older_than: float | None) -> Item:
    parts = [entry.run, *entry.run.below()]
    parts += [attempt for part in parts for attempt in part.former]
    ids = [run.id for run in parts if run.id]
    paths = tuple(path for run_id in ids for path in home.artifacts().glob(f"*/{run_id}"))
    # Remove the folder last: without it, a later cleaning would not find the artifacts.
    paths = (*paths, entry.run.folder)
    why = [f"not among the {keep} latest"] * (keep is not None)
    why += ["older than --older-than"] * (older_than is not None)
    return Item("run", entry.run.name, paths, size_of(*paths), ", ".join(why))


def _orphans(retention: Retention, others: Iterable[Entry]) -> Iterator[Item]:
    """Yield snapshots, environments and stored models without references."""
    referred = [references(entry) for entry in others]
    used = {digest for entry in referred for digest in entry.snapshots}
    built = {digest for entry in referred for digest in entry.environments}

    def works(environment: Path) -> bool:
        return environment.name in built or building.is_used(environment.name)

    gone = "no run references it"
    stores: list[tuple[ItemKind, Path, Callable[[Path], bool], str]] = [
        ("snapshot", home.snapshots(), lambda path: path.name in used, gone),
        ("environment", home.environments(), works, gone),
        ("model", retention.needed.models, lambda path: False, "it is not a registered version"),
    ]
    for kind, store, is_used, why in stores:
        for path in _listed(store):
            if is_used(path) or path.name.startswith(".") or retention.is_held(path):
                continue
            yield Item(kind, path.name[:12], (path,), size_of(path), why)


def _stale_notes(removed: set[str]) -> Iterator[Item]:
    """Yield cache entries (`reuse`) of steps whose run is removed."""
    for path in _listed(home.step_cache()):
        with suppress(OSError, ValueError, KeyError):
            folder = Path(json.loads(path.read_text())["folder"])
            inside = folder.parts[len(home.jobs().parts) :]
            if not folder.exists() or (inside and inside[0] in removed):
                yield Item("reuse", path.name[:12], (path,), size_of(path), "its run is removed")


def _unfinished(retention: Retention, names: set[str]) -> Iterator[Item]:
    """Yield temporary files of killed processes, and job folders without a record."""
    for folder in (home.snapshots(), retention.needed.models, home.assets(), home.home()):
        for path in _listed(folder):
            half = path.name.startswith((_REMOVING, _UNFINISHED))
            if half and retention.is_settled(path):
                yield Item("leftover", path.name, (path,), size_of(path), "its program was killed")
    for path in _listed(home.jobs()):
        empty = path.name not in names and not (path / "job.json").exists()
        if empty and not jobs.is_alive(path.name) and retention.is_settled(path):
            yield Item("leftover", path.name, (path,), size_of(path), "it has no record")


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove_protected(function: Callable[..., object], failed: str, error: object) -> None:
    """Make a folder writable and retry: a job may have made its own folders read-only."""
    path = Path(failed)
    with suppress(OSError):
        path.parent.chmod(stat.S_IRWXU)
        if path.is_dir() and not path.is_symlink():
            path.chmod(stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@dataclass(frozen=True)
class References:
    """A run's references: snapshots, environments and runs by name, paths outside its folder."""

    snapshots: frozenset[str]
    runs: frozenset[str]
    paths: frozenset[Path]
    environments: frozenset[str]


def references(entry: Entry) -> References:
    """Return the snapshots, runs, paths and environments that a run and its children reference.

    An ended run references no runs by name: reused outputs are links in its folder (`paths`).
    """
    snapshots, runs, paths, environments = set(), set(), set(), set()
    for run in (entry.run, *entry.run.below()):
        for path in run.outputs.values():
            if path.is_symlink() and not path.resolve().is_relative_to(entry.run.folder.resolve()):
                paths.add(path.resolve())
    is_running = jobs.is_alive(entry.run.name)
    # Trials use the snapshot and the data of their sweep.
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
    """Decides what one cleaning keeps; `entries` are all runs."""

    def __init__(self, needed: Needed, entries: Sequence[Entry]) -> None:
        self.needed = needed
        self._entries = entries
        self._paths = {path.resolve(): why for path, why in needed.paths.items()}
        locks = list(home.run_locks().iterdir()) if home.run_locks().is_dir() else []
        running = [path for path in locks if jobs.is_alive(path.name)]
        started = [path.stat().st_mtime for path in running if path.exists()]
        # A pipeline takes all snapshots before its first step, and may use one hours later.
        self._horizon = min([time.time(), *started]) - GRACE_S

    def is_settled(self, path: Path) -> bool:
        """Return whether the path is too old for a starting or running job to reference it yet."""
        return path.lstat().st_mtime < self._horizon

    def is_held(self, path: Path) -> bool:
        """Return whether something references the path, or a job may soon do so."""
        return self._why(path) != "" or not self.is_settled(path)

    def stay(self, requested: Sequence[Entry]) -> dict[str, str]:
        """Return name → reason of the requested runs that must be kept."""
        stay = {entry.run.name: why for entry in requested if (why := self._why_run(entry))}
        before = -1
        while before != len(stay):
            before = len(stay)
            names = {entry.run.name for entry in requested} - set(stay)
            for entry in self._entries:
                if entry.run.name not in names:
                    others = [candidate for candidate in requested if candidate.run.name in names]
                    stay |= self._referred(entry, others)
        return stay

    def _referred(self, entry: Entry, others: Sequence[Entry]) -> dict[str, str]:
        """Return name → reason of the runs in `others` that the kept run `entry` references."""
        if not others:
            return {}
        referred = references(entry)
        return {
            candidate.run.name: f"{entry.run.name} refers to it"
            for candidate in others
            if candidate.run.name in referred.runs
            or any(_owns(candidate, path) for path in referred.paths)
        }

    def _why_run(self, entry: Entry) -> str:
        if jobs.is_alive(entry.run.name):
            return "it is still running"
        for run in (entry.run, *entry.run.below()):
            if run.id in self.needed.runs:
                return self.needed.runs[run.id]
        return self._why(entry.run.folder)

    def _why(self, path: Path) -> str:
        """Return why the path is kept, "" if it is not: a needed path is equal, above or below."""
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


class LocalCleaner:
    """Implements `ml.backends.storage.Cleaner`."""

    cleaning = staticmethod(plan)
    remove = staticmethod(remove)
