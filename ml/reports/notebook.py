"""Show a run in Jupyter: its status, duration and metrics, and those of its trials and steps.

from ml.reports.notebook import run

run("calm_river_03").watch()
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from markupsafe import Markup

from ml.backends.base import Backend
from ml.backends.choice import open_backend
from ml.backends.runs import OPEN, Patience, Run, TrackingUnavailable
from ml.core.errors import UserError
from ml.core.terminal import printable
from ml.reports.formatting import duration, headline, number
from ml.reports.markup import tag

# Maximum steps and trials shown, metrics of the run, and metrics of a step or trial.
CHILDREN, METRICS, METRICS_OF_CHILD = 50, 20, 3
# Seconds between two updates, unless the backend's polling interval is longer.
UPDATE_S = 1.0


def run(name: str = "latest", on: str = "local") -> RunView:
    """Return the run with that name or id, which a notebook cell displays as a table.

    `on` is a backend as in `--on`. Raises UserError for an unknown run or backend.
    """
    backend = open_backend(on)
    return RunView(backend, backend.runs.find(name))


class RunView:
    """A run that Jupyter displays as a table; each display reloads a run that has not ended."""

    def __init__(self, backend: Backend, run: Run) -> None:
        self._backend, self.run = backend, run
        entry = backend.runs.entry(run)
        self._kind, self._page = entry.kind, str(entry.lineage.get("studio") or "")
        self._primary = entry.objective[0] if entry.objective else ""

    def watch(self) -> None:
        """Show the run and update the table in place until the run ends.

        Interrupting the kernel stops the updates, not the run. Raises ModuleNotFoundError without
        IPython, and UserError if the run can no longer be read.
        """
        from IPython.display import display

        store, name = self._backend.runs, self.run.name
        again = f'run("{name}", on="{self._backend.name}").watch()'
        patience = Patience(store, name, again, lambda line: print(line, file=sys.stderr))
        self.run = store.find(self.run.id or name)
        handle = display(self._contents(), raw=True, display_id=True)
        while self.run.status in OPEN:
            time.sleep(max(store.poll_s, UPDATE_S))
            try:
                self.run = store.find(self.run.id or name)
            except UserError as refused:
                patience.endure(refused)
                continue
            patience.seen()
            handle.update(self._contents(), raw=True)

    def __repr__(self) -> str:
        return printable(f"{self.run.name}: {self.run.status}, {duration(self.run.active_s)}")

    def _repr_html_(self) -> str:
        if self.run.status in OPEN:
            self.run = self._backend.runs.find(self.run.id or self.run.name)
        return self._html()

    def _contents(self) -> dict[str, str]:
        """Return the run as HTML and as text by MIME type, for IPython's `display`."""
        return {"text/html": self._html(), "text/plain": repr(self)}

    def _html(self) -> str:
        run = self.run
        rows = [_row("status", _outcome(run)), _row("took", duration(run.active_s))]
        rows += [_row("error", f"{run.error.code}: {headline(run.error)}")] if run.error else []
        if self._page.startswith("https://"):
            # noopener: the opened page must not control the notebook's window.
            link = tag("a", self._page, href=self._page, target="_blank", rel="noopener")
            rows.append(_row("studio", link))
        metrics = self._metrics(run)
        names = self._names(metrics)
        rows += [_row(name, number(metrics[name])) for name in names[:METRICS]]
        if len(names) > METRICS:
            rows.append(_row("metrics", f"and {len(names) - METRICS} more"))
        title = tag("strong", f"{run.name} ({self._kind}, {run.experiment})")
        # Keep MathJax from typesetting names that look like formulas: formulas may contain links.
        attributes = {"class_": "tex2jax_ignore mathjax_ignore"}
        return str(tag("div", title, tag("table", *rows), self._children(), **attributes))

    def _children(self) -> Markup:
        """Return a table of the run's steps and trials, including nested ones; "" without any."""
        children = [*self.run.below()]
        if not children:
            return Markup("")

        def last(child: Run) -> tuple[bool, bool]:
            return child.name != self.run.best, child.status not in OPEN

        # Of too many, keep the best, then the running ones, then the latest.
        latest = children[::-1]
        chosen = {child.name for child in sorted(latest, key=last)[:CHILDREN]}
        head = tag("tr", *(tag("th", text) for text in ("run", "status", "took", "metrics")))
        rows = [self._child(child) for child in children if child.name in chosen]
        more = len(children) - len(rows)
        note = tag("div", f"and {more} more: ml runs show {self.run.name} --json") if more else ""
        return tag("div", tag("table", head, *rows), note)

    def _child(self, child: Run) -> Markup:
        metrics = self._metrics(child)
        names = self._names(metrics)[:METRICS_OF_CHILD]
        best = ", the best" if child.name == self.run.best else ""
        cells = (
            child.name,
            _outcome(child) + best,
            # A step without an id was never started.
            duration(child.active_s) if child.id else "",
            ", ".join(f"{name}={number(metrics[name])}" for name in names),
        )
        return tag("tr", *(tag("td", cell) for cell in cells))

    def _metrics(self, run: Run) -> Mapping[str, float]:
        """Return a run's metrics so far; for running steps and trials only if no request is needed.

        Otherwise they are as of the last reload.
        """
        store = self._backend.runs
        if run.status in OPEN and (run is self.run or store.records is not None):
            with suppress(TrackingUnavailable):
                return store.metrics(run)
        return run.metrics

    def _names(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the metrics' names in alphabetical order, but the primary metric first."""
        return sorted(metrics, key=lambda name: (name != self._primary, name))


def _outcome(run: Run) -> str:
    return f"{run.status} ({run.ended_by})" if run.ended_by else run.status


def _row(label: str, value: object) -> Markup:
    return tag("tr", tag("th", label), tag("td", value))
