"""The runs of this machine for somebody who looks for one: what they were made of, and filters.

Reads records alone, never MLflow: a thousand runs are listed in a fraction of a second.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from ml.backends.base import Run, Status
from ml.backends.local.resume.recovery import OPEN, as_it_is
from ml.backends.local.runs import records
from ml.backends.local.tracking import history
from ml.core import home

STATUSES: tuple[Status, ...] = ("Queued", "Running", "Completed", "Failed", "Canceled")


@dataclass(frozen=True)
class Entry:
    """A run, whether it is a command, a sweep or a pipeline, and where it came from."""

    run: Run
    kind: str
    lineage: Mapping[str, Any]

    @property
    def project(self) -> str:
        """The folder under ml/projects that the spec lies in; "" when it lies elsewhere."""
        parts = PurePath(str(self.lineage.get("spec", ""))).parts
        after = dict(pairwise(parts))
        return after.get("projects", "")

    @property
    def objective(self) -> tuple[str, str] | None:
        """A sweep's primary metric and its goal."""
        found = self.lineage.get("objective")
        return (found["primary_metric"], found["goal"]) if found else None

    @property
    def display_name(self) -> str:
        """What the spec calls the job; a spec that does not is called by its file."""
        return str(self.lineage.get("display_name") or "")

    @property
    def tags(self) -> Mapping[str, str]:
        """The spec's."""
        return dict(self.lineage.get("tags") or {})

    def belongs_to(self, project: str) -> bool:
        """Whether the spec or, for one run from inside the project, the experiment is of it."""
        return project in (self.project, self.run.experiment.replace("-", "_"))


def entries() -> list[Entry]:
    """Every run that left a record, the latest first; parts stay in their runs."""
    if not home.jobs().is_dir():
        return []
    found = []
    for folder in home.jobs().iterdir():
        # Without a record it is being made at this moment, or was killed before its first.
        with suppress(OSError, ValueError, KeyError):
            document = records.document(folder)
            run = as_it_is(records.from_json(folder, document))
            found.append(Entry(run, document["kind"], document["lineage"]))
    return sorted(found, key=lambda entry: (-entry.run.started, entry.run.name))


def torn(listed: Iterable[Entry]) -> list[str]:
    """The names of the runs that are not among the entries because their record is not whole."""
    known = {entry.run.name for entry in listed}
    found = (folder.name for folder in home.jobs().glob("*") if folder.name not in known)
    return sorted(name for name in found if records.is_torn(home.jobs() / name))


def entry_of(run: Run) -> Entry:
    """The entry of a run that was found before; a step or a trial has one too.

    One that was never started has no record of its own, and came from nowhere.
    """
    try:
        document = records.document(run.folder)
    except FileNotFoundError:
        return Entry(run, "command", {})
    return Entry(run, document["kind"], document["lineage"])


def chosen(
    found: Iterable[Entry],
    *,
    experiment: str | None = None,
    project: str | None = None,
    statuses: Collection[str] = (),
    since: float | None = None,
    display_name: str | None = None,
    tags: Mapping[str, str | None] | None = None,
) -> list[Entry]:
    """The entries that pass every filter that is given, in order; `since` in epoch seconds.

    A tag's value is None where any will do.
    """
    tests: list[Callable[[Entry], bool]] = []
    if experiment is not None:
        tests.append(lambda entry: entry.run.experiment == experiment)
    if project is not None:
        tests.append(lambda entry: entry.belongs_to(project))
    if statuses:
        tests.append(lambda entry: entry.run.status in statuses)
    if since is not None:
        tests.append(lambda entry: entry.run.started >= since)
    if display_name is not None:
        tests.append(lambda entry: entry.display_name == display_name)
    if tags:
        tests.append(
            lambda entry: all(
                key in entry.tags and value in (None, entry.tags[key])
                for key, value in tags.items()
            )
        )
    return [entry for entry in found if all(test(entry) for test in tests)]


def with_latest_metrics(run: Run) -> Run:
    """While the run goes on its record has no metrics yet: they are read from the store."""
    if run.status not in OPEN:
        return run
    with suppress(sqlite3.Error):
        return replace(run, metrics=history.latest(run.id))
    return run
