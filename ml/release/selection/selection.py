"""Selection: trials ranked by a weighted score beside their primary metric. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Literal

from ml.release.selection.weights import TERMS, Weights

Goal = Literal["maximize", "minimize"]
NOT_LOGGED = "not logged"


@dataclass(frozen=True)
class Candidate:
    """What was measured of a trial, by term; None says that it logged nothing.

    `quality` is the primary metric, `latency` in milliseconds, `cost` in seconds of a node,
    `stability` the standard deviation over seeds or folds. `label` is how people are told of it.
    """

    name: str
    label: str
    terms: Mapping[str, float | None]


@dataclass(frozen=True)
class Ranked:
    """A candidate with its places, which begin at 1; equals share the better one.

    `parts` are the signed terms of the score. `score` and `by_score` are None when a term that
    weighs is missing: `missing` says of each why. `on_front` is whether no other is at least as
    good in everything and better in something, None when that cannot be said.
    """

    candidate: Candidate
    parts: Mapping[str, float]
    score: float | None
    by_score: int | None
    by_metric: int
    on_front: bool | None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """Candidates in the order of their scores, those without one after them by the metric.

    `left_out` are terms that no candidate has, and so no score; `compared` those that the Pareto
    front was found over, whatever their weights.
    """

    metric: str
    goal: Goal
    weights: Weights
    ranked: tuple[Ranked, ...]
    left_out: Mapping[str, str]
    compared: tuple[str, ...]

    @property
    def by_score(self) -> Ranked | None:
        """The first by the score; of equals the one that is better by the metric."""
        return next((ranked for ranked in self.ranked if ranked.score is not None), None)

    @property
    def by_metric(self) -> Ranked:
        """The first by the primary metric; of equals the one with the better score."""
        return min(self.ranked, key=lambda ranked: ranked.by_metric)


def select(candidates: Sequence[Candidate], weights: Weights, metric: str, goal: Goal) -> Selection:
    """Rank by score and by metric, and find the Pareto front.

    A number that is NaN, infinite, or negative where there is no such thing is as good as missing.
    Raises ValueError when no candidate has a usable quality; one without is left out.
    """
    faults = {one.name: _faults(one, weights) for one in candidates}
    measured = [one for one in candidates if "quality" not in faults[one.name]]
    if not measured:
        raise ValueError(f"no candidate has a usable {metric}")
    left_out = {
        term: next(iter(why))
        if len(why := {faults[one.name][term] for one in measured}) == 1
        else "missing or unusable"
        for term in TERMS
        if all(term in faults[one.name] for one in measured)
    }
    terms = [term for term in TERMS if term not in left_out]
    scores: dict[str, float] = {}
    every_part: dict[str, dict[str, float]] = {}
    for one in measured:
        usable = [term for term in terms if term not in faults[one.name]]
        parts = {term: _part(one, term, weights, goal) for term in usable}
        every_part[one.name] = parts
        if all(term in parts or not weights.of(term).weight for term in terms):
            scores[one.name] = math.fsum(parts.values())
    qualities = {one.name: _sign("quality", goal) * _value(one, "quality") for one in measured}
    by_score, by_metric = _places(scores), _places(qualities)
    front = _front(measured, terms, faults, goal)
    ranked = [
        Ranked(
            candidate=one,
            parts=every_part[one.name],
            score=scores.get(one.name),
            by_score=by_score.get(one.name),
            by_metric=by_metric[one.name],
            on_front=front.get(one.name),
            missing={term: why for term, why in faults[one.name].items() if term not in left_out},
        )
        for one in measured
    ]
    ranked.sort(
        key=lambda one: (
            one.by_score is None,
            one.by_score or 0,
            one.by_metric,
        )
    )
    return Selection(metric, goal, weights, tuple(ranked), left_out, tuple(terms))


def _faults(candidate: Candidate, weights: Weights) -> Mapping[str, str]:
    """The terms of a candidate that cannot be used, and why."""
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
        elif abs(value) / weights.of(term).reference * max(1.0, weights.of(term).weight) > 1e300:
            faults[term] = "too large"
    return faults


def _sign(term: str, goal: Goal) -> int:
    return 1 if term == "quality" and goal == "maximize" else -1


def _value(candidate: Candidate, term: str) -> float:
    value = candidate.terms[term]
    assert value is not None  # what is missing was sorted out before
    return value


def _part(candidate: Candidate, term: str, weights: Weights, goal: Goal) -> float:
    of = weights.of(term)
    # Adding zero turns −0.0 into 0.0.
    return _sign(term, goal) * of.weight * _value(candidate, term) / of.reference + 0.0


def _places(values: Mapping[str, float]) -> Mapping[str, int]:
    """Name → place, the largest value first."""
    ordered = sorted(-value for value in values.values())
    return {name: 1 + bisect_left(ordered, -value) for name, value in values.items()}


def _front(
    candidates: Sequence[Candidate],
    terms: Sequence[str],
    faults: Mapping[str, Mapping[str, str]],
    goal: Goal,
) -> Mapping[str, bool]:
    """Name → whether nobody dominates it, of those that have every term."""
    points = {
        candidate.name: tuple(_sign(term, goal) * _value(candidate, term) for term in terms)
        for candidate in candidates
        if not any(term in faults[candidate.name] for term in terms)
    }
    front: set[tuple[float, ...]] = set()
    # Who dominates a point is larger in the first coordinate that differs: it came before.
    for point in sorted(set(points.values()), reverse=True):
        if not any(all(map(ge, other, point)) for other in front):
            front.add(point)
    return {name: point in front for name, point in points.items()}
