"""A sweep and its trials, gathered from the record and from what MLflow was told."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ml.backends.base import Run
from ml.backends.local.sweeps import sampled
from ml.reports import recorded
from ml.reports.privacy import headline, shown
from ml.reports.recorded import Curve
from ml.specs.plan.plan import Value
from ml.specs.search.domain import Sample
from ml.sweeps.objective import Goal, best, score

Outcome = Literal["completed", "stopped", "unranked", "failed", "canceled", "running"]
POLICIES = frozenset({"median_stopping", "bandit", "truncation_selection"})


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep: `value` is the best that it logged of the primary metric.

    It is None when nothing finite was logged. Only `completed` trials are ranked; one that
    completed without a rank (a NaN, no metric) is `unranked`. `why` is the verdict of the policy
    that stopped it, or what went wrong.
    """

    number: int
    run: Run
    outcome: Outcome
    curve: Curve
    value: float | None
    why: str = ""
    sample: Sample | None = None

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where its values came from (see `ml.reports.origins`); empty when nobody recorded it."""
        return self.sample.origin if self.sample else {}

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        return None if self.run.ended is None else self.run.ended - self.run.started


@dataclass(frozen=True)
class Sweep:
    """A sweep's trials in the order in which they started.

    `varied` are the parameters in which they differ, `alike` those that all were given the same.
    """

    metric: str
    goal: Goal
    trials: tuple[Trial, ...]
    best: Trial | None
    varied: tuple[str, ...]
    alike: Mapping[str, Value]
    sampling: str

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """The completed trials, best first; the earlier one of equals comes first."""
        sign = -1 if self.goal == "maximize" else 1
        ranked = [trial for trial in self.trials if trial.outcome == "completed"]
        return tuple(sorted(ranked, key=lambda trial: sign * (trial.value or 0.0)))

    def of(self, *outcomes: Outcome) -> tuple[Trial, ...]:
        """The trials that ended in one of these ways."""
        return tuple(trial for trial in self.trials if trial.outcome in outcomes)


def sweep_of(run: Run, lineage: Mapping[str, Any], notes: list[str]) -> Sweep:
    """The trials of a sweep's run; what cannot be read is said in `notes`."""
    objective = lineage.get("objective") or {}
    metric = str(objective.get("primary_metric") or "the primary metric")
    goal: Goal = "minimize" if objective.get("goal") == "minimize" else "maximize"
    ids = [trial.id for trial in run.trials]
    try:
        curves, stopped = recorded.curves(ids, metric), recorded.tag(ids, "ended_by")
    except sqlite3.Error as error:
        notes.append(
            f"The tracking store cannot be read ({error}): a trial's value is the last that it "
            "logged, not its best, and there are no learning curves"
        )
        curves, stopped = {}, {}
    trials = tuple(
        _trial(number, trial, metric, goal, curves.get(trial.id), stopped.get(trial.id, ""))
        for number, trial in enumerate(run.trials)
    )
    varied, alike = _parameters([trial.run for trial in trials])
    sampling = lineage.get("sampling") or {}
    said = [str(sampling.get("algorithm", "")), f"seed {sampling['seed']}" if sampling else ""]
    return Sweep(
        metric=metric,
        goal=goal,
        trials=trials,
        best=next((trial for trial in trials if trial.run.name == run.best), None),
        varied=varied,
        alike=alike,
        sampling=", ".join(word for word in said if word),
    )


def _trial(
    number: int, run: Run, metric: str, goal: Goal, curve: Curve | None, stopped: str
) -> Trial:
    if curve is None:
        curve = ((0, run.metrics[metric]),) if metric in run.metrics else ()
    values = [value for _, value in curve]
    finite = [value for value in values if math.isfinite(value)]
    ranked = score(values, goal)
    ended: Outcome
    if run.status == "Completed":
        ended = "completed" if ranked is not None else "unranked"
    elif run.status == "Failed":
        ended = "failed"
    elif run.status == "Canceled":
        ended = "stopped" if run.ended_by in POLICIES else "canceled"
    else:
        ended = "running"
    why = stopped or run.ended_by
    problem = run.error or next(iter(run.warnings), None)
    if ended in {"failed", "unranked"} and problem:
        why = f"{problem.code}: {headline(problem)}"
    value = best(finite, goal) if finite else None
    sample = sampled.read(run.folder)
    return Trial(number, _apart(run, sample), ended, curve, value, why, sample)


def _apart(run: Run, sample: Sample | None) -> Run:
    """A nested choice as a parameter for each of its names: `model.kind`, `model.depth`."""
    sampled_as = sample.values if sample else {}
    apart: dict[str, Value] = {}
    for name, value in run.parameters.items():
        nested = sampled_as.get(name)
        apart |= dict(_leaves(name, nested)) if isinstance(nested, Mapping) else {name: value}
    return replace(run, parameters=apart)


def _leaves(name: str, value: object) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _leaves(f"{name}.{key}", inside)
    else:
        yield name, value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _parameters(trials: Sequence[Run]) -> tuple[tuple[str, ...], Mapping[str, Value]]:
    """The names whose values differ (or that not every trial has), and the others' values."""
    found = dict.fromkeys(name for trial in trials for name in trial.parameters)
    roots = list(dict.fromkeys(name.partition(".")[0] for name in found))
    # What lies in another branch of a choice stands beside this one's.
    names = sorted(found, key=lambda name: roots.index(name.partition(".")[0]))
    alike: dict[str, Value] = {}
    for name in names:
        values = [trial.parameters.get(name) for trial in trials]
        first = values[0]
        if len(trials) > 1 and first is not None and all(_same(first, one) for one in values):
            alike[name] = shown(name, first)
    return tuple(name for name in names if name not in alike), alike


def _same(one: object, other: object) -> bool:
    # True equals 1 to Python.
    return type(one) is type(other) and one == other
