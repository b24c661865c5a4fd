"""The best of many runs by one metric."""

from __future__ import annotations

import difflib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ml.backends.base import Run
from ml.backends.local.pipelines import reuse
from ml.backends.local.runs.listing import Entry, entry_of
from ml.backends.local.tracking import history
from ml.core.errors import Problem, Refused
from ml.sweeps.objective import Goal, score

GOALS = ("maximize", "minimize")


@dataclass(frozen=True)
class Ranking:
    """Completed runs, trials and steps that logged the metric as a number, the best first."""

    metric: str
    goal: str
    runs: Sequence[Run]


def rank(found: Sequence[Entry], metric: str | None, goal: str | None) -> Ranking:
    """Rank what completed; a sweep and a pipeline count by their parts, each once.

    Without `metric` and `goal` they are those of the latest sweep among the entries. What a step
    took over counts only where it was made, unless one run alone is asked for. Raises Refused when
    nothing settles metric and goal, or when nothing that completed has the metric.
    """
    if len(found) == 1:
        found = [replace(found[0], run=_with_originals(found[0].run))]
    candidates = [run for entry in found for run in _leaves(entry.run)]
    done = [run for run in candidates if run.status == "Completed" and not run.reused_from]
    if metric is not None and not any(metric in run.metrics for run in done):
        raise Refused(nothing(metric, done))
    metric, goal = objective(found, metric, goal)
    scored = [run for run in done if math.isfinite(run.metrics.get(metric, math.nan))]
    if not scored:
        raise Refused(nothing(metric, done))
    sign = -1 if goal == "maximize" else 1
    ordered = sorted(scored, key=lambda run: (sign * run.metrics[metric], run.started))
    return Ranking(metric, goal, ordered)


def different_data(found: Iterable[Run]) -> bool:
    """Whether the runs were made from different data: then they do not compare."""
    seen = set()
    for run in found:
        data = (entry_of(run).lineage.get("data") or {}).items()
        seen.add(tuple(sorted((name, str(one.get("digest") or one)) for name, one in data)))
    return len(seen) > 1


def _leaves(run: Run) -> Iterator[Run]:
    """The parts that logged for themselves: a sweep's own metrics are its best trial's."""
    parts = (*run.steps, *run.trials)
    if not parts:
        yield run
    for part in parts:
        yield from _leaves(part)


def _with_originals(run: Run) -> Run:
    """The run with what its steps took over, as far as that is still here, in their place."""
    if run.reused_from:
        return reuse.writer(run) or run
    return replace(run, steps=tuple(_with_originals(step) for step in run.steps))


def value(run: Run, metric: str, goal: str) -> float | None:
    """What the run is worth by the metric, as its sweep ranks it: the best that it ever logged.

    None when it logged none, NaN when one value was no finite number: it has diverged.
    """
    try:
        curve = history.curve(run.id, metric)
    except sqlite3.Error:
        curve = []
    if not curve:
        return run.metrics.get(metric)
    found = score(curve, cast(Goal, goal))
    return math.nan if found is None else found


def objective(found: Sequence[Entry], metric: str | None, goal: str | None) -> tuple[str, str]:
    """The metric and the goal: those given, else those of the first sweep among the entries.

    Raises Refused when that does not settle them.
    """
    asked = [one for one in _objectives(found) if metric in (None, one[0])]
    if metric is None:
        if not asked:
            raise Refused(
                Problem(
                    "which-metric",
                    "no sweep is among these runs, so nothing says which metric decides",
                    "the name of a metric that they logged",
                    f"add --metric NAME; they logged: {_listed(_logged(found))}",
                )
            )
        return asked[0][0], goal or asked[0][1]
    if goal is None and not asked:
        raise Refused(
            Problem(
                "which-goal",
                f"no sweep among these runs says whether more or less `{metric}` is better",
                " or ".join(GOALS),
                f"add --goal {GOALS[0]} or --goal {GOALS[1]}",
            )
        )
    return metric, goal or asked[0][1]


def _objectives(found: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Those of the sweeps among the entries and among their steps, in order."""
    for entry in found:
        steps = (entry_of(part) for part in entry.run.below() if part.trials)
        for one in (entry, *steps):
            if one.objective:
                yield one.objective


def _logged(found: Iterable[Entry]) -> set[str]:
    return {name for entry in found for run in _leaves(entry.run) for name in run.metrics}


def nothing(metric: str, done: Sequence[Run]) -> Problem:
    """Why none of the completed runs can be ranked by the metric."""
    logged = {name for run in done for name in run.metrics}
    near = difflib.get_close_matches(metric, sorted(logged), n=1)
    return Problem(
        "nothing-to-rank",
        f"none of {len(done)} completed runs and trials logged `{metric}` as a number",
        f"one of: {_listed(logged)}",
        f"did you mean --metric {near[0]}?" if near else "ml runs list shows what there is",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no metric at all"
