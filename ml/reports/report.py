"""From a run to its page: where it lies and what it says first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ml.backends.base import Run
from ml.core import home
from ml.reports import verdict
from ml.reports.facts import gather
from ml.reports.page import page


@dataclass(frozen=True)
class Report:
    """The page of a run, its verdict in plain sentences, and what could not be read."""

    run: Run
    html: str
    sentences: tuple[str, ...]
    notes: tuple[str, ...]


def report(run: Run) -> Report:
    """The report of a run, whatever became of it; reads, and changes nothing."""
    facts = gather(run)
    return Report(run, page(facts), verdict.sentences(facts), facts.notes)


def place(run: Run) -> Path:
    """Where a report goes that nobody names a file for."""
    return home.home() / "reports" / f"{run.name}.html"
