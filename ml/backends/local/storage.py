"""The disk space of this machine's runs, as the port `Storage` offers it.

The home is kept below a limit: the bulky outputs of old runs are removed before it is exceeded.
Records, logs, metrics and parameters stay, so that such a run can be read and run again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ml.backends import ranking
from ml.backends.local import cleaning
from ml.backends.local.cleaning import GRACE_S, KEPT, Retention
from ml.backends.local.environments import building
from ml.backends.local.execution.resumption import was_stopped
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Entry, Run
from ml.backends.storage import Cleaning, Item, Needed, Usage, freed_by, size_of
from ml.core import home
from ml.core.errors import Problem, Refused

VARIABLE = "MLOPS_DISK_LIMIT"
# The default limit: a tenth of the disk, at least enough for a small project, at most 50 GB.
SHARE, LEAST, MOST = 0.1, 5e9, 50e9
# The home is brought to this share of the limit, so that not every run has to make room.
TARGET = 0.9
# In a run's folder: when its outputs were removed, and why.
EVICTED = "evicted.json"
_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?$", re.I)


class LocalStorage:
    """It implements `ml.backends.storage.Storage`, and `Cleaner` too."""

    is_kept = staticmethod(cleaning.is_kept)
    cleaning = staticmethod(cleaning.plan)

    @property
    def cleaner(self) -> LocalStorage:
        return self

    @property
    def grew(self) -> bool:
        return bool(jobs.worked_on)

    def usage(self) -> Usage:
        """Raises Refused when MLOPS_DISK_LIMIT is not a size."""
        return Usage(size_of(home.home()), _limit(), VARIABLE)

    def parts(self) -> Mapping[str, int]:
        if not home.home().is_dir():
            return {}
        sizes: dict[str, int] = {}
        for path in home.home().iterdir():
            is_database = path.name.startswith(home.database().name)
            name = home.database().name if is_database else path.name
            sizes[name] = sizes.get(name, 0) + size_of(path)
        return dict(sorted(sizes.items(), key=lambda part: -part[1]))

    def keep(self, run: Run, keep: bool) -> None:
        if keep:
            (run.folder / KEPT).touch()
        else:
            (run.folder / KEPT).unlink(missing_ok=True)

    def evicted(self, run: Run) -> float | None:
        """The outputs of a step or trial are removed with those of its run."""
        name = run.folder.relative_to(home.jobs()).parts[0]
        try:
            return float(json.loads((home.jobs() / name / EVICTED).read_text())["at"])
        except (OSError, ValueError, KeyError):
            return None

    def eviction(self, usage: Usage, needed: Needed, reads: Iterable[Path] = ()) -> Cleaning:
        """First copies that nothing refers to, then the outputs of runs, the oldest first, then
        environments that can be built again. Never what `needed` names, what the next run `reads`,
        a run that is running, that another run refers to or that a person protects. Of the latest
        run and the best of an experiment, only the outputs of trials that were not the best.
        """
        if not usage.is_over or usage.limit is None:
            return Cleaning((), 0, {}, GRACE_S)
        excess = usage.taken - TARGET * usage.limit
        paths = {**needed.paths, **dict.fromkeys(reads, "the next run reads it")}
        needed = replace(needed, paths=paths)
        orphans = cleaning.plan(needed)
        items, freed = list(orphans.items), orphans.frees
        entries = LocalRuns().entries()
        stay = Retention(needed, entries).stay(entries)
        for item in [*_outputs(entries, stay), *_environments()]:
            if freed >= excess:
                break
            size = freed_by(item.paths)
            if size:
                items.append(item)
                freed += size
        return Cleaning(tuple(items), freed, stay, GRACE_S)

    def remove(self, planned: Cleaning, current: Cleaning) -> tuple[int, list[str]]:
        freed, errors = cleaning.remove(planned, current)
        for item in planned.items:
            folder = home.jobs() / item.name
            if item.kind == "outputs" and folder.is_dir():
                note = {"at": time.time(), "bytes": item.size, "why": item.why}
                (folder / EVICTED).write_text(json.dumps(note) + "\n")
        return freed, errors


def _limit() -> float | None:
    """The limit in bytes; None when MLOPS_DISK_LIMIT is `none`."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.lower() == "none":
        return None
    if not text:
        folder = next(path for path in (home.home(), *home.home().parents) if path.exists())
        return max(LEAST, min(MOST, SHARE * shutil.disk_usage(folder).total))
    match = _SIZE.fullmatch(text)
    if match is None:
        hint = "MLOPS_DISK_LIMIT=none removes the limit"
        expected = "a size such as 500MB, 20GB"
        raise Refused(Problem("not-a-size", f"{VARIABLE}={text}", expected, hint))
    return float(match[1]) * _UNITS[(match[2] or "").upper()]


def _outputs(entries: Sequence[Entry], stay: Mapping[str, str]) -> Iterator[Item]:
    """The outputs of each run that may be evicted, the oldest first; resumable runs come last."""
    valuable = _valuable(entries)
    for entry in sorted(entries, key=lambda entry: (was_stopped(entry.run), entry.run.started)):
        run = entry.run
        if run.name in stay:
            continue
        parts = [run, *run.below()]
        if run.name in valuable:
            parts = [trial for sweep in parts for trial in sweep.trials if trial.name != sweep.best]
        paths = tuple(path for part in parts for path in _bulky(part))
        if paths:
            why = "trials that were not the best" if run.name in valuable else "an old run"
            yield Item("outputs", run.name, paths, size_of(*paths), why)


def _valuable(entries: Sequence[Entry]) -> set[str]:
    """The latest run, and the best of each experiment, or its latest where nothing is ranked."""
    names = {entries[0].run.name} if entries else set()
    for experiment in {entry.run.experiment for entry in entries}:
        members = [entry for entry in entries if entry.run.experiment == experiment]
        try:
            best = ranking.rank(LocalRuns(), members, None, None).runs[0]
            names.add(best.folder.relative_to(home.jobs()).parts[0])
        except Refused:
            completed = [entry.run.name for entry in members if entry.run.status == "Completed"]
            names |= set(completed[:1])
    return names


def _bulky(run: Run) -> Iterator[Path]:
    folders = [run.folder / name for name in ("outputs", "inputs", "work")]
    folders += home.artifacts().glob(f"*/{run.id}") if run.id else []
    yield from (path for path in folders if path.is_dir())


def _environments() -> Iterator[Item]:
    """Built environments that are not in use, the one that was used longest ago first."""
    if home.environments().is_dir():
        folders = [path for path in home.environments().iterdir() if not path.name.startswith(".")]
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime):
            if not building.is_used(folder.name):
                why = "it can be built again"
                yield Item("environment", folder.name, (folder,), size_of(folder), why)
