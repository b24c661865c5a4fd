"""What may go to make room, and its removal: runs that are asked for, and what nobody refers to."""

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
from ml.backends.local.cleaning.keeping import Keeping, references
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
    """What would go now; `older_than` is the moment (epoch seconds) before which a run is old.

    Runs go when they are beyond the `keep` latest and old; without both, none does, only what
    nobody refers to any more. Reads, and changes nothing.
    """
    every = LocalRuns().entries()
    keeping = Keeping(needed, every)
    asked = _asked(Filter(experiment=experiment).apply(every), keep, older_than)
    stay = keeping.settle(asked)
    going = [entry for entry in asked if entry.run.name not in stay]
    gone = {entry.run.name for entry in going}
    left = [entry for entry in every if entry.run.name not in gone]
    items = [_run(entry, keep, older_than) for entry in going]
    items += _orphans(keeping, left)
    items += _forgotten(gone)
    items += _leftovers(keeping, {entry.run.name for entry in every})
    return Cleaning(tuple(items), disk.freed(path for one in items for path in one.paths), stay)


def remove(cleaning: Cleaning, still: Cleaning) -> tuple[int, list[str]]:
    """Remove the items of `cleaning` that are `still` to go; bytes freed, and what went wrong.

    Each goes in one step: a command that is killed half way leaves no half of a run behind.
    """
    going = {path for item in still.items for path in item.paths}
    wrong: list[str] = []
    trash = Path(tempfile.mkdtemp(prefix=_REMOVING, dir=home.home()))
    for number, item in enumerate(cleaning.items):
        for path in item.paths:
            if path in going and not _is_busy(item):
                try:
                    _move(item, path, trash / f"{number}-{len(list(trash.iterdir()))}-{path.name}")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    wrong.append(str(error))
    freed = disk.freed([trash])
    shutil.rmtree(trash, onerror=_insist)
    if trash.exists():
        wrong.append(f"{trash} could not be removed whole")
    return freed, wrong


def usage() -> dict[str, int]:
    """Bytes of the disk that each part of the home takes, the largest first."""
    if not home.home().is_dir():
        return {}
    found: dict[str, int] = {}
    for path in home.home().iterdir():
        name = home.database().name if path.name.startswith(home.database().name) else path.name
        found[name] = found.get(name, 0) + disk.taken(path)
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _is_busy(item: Item) -> bool:
    return item.kind in {"run", "outputs"} and jobs.is_alive(item.name)


def _move(item: Item, path: Path, to: Path) -> None:
    if item.kind == "environment":
        building.move(path, to)
    else:
        path.rename(to)


def _asked(found: Sequence[Entry], keep: int | None, older_than: float | None) -> list[Entry]:
    if keep is None and older_than is None:
        return []
    beyond = found[keep or 0 :]
    return [
        one
        for one in beyond
        if older_than is None or (one.run.ended or one.run.started) < older_than
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


def _orphans(keeping: Keeping, left: Iterable[Entry]) -> Iterator[Item]:
    """Snapshots and stored models that nothing refers to."""
    found = [references(entry) for entry in left]
    used = {digest for one in found for digest in one.snapshots}
    built = {digest for one in found for digest in one.environments}
    gone = "no run is left of it"
    stores: list[tuple[ItemKind, Path, Callable[[Path], bool], str]] = [
        ("snapshot", home.snapshots(), lambda path: path.name in used, gone),
        ("environment", home.environments(), lambda path: _works(path, built), gone),
        ("model", keeping.needed.models, lambda path: False, "it is no registered version"),
    ]
    for kind, store, is_used, why in stores:
        for path in _listed(store):
            if is_used(path) or path.name.startswith(".") or keeping.is_held(path):
                continue
            yield Item(kind, path.name[:12], (path,), disk.taken(path), why)


def _works(environment: Path, built: set[str]) -> bool:
    return environment.name in built or building.is_used(environment.name)


def _forgotten(gone: set[str]) -> Iterator[Item]:
    """Notes of steps to reuse whose run is gone, or goes."""
    for path in _listed(home.reusable()):
        with suppress(OSError, ValueError, KeyError):
            folder = Path(json.loads(path.read_text())["folder"])
            inside = folder.parts[len(home.jobs().parts) :]
            if not folder.exists() or (inside and inside[0] in gone):
                yield Item("reuse", path.name[:12], (path,), disk.taken(path), "its run goes")


def _leftovers(keeping: Keeping, known: set[str]) -> Iterator[Item]:
    """What programs that were killed left half done."""
    for folder in (home.snapshots(), keeping.needed.models, home.assets(), home.home()):
        for path in _listed(folder):
            half = path.name.startswith((_REMOVING, _UNFINISHED))
            if half and keeping.is_settled(path):
                yield Item(
                    "leftover", path.name, (path,), disk.taken(path), "it was never finished"
                )
    for path in _listed(home.jobs()):
        empty = path.name not in known and not (path / "job.json").exists()
        if empty and not jobs.is_alive(path.name) and keeping.is_settled(path):
            yield Item("leftover", path.name, (path,), disk.taken(path), "it has no record")


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _insist(function: Callable[..., object], failed: str, error: object) -> None:
    """A job may have taken the right to write from its own folders."""
    path = Path(failed)
    with suppress(OSError):
        path.parent.chmod(stat.S_IRWXU)
        if path.is_dir() and not path.is_symlink():
            path.chmod(stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
