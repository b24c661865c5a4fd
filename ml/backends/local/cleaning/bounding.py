"""The home of the runs is kept within a bound: bulky outputs of old runs go before it is passed.

Records, logs, metrics and parameters stay: a run whose outputs went can be read and run again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ml.backends import ranking
from ml.backends.base import Entry, Run
from ml.backends.local.cleaning import cleaning, disk
from ml.backends.local.cleaning.keeping import Keeping
from ml.backends.local.environments import building
from ml.backends.local.resume.resumption import was_stopped
from ml.backends.local.runs.store import LocalRuns
from ml.backends.storage import Cleaning, Item, Needed, Usage
from ml.core import home
from ml.core.errors import Problem, Refused

VARIABLE = "MLOPS_DISK_LIMIT"
# A tenth of the disk, between what a small project needs and what nobody would miss.
SHARE, LEAST, MOST = 0.1, 5e9, 50e9
# How far below the bound things are brought, so that not every run has to make room.
TARGET = 0.9
# In a run's folder: why its outputs are not there.
EVICTED = "evicted.json"
_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?$", re.I)


def limit() -> float | None:
    """The bound in bytes; None when MLOPS_DISK_LIMIT is `none`. Refused when it is no size."""
    given = os.environ.get(VARIABLE, "").strip()
    if given.lower() == "none":
        return None
    if not given:
        there = next(path for path in (home.home(), *home.home().parents) if path.exists())
        return max(LEAST, min(MOST, SHARE * shutil.disk_usage(there).total))
    match = _SIZE.fullmatch(given)
    if match is None:
        hint = "`none` takes the bound away"
        found = f"{VARIABLE}={given}"
        raise Refused(Problem("not-a-size", found, "a size such as 500MB, 20GB", hint))
    return float(match[1]) * _UNITS[(match[2] or "").upper()]


def measure() -> Usage:
    """What is taken and what may be; nothing goes yet."""
    return Usage(disk.taken(home.home()), limit(), Cleaning((), 0, {}))


def plan(measured: Usage, needed: Needed, reads: Iterable[Path] = ()) -> Usage:
    """What goes until the home is within its bound again, the least missed first.

    Copies that nothing refers to, then the outputs of runs, the oldest first, then environments
    that can be built again. Never what `needed` names, a run that goes on or that another one
    refers to, one that is kept, the latest, the best of an experiment (of these two the outputs of
    trials that were not the best may go), nor what the next run `reads`.
    """
    if not measured.is_over or measured.limit is None:
        return measured
    excess = measured.taken - TARGET * measured.limit
    paths = {**needed.paths, **dict.fromkeys(reads, "the next run reads it")}
    needed = replace(needed, paths=paths)
    orphans = cleaning.plan(needed)
    items, freed = list(orphans.items), orphans.frees
    every = LocalRuns().entries()
    stay = Keeping(needed, every).settle(every)
    for item in [*_outputs(every, stay), *_environments()]:
        if freed >= excess:
            break
        gives = disk.freed(item.paths)
        if gives:
            items.append(item)
            freed += gives
    return replace(measured, cleaning=Cleaning(tuple(items), freed, stay))


def carry_out(bound: Usage, still: Usage) -> tuple[int, list[str]]:
    """Remove what goes and is `still` to go; bytes freed, and what went wrong."""
    freed, wrong = cleaning.remove(bound.cleaning, still.cleaning)
    for item in bound.cleaning.items:
        folder = home.jobs() / item.name
        if item.kind == "outputs" and folder.is_dir():
            said = {"at": time.time(), "bytes": item.size, "why": item.why}
            (folder / EVICTED).write_text(json.dumps(said) + "\n")
    return freed, wrong


def evicted(run: Run) -> float | None:
    """When outputs of the run, or of the one that it is a part of, went for the bound."""
    inside = run.folder.relative_to(home.jobs()).parts
    try:
        return float(json.loads((home.jobs() / inside[0] / EVICTED).read_text())["at"])
    except (OSError, ValueError, KeyError):
        return None


def _outputs(every: Sequence[Entry], stay: dict[str, str]) -> Iterator[Item]:
    """The outputs of each run that may go, the oldest first; last those that may be resumed."""
    prized = _prized(every)
    for entry in sorted(every, key=lambda one: (was_stopped(one.run), one.run.started)):
        run = entry.run
        if run.name in stay:
            continue
        parts = [run, *run.below()]
        if run.name in prized:
            parts = [trial for sweep in parts for trial in sweep.trials if trial.name != sweep.best]
        paths = tuple(path for part in parts for path in _bulky(part))
        if paths:
            why = "trials that were not the best" if run.name in prized else "an old run"
            yield Item("outputs", run.name, paths, disk.taken(*paths), why)


def _prized(every: Sequence[Entry]) -> set[str]:
    """The latest run, and of each experiment the best, or the latest where nothing is best."""
    found = {every[0].run.name} if every else set()
    for experiment in {entry.run.experiment for entry in every}:
        members = [entry for entry in every if entry.run.experiment == experiment]
        try:
            best = ranking.rank(LocalRuns(), members, None, None).runs[0]
            found.add(best.folder.relative_to(home.jobs()).parts[0])
        except Refused:
            done = [entry.run.name for entry in members if entry.run.status == "Completed"]
            found |= set(done[:1])
    return found


def _bulky(run: Run) -> Iterator[Path]:
    folders = [run.folder / name for name in ("outputs", "inputs", "work")]
    folders += home.artifacts().glob(f"*/{run.id}") if run.id else []
    yield from (path for path in folders if path.is_dir())


def _environments() -> Iterator[Item]:
    """Those that nobody works in, the one that was used longest ago first."""
    if home.environments().is_dir():
        places = [path for path in home.environments().iterdir() if not path.name.startswith(".")]
        for place in sorted(places, key=lambda path: path.stat().st_mtime):
            if not building.is_used(place.name):
                why = "it can be built again"
                yield Item("environment", place.name, (place,), disk.taken(place), why)
