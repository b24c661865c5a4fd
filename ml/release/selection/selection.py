"""Rank trials by a weighted score and by their primary metric.

`choose` reads the trials' logged metrics; `select` is a pure function.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge
from pathlib import Path
from typing import Literal, cast

from ml.backends import ranking
from ml.backends.base import Backend
from ml.backends.runs import Entry, Run, RunStore
from ml.backends.runs import original as find_original
from ml.core.errors import UserError
from ml.release.selection.weights import FILE, TERMS, Weights
from ml.release.selection.weights import read as read_weights
from policies.promotion.decision import listed

Goal = Literal["maximize", "minimize"]
NOT_LOGGED = "not logged"


@dataclass(frozen=True)
class Candidate:
    """The measurements of a trial."""

    name: str
    label: str  # its name in sentences
    # None for a term that it did not log. `quality`: the primary metric; `latency`: milliseconds;
    # `cost`: seconds of a node; `stability`: the standard deviation over seeds or folds.
    terms: Mapping[str, float | None]


@dataclass(frozen=True)
class Ranked:
    """A candidate with its ranks, counted from 1; equal candidates share the better rank."""

    candidate: Candidate
    parts: Mapping[str, float]  # term → its signed contribution to the score
    score: float | None  # None if a term with a weight is missing
    by_score: int | None  # rank by the score, None without one
    by_metric: int  # rank by the primary metric
    on_front: bool | None  # whether it is on the Pareto front; None if a term is missing
    missing: Mapping[str, str] = field(default_factory=dict)  # missing term → reason


@dataclass(frozen=True)
class Selection:
    """The ranked candidates, and the terms that rank them."""

    metric: str  # the primary metric
    goal: Goal
    weights: Weights
    ranked: tuple[Ranked, ...]  # by score; then those without a score, by the metric
    left_out: Mapping[str, str]  # term that no candidate has → reason; no score contains it
    compared: tuple[str, ...]  # terms of the Pareto front, whatever their weights

    @property
    def by_score(self) -> Ranked | None:
        """The first by the score; the metric breaks ties. None if no trial has a score."""
        return next((ranked for ranked in self.ranked if ranked.score is not None), None)

    @property
    def by_metric(self) -> Ranked:
        """The first by the primary metric; the score breaks ties."""
        return min(self.ranked, key=lambda ranked: ranked.by_metric)

    def behind(self, ranked: Ranked) -> float | None:
        """Return the best score minus the trial's score; None without a score."""
        best = self.by_score
        if ranked.score is None or best is None or best.score is None:
            return None
        return best.score - ranked.score


@dataclass(frozen=True)
class Selected:
    """A selection with its runs."""

    selection: Selection
    runs: dict[str, Run]  # by name
    project: str  # "" if no project in the repository has the runs
    notes: tuple[str, ...]  # sentences for a reader


def choose(
    backend: Backend, selected: Sequence[Run], metric: str | None = None, goal: str | None = None
) -> Selected:
    """Rank the trials of sweeps and pipelines, and single runs, by their project's weights.

    Raises UserError if the deciding metric is unknown, if no completed run logged it, if the runs
    are of several projects, or if select.yml is invalid.
    """
    store, projects = backend.runs, backend.root / "ml" / "projects"
    entries = [entry for run in selected for entry in _sources(store, run)]
    metric, goal = ranking.objective(store, entries, metric, goal)
    project = _project(projects, entries)
    weights = read_weights(projects / project if project else None)
    runs = {run.name: run for entry in entries for run in entry.run.trials or (entry.run,)}
    is_sweep = len(entries) == 1 and bool(entries[0].run.trials)
    completed = [run for run in runs.values() if run.status == "Completed"]
    candidates = [_candidate(store, run, is_sweep, metric, goal, weights) for run in completed]
    try:
        selection = select(candidates, weights, metric, cast(Goal, goal))
    except ValueError:
        raise UserError(ranking.nothing_to_rank(metric, completed)) from None
    notes = [*_unranked(selection, candidates), *_unfinished(list(runs.values()))]
    if not weights.source:
        where = f"ml/projects/{project}" if project else "the project's folder"
        notes.append(f"only quality counts: there is no {FILE} in {where}")
    if ranking.different_data(store, completed):
        notes.append("they were not all made from the same data (ml runs show RUN)")
    ranked = {row.candidate.name: runs[row.candidate.name] for row in selection.ranked}
    return Selected(selection, ranked, project, tuple(notes))


def _sources(store: RunStore, run: Run) -> Iterator[Entry]:
    """Yield the sweep or single run; of a pipeline its sweeps, or else its steps with a model."""
    original = find_original(store, run)
    if not original.steps:
        entry = store.entry(original)
        sweep = store.parent(original)
        if sweep is not None and sweep.trials and not entry.objective:
            lineage = store.entry(sweep).lineage
            objective = {"objective": lineage.get("objective")}
            entry = Entry(original, entry.kind, {**lineage, **entry.lineage, **objective})
        yield entry
        return
    steps = original.steps
    sweeps = [step for step in steps if step.steps or find_original(store, step).trials]
    for step in sweeps or [step for step in steps if "model" in step.outputs]:
        yield from _sources(store, step)


def _candidate(
    store: RunStore, run: Run, is_sweep: bool, metric: str, goal: str, weights: Weights
) -> Candidate:
    latency = run.metrics.get(weights.latency.metric)
    training = run.metrics.get(weights.cost.training)
    prediction = run.metrics.get(weights.cost.prediction) if weights.cost.predictions else 0.0
    cost = None
    if training is not None and prediction is not None:
        cost = training + weights.cost.predictions * prediction / 1000
    terms = {
        "quality": ranking.value(store, run, metric, goal),
        "latency": latency,
        "cost": cost,
        "stability": run.metrics.get(weights.stability.metric or f"{metric}_std"),
    }
    label = f"trial {run.name.rpartition('_')[2]}" if is_sweep else run.name
    return Candidate(run.name, label, terms)


def _project(folder: Path, entries: Sequence[Entry]) -> str:
    projects = sorted({entry.project for entry in entries} - {""})
    if len(projects) > 1:
        raise UserError.with_code(
            "several-projects",
            f"the runs are of {', '.join(projects)}",
            "runs of one project: weights differ by project",
            "ml select RUN, once for each project",
        )
    return projects[0] if projects and (folder / projects[0]).is_dir() else ""


def _unranked(selection: Selection, candidates: Sequence[Candidate]) -> Iterator[str]:
    ranked = {row.candidate.name for row in selection.ranked}
    unranked = [trial.label for trial in candidates if trial.name not in ranked]
    if unranked:
        yield f"{listed(unranked)}: not ranked, no usable {selection.metric}"


def _unfinished(every: Sequence[Run]) -> Iterator[str]:
    counts = Counter(
        f"stopped early by {run.ended_by}" if run.ended_by else run.status.lower()
        for run in every
        if run.status != "Completed"
    )
    if counts:
        yield "not ranked: " + ", ".join(f"{number} {how}" for how, number in counts.items())


def select(candidates: Sequence[Candidate], weights: Weights, metric: str, goal: Goal) -> Selection:
    """Rank by score and by metric, and find the Pareto front.

    A value that is NaN, infinite, or negative (but for the quality) counts as missing. A candidate
    without a usable quality is left out; raises ValueError when no candidate has one.
    """
    faults = {trial.name: _faults(trial, weights) for trial in candidates}
    measured = [trial for trial in candidates if "quality" not in faults[trial.name]]
    if not measured:
        raise ValueError(f"no candidate has a usable {metric}")
    left_out: dict[str, str] = {}
    for term in TERMS:
        if all(term in faults[trial.name] for trial in measured):
            reasons = {faults[trial.name][term] for trial in measured}
            left_out[term] = reasons.pop() if len(reasons) == 1 else "missing or unusable"
    terms = [term for term in TERMS if term not in left_out]
    parts = {
        trial.name: {
            term: _part(trial, term, weights, goal)
            for term in terms
            if term not in faults[trial.name]
        }
        for trial in measured
    }
    scores = {
        name: math.fsum(contributions.values())
        for name, contributions in parts.items()
        if all(term in contributions or not weights.term(term).weight for term in terms)
    }
    qualities = {
        trial.name: _sign("quality", goal) * _value(trial, "quality") for trial in measured
    }
    by_score, by_metric = _ranks(scores), _ranks(qualities)
    front = _front(measured, terms, faults, goal)
    ranked = [
        Ranked(
            candidate=trial,
            parts=parts[trial.name],
            score=scores.get(trial.name),
            by_score=by_score.get(trial.name),
            by_metric=by_metric[trial.name],
            on_front=front.get(trial.name),
            missing={term: why for term, why in faults[trial.name].items() if term not in left_out},
        )
        for trial in measured
    ]
    ranked.sort(key=lambda entry: (entry.by_score is None, entry.by_score or 0, entry.by_metric))
    return Selection(metric, goal, weights, tuple(ranked), left_out, tuple(terms))


def _faults(candidate: Candidate, weights: Weights) -> Mapping[str, str]:
    """Return the terms of a candidate that cannot be used, and why."""
    faults = {}
    for term in TERMS:
        value = candidate.terms.get(term)
        if value is None:
            faults[term] = NOT_LOGGED
        elif math.isnan(value):
            faults[term] = "NaN"
        elif math.isinf(value):
            faults[term] = "infinite"
        elif value < 0 and term != "quality":
            faults[term] = "negative"
        # A sum of four of them must stay finite.
        elif (
            abs(value) / weights.term(term).reference * max(1.0, weights.term(term).weight) > 1e300
        ):
            faults[term] = "too large"
    return faults


def _sign(term: str, goal: Goal) -> int:
    return 1 if term == "quality" and goal == "maximize" else -1


def _value(candidate: Candidate, term: str) -> float:
    value = candidate.terms[term]
    assert value is not None  # candidates with a missing value were left out before
    return value


def _part(candidate: Candidate, term: str, weights: Weights, goal: Goal) -> float:
    setting = weights.term(term)
    value = _sign(term, goal) * setting.weight * _value(candidate, term) / setting.reference
    return value + 0.0  # turns −0.0 into 0.0


def _ranks(values: Mapping[str, float]) -> Mapping[str, int]:
    """Return name → rank from 1; the largest value has rank 1."""
    ordered = sorted(-value for value in values.values())
    return {name: 1 + bisect_left(ordered, -value) for name, value in values.items()}


def _front(
    candidates: Sequence[Candidate],
    terms: Sequence[str],
    faults: Mapping[str, Mapping[str, str]],
    goal: Goal,
) -> Mapping[str, bool]:
    """Return name → whether no other candidate dominates it, for those with every term."""
    points = {
        candidate.name: tuple(_sign(term, goal) * _value(candidate, term) for term in terms)
        for candidate in candidates
        if not any(term in faults[candidate.name] for term in terms)
    }
    front: set[tuple[float, ...]] = set()
    # A dominating point comes first in this order: it is larger in the first differing coordinate.
    for point in sorted(set(points.values()), reverse=True):
        if not any(all(map(ge, member, point)) for member in front):
            front.add(point)
    return {name: point in front for name, point in points.items()}
