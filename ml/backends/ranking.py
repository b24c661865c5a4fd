"""Rank runs, trials and steps: choose the metric and its goal, and return a run's value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from ml.backends.runs import Entry, Run, RunStore, TrackingUnavailable
from ml.core.errors import Problem, UserError
from ml.sweeps.objective import Goal, score

GOALS = ("maximize", "minimize")


def different_data(runs: RunStore, ranked: Iterable[Run]) -> bool:
    """Return whether the runs used different data, so that their metrics cannot be compared."""
    data = set()
    for run in ranked:
        inputs = (runs.entry(run).lineage.get("data") or {}).items()
        data.add(
            tuple(sorted((name, str(source.get("digest") or source)) for name, source in inputs))
        )
    return len(data) > 1


def value(runs: RunStore, run: Run, metric: str, goal: str) -> float | None:
    """Return the run's best logged value of the metric, by which a sweep ranks it.

    None if it logged none; NaN if a value is not finite, because the training diverged.
    """
    try:
        curve = [number for _, number in runs.curves([run], metric).get(run.id, ())]
    except TrackingUnavailable:
        curve = []
    if not curve:
        return run.metrics.get(metric)
    best = score(curve, cast(Goal, goal))
    return math.nan if best is None else best


def objective(
    runs: RunStore, entries: Sequence[Entry], metric: str | None, goal: str | None
) -> tuple[str, str]:
    """Return the requested metric and goal, else those of the first sweep among the entries.

    Raise UserError if neither determines them.
    """
    candidates = [pair for pair in _objectives(runs, entries) if metric in (None, pair[0])]
    if metric is None:
        if not candidates:
            actual = "these runs have no sweep that names a metric"
            hint = f"add --metric NAME; they logged: {_listed(_logged(entries))}"
            expected = "the name of a metric that they logged"
            raise UserError(Problem("metric-required", actual, expected, hint))
        return candidates[0][0], goal or candidates[0][1]
    if goal is None and not candidates:
        actual = f"no sweep among these runs has the goal of `{metric}`"
        hint = f"add --goal {GOALS[0]} or --goal {GOALS[1]}"
        raise UserError(Problem("goal-required", actual, " or ".join(GOALS), hint))
    return metric, goal or candidates[0][1]


def nothing_to_rank(metric: str, completed: Sequence[Run]) -> Problem:
    """Return the problem if none of the completed runs has the metric."""
    logged = {name for run in completed for name in run.metrics}
    near = difflib.get_close_matches(metric, sorted(logged), n=1)
    return Problem(
        "metric-not-logged",
        f"none of {len(completed)} completed runs and trials logged `{metric}` as a number",
        f"one of: {_listed(logged)}",
        f"did you mean --metric {near[0]}?" if near else "ml runs list",
    )


def _objectives(runs: RunStore, entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Yield the objectives of the sweeps among the entries and their steps, in order."""
    for entry in entries:
        steps = (runs.entry(part) for part in entry.run.below() if part.trials)
        for sweep in (entry, *steps):
            if sweep.objective:
                yield sweep.objective


def _leaves(run: Run) -> Iterator[Run]:
    """Yield the runs without children; a sweep only has copies of its best trial's metrics."""
    parts = (*run.steps, *run.trials)
    if not parts:
        yield run
    for part in parts:
        yield from _leaves(part)


def _logged(entries: Iterable[Entry]) -> set[str]:
    return {name for entry in entries for run in _leaves(entry.run) for name in run.metrics}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no metric at all"
