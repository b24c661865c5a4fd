"""The trials that a selection is made from, and what they logged for the terms of the score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ml.backends import ranking
from ml.backends.base import Entry, Run, RunStore
from ml.core import repository
from ml.core.errors import Problem, Refused
from ml.release.selection import weights
from ml.release.selection.selection import Candidate, Goal, Selection, select
from ml.release.selection.weights import Weights

# Trials that are named one by one in a note.
_NAMED = 5


@dataclass(frozen=True)
class Selected:
    """A selection, the runs that it is of by their names, their project, and what to know."""

    selection: Selection
    runs: dict[str, Run]
    project: str
    notes: tuple[str, ...]


def choose(
    store: RunStore, selected: Sequence[Run], metric: str | None = None, goal: str | None = None
) -> Selected:
    """Rank the trials of sweeps and pipelines, and single runs, by their project's weights.

    Raises Refused when nothing says which metric decides, when nothing that completed logged it,
    when the runs are of several projects, or when the select.yml is wrong.
    """
    entries = [entry for run in selected for entry in _sources(store, run)]
    metric, goal = ranking.objective(store, entries, metric, goal)
    project = _project(entries)
    weighed = weights.read(repository.root() / "ml" / "projects" / project if project else None)
    every = {run.name: run for entry in entries for run in entry.run.trials or (entry.run,)}
    whole = len(entries) == 1 and bool(entries[0].run.trials)
    done = [run for run in every.values() if run.status == "Completed"]
    candidates = [_contender(store, run, whole, metric, goal, weighed) for run in done]
    try:
        selection = select(candidates, weighed, metric, cast(Goal, goal))
    except ValueError:
        raise Refused(ranking.nothing_to_rank(metric, done)) from None
    notes = [*_unranked(selection, candidates), *_unfinished(list(every.values()))]
    if not weighed.source:
        where = f"ml/projects/{project}" if project else "the project's folder"
        notes.append(f"only quality weighs: there is no {weights.FILE} in {where}")
    if ranking.different_data(store, done):
        notes.append("they were not all made from the same data (ml runs diff A B)")
    runs = {ranked.candidate.name: every[ranked.candidate.name] for ranked in selection.ranked}
    return Selected(selection, runs, project, tuple(notes))


def _sources(store: RunStore, run: Run) -> Iterator[Entry]:
    """Sweeps and single runs: of a pipeline its sweeps, or the steps that left a model."""
    wrote = store.original(run) or run
    if not wrote.steps:
        entry = store.entry(wrote)
        sweep = store.parent(wrote)
        if sweep is not None and sweep.trials and not entry.objective:
            lineage = store.entry(sweep).lineage
            objective = {"objective": lineage.get("objective")}
            entry = Entry(wrote, entry.kind, {**lineage, **entry.lineage, **objective})
        yield entry
        return
    swept = [step for step in wrote.steps if step.steps or (store.original(step) or step).trials]
    for step in swept or [step for step in wrote.steps if "model" in step.outputs]:
        yield from _sources(store, step)


def _contender(
    store: RunStore, run: Run, whole: bool, metric: str, goal: str, weighed: Weights
) -> Candidate:
    latency = run.metrics.get(weighed.latency.metric)
    training = run.metrics.get(weighed.cost.training)
    prediction = run.metrics.get(weighed.cost.prediction) if weighed.cost.predictions else 0.0
    cost = None
    if training is not None and prediction is not None:
        cost = training + weighed.cost.predictions * prediction / 1000
    spread = run.metrics.get(weighed.stability.metric or f"{metric}_std")
    terms = {
        "quality": ranking.value(store, run, metric, goal),
        "latency": latency,
        "cost": cost,
        "stability": spread,
    }
    label = f"trial {run.name.rpartition('_')[2]}" if whole else run.name
    return Candidate(run.name, label, terms)


def _project(entries: Sequence[Entry]) -> str:
    projects = sorted({entry.project for entry in entries} - {""})
    if len(projects) > 1:
        raise Refused(
            Problem(
                "several-projects",
                f"the runs are of {', '.join(projects)}",
                "runs of one project: each has weights of its own",
            )
        )
    root = repository.root() / "ml" / "projects"
    return projects[0] if projects and Path(root / projects[0]).is_dir() else ""


def _unranked(selection: Selection, candidates: Sequence[Candidate]) -> Iterator[str]:
    ranked = {one.candidate.name for one in selection.ranked}
    unranked = [one.label for one in candidates if one.name not in ranked]
    if unranked:
        yield f"{_listed(unranked)}: not ranked, no usable {selection.metric}"


def _unfinished(every: Sequence[Run]) -> Iterator[str]:
    counts = Counter(
        f"stopped early by {run.ended_by}" if run.ended_by else run.status.lower()
        for run in every
        if run.status != "Completed"
    )
    if counts:
        yield "not ranked: " + ", ".join(f"{number} {how}" for how, number in counts.items())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
