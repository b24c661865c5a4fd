"""Removing runs on request, and copies that nothing refers to any more."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ml.backends.base import Entry, Filter
from ml.backends.local.cleaning import disk
from ml.backends.local.cleaning.retention import Retention, references
from ml.backends.local.environments import building
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.storage import Cleaning, Item, ItemKind, Needed
from ml.core import home

_REMOVING, _UNFINISHED = ".removing-", ".unfinished-"


def plan(
    needed: Needed,
    *,
    keep: int | None = None,
    older_than: float | None = None,
    experiment: str | None = None,
) -> Cleaning:
    """What would be removed now; see `Storage.cleaning`."""
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
    return Cleaning(tuple(items), disk.freed(path for item in items for path in item.paths), stay)


def remove(cleaning: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
    """Remove the items of `cleaning` that are still in `current`; bytes freed, and errors.

    Each is moved in one step: a command that is killed leaves no half of a run behind.
    """
    paths = {path for item in current.items for path in item.paths}
    errors: list[str] = []
    trash = Path(tempfile.mkdtemp(prefix=_REMOVING, dir=home.home()))
    for number, item in enumerate(cleaning.items):
        for path in item.paths:
            if path in paths and not _is_busy(item):
                try:
                    _move(item, path, trash / f"{number}-{len(list(trash.iterdir()))}-{path.name}")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    errors.append(str(error))
    freed = disk.freed([trash])
    shutil.rmtree(trash, onerror=_remove_protected)
    if trash.exists():
        errors.append(f"{trash} could not be removed completely")
    return freed, errors


def _is_busy(item: Item) -> bool:
    return item.kind in {"run", "outputs"} and jobs.is_alive(item.name)


def _move(item: Item, path: Path, to: Path) -> None:
    if item.kind == "environment":
        building.move(path, to)
    else:
        path.rename(to)


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
    # The folder last: while it is there, a later cleaning finds the artifacts.
    paths = (*paths, entry.run.folder)
    why = [f"not among the {keep} latest"] * (keep is not None)
    why += ["older than asked"] * (older_than is not None)
    return Item("run", entry.run.name, paths, disk.taken(*paths), ", ".join(why))


def _orphans(retention: Retention, others: Iterable[Entry]) -> Iterator[Item]:
    """Snapshots and stored models that nothing refers to."""
    referred = [references(entry) for entry in others]
    used = {digest for entry in referred for digest in entry.snapshots}
    built = {digest for entry in referred for digest in entry.environments}
    gone = "no run is left of it"
    stores: list[tuple[ItemKind, Path, Callable[[Path], bool], str]] = [
        ("snapshot", home.snapshots(), lambda path: path.name in used, gone),
        ("environment", home.environments(), lambda path: _works(path, built), gone),
        ("model", retention.needed.models, lambda path: False, "it is no registered version"),
    ]
    for kind, store, is_used, why in stores:
        for path in _listed(store):
            if is_used(path) or path.name.startswith(".") or retention.is_held(path):
                continue
            yield Item(kind, path.name[:12], (path,), disk.taken(path), why)


def _works(environment: Path, built: set[str]) -> bool:
    return environment.name in built or building.is_used(environment.name)


def _stale_notes(removed: set[str]) -> Iterator[Item]:
    """Notes of steps to reuse whose run is removed."""
    for path in _listed(home.reusable()):
        with suppress(OSError, ValueError, KeyError):
            folder = Path(json.loads(path.read_text())["folder"])
            inside = folder.parts[len(home.jobs().parts) :]
            if not folder.exists() or (inside and inside[0] in removed):
                yield Item("reuse", path.name[:12], (path,), disk.taken(path), "its run is removed")


def _unfinished(retention: Retention, names: set[str]) -> Iterator[Item]:
    """Files of programs that were killed before they had finished."""
    for folder in (home.snapshots(), retention.needed.models, home.assets(), home.home()):
        for path in _listed(folder):
            half = path.name.startswith((_REMOVING, _UNFINISHED))
            if half and retention.is_settled(path):
                yield Item(
                    "leftover", path.name, (path,), disk.taken(path), "it was never finished"
                )
    for path in _listed(home.jobs()):
        empty = path.name not in names and not (path / "job.json").exists()
        if empty and not jobs.is_alive(path.name) and retention.is_settled(path):
            yield Item("leftover", path.name, (path,), disk.taken(path), "it has no record")


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _remove_protected(function: Callable[..., object], failed: str, error: object) -> None:
    """A job may have taken the right to write from its own folders."""
    path = Path(failed)
    with suppress(OSError):
        path.parent.chmod(stat.S_IRWXU)
        if path.is_dir() and not path.is_symlink():
            path.chmod(stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
