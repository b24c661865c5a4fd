"""Read a sweep and its trials from the run's record and the MLflow tracking store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ml.backends.runs import Curve, Run, RunStore, TrackingUnavailable
from ml.reports.formatting import count, headline, number, redact, redact_text
from ml.specs.plan.plans import Sample, Value
from ml.sweeps.objective import Goal, best, score

Outcome = Literal["completed", "stopped", "unranked", "failed", "canceled", "running"]
# Outcome → text.
OUTCOMES: Mapping[Outcome, str] = {
    "completed": "completed",
    "stopped": "stopped early by a policy",
    "unranked": "completed, not ranked",
    "failed": "failed",
    "canceled": "canceled",
    "running": "still running",
}
POLICIES = frozenset({"median_stopping", "bandit", "truncation_selection"})


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep."""

    number: int  # from 0, in the order in which trials started
    run: Run
    outcome: Outcome  # only `completed` is ranked; `unranked`: completed, but metric NaN or missing
    curve: Curve  # learning curve of the primary metric
    value: float | None  # best finite value of the primary metric; None without one
    reason: str = ""  # verdict of the policy that stopped the trial, or its error; "" for neither
    sample: Sample | None = None  # the sampler's record; None if there is none

    @property
    def origin(self) -> Mapping[str, Any]:
        """The origin of the trial's hyperparameters; {} if not recorded.

        It has a `kind`, and `refused`, the number of earlier points that violated a constraint.
        Further keys by kind:

        - `given`: `point` and `place` in the hints, `because`, and `sampled`, the parameters that
          the sampler added (`rest` is their origin)
        - `random`: `startup` with `ended`, the trials that had ended, for the startup of TPE or
          (`before`) evolution; or `instead_of`, the algorithm without a valid suggestion
        - `sobol`: the `index` in the sequence
        - `grid`: the number of the `cell`, `of` all cells
        - `tpe`: numbers of the `good` trials (`good_until` is their worst score) and of the
          `running` ones, and how many were `bad`
        - `evolution`: number of the `parent`, and the parent's `score`
        - `ensemble`, the last trials of an AutoML job: the trials `of` which it may consist
        """
        return self.sample.origin if self.sample else {}

    @property
    def origin_text(self) -> str:
        """Return the origin as a sentence without secrets; "" if not recorded."""
        return redact_text(origin_sentence(self.origin))

    @property
    def sample_number(self) -> int:
        """Return the sampler's number of the trial; `number` if not recorded."""
        return self.sample.number if self.sample else self.number

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the trial's hyperparameters, with nested choices as mappings."""
        return self.sample.values if self.sample else self.run.parameters

    @property
    def seconds(self) -> float | None:
        """Return the seconds from start to end; None while the trial runs."""
        return None if self.run.ended is None else self.run.ended - self.run.started


@dataclass(frozen=True)
class Sweep:
    """A sweep and its trials."""

    metric: str  # the primary metric
    goal: Goal
    trials: tuple[Trial, ...]  # in the order in which they started
    best: Trial | None
    varied: tuple[str, ...]  # parameters that differ between trials or that some trials lack
    constant: Mapping[str, Value]  # the other parameters and their value
    sampling: str  # algorithm and seed; "" if not recorded

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """Return the completed trials, best first; ties are in the order of their start."""
        sign = -1 if self.goal == "maximize" else 1
        ranked = [trial for trial in self.trials if trial.outcome == "completed"]
        return tuple(sorted(ranked, key=lambda trial: sign * (trial.value or 0.0)))

    def with_outcome(self, *outcomes: Outcome) -> tuple[Trial, ...]:
        """Return the trials with one of the outcomes."""
        return tuple(trial for trial in self.trials if trial.outcome in outcomes)


def read_sweep(run: Run, lineage: Mapping[str, Any], store: RunStore, notes: list[str]) -> Sweep:
    """Return the sweep of a run; add sentences about data that cannot be read to `notes`."""
    objective = lineage.get("objective") or {}
    metric = str(objective.get("primary_metric") or "the primary metric")
    goal: Goal = "minimize" if objective.get("goal") == "minimize" else "maximize"
    curves: Mapping[str, Curve] = {}
    reasons: Mapping[str, str] = {}
    try:
        curves, reasons = store.curves(run.trials, metric), store.tag(run.trials, "ended_by")
    except TrackingUnavailable as error:
        notes.append(
            "There are no learning curves, and a trial's value is the last that it logged rather "
            f"than its best: the tracking store cannot be read ({error})"
        )
    trials = []
    for place, trial in enumerate(run.trials):
        last = ((0, trial.metrics[metric]),) if metric in trial.metrics else ()
        curve, reason = curves.get(trial.id, last), reasons.get(trial.id, trial.ended_by)
        trials.append(_trial(place, trial, goal, curve, reason, store.sample(trial)))
    varied, constant = _parameters([trial.run for trial in trials])
    sampling = lineage.get("sampling") or {}
    words = [str(sampling.get("algorithm", "")), f"seed {sampling['seed']}" if sampling else ""]
    return Sweep(
        metric=metric,
        goal=goal,
        trials=tuple(trials),
        best=next((trial for trial in trials if trial.run.name == run.best), None),
        varied=varied,
        constant=constant,
        sampling=", ".join(word for word in words if word),
    )


def _trial(
    number: int, run: Run, goal: Goal, curve: Curve, reason: str, sample: Sample | None
) -> Trial:
    values = [value for _, value in curve]
    finite = [value for value in values if math.isfinite(value)]
    outcome: Outcome
    match run.status:
        case "Completed":
            outcome = "completed" if score(values, goal) is not None else "unranked"
        case "Failed":
            outcome = "failed"
        case "Canceled":
            outcome = "stopped" if run.ended_by in POLICIES else "canceled"
        case _:
            outcome = "running"
    problem = run.error or next(iter(run.warnings), None)
    if outcome in {"failed", "unranked"} and problem:
        reason = f"{problem.code}: {headline(problem)}"
    return Trial(
        number=number,
        run=_flat(run, sample),
        outcome=outcome,
        curve=curve,
        value=best(finite, goal) if finite else None,
        reason=reason,
        sample=sample,
    )


def _flat(run: Run, sample: Sample | None) -> Run:
    """Return the run with nested choices as flat parameters: `model.kind`, `model.depth`."""
    values = sample.values if sample else {}
    flat: dict[str, Value] = {}
    for name, value in run.parameters.items():
        nested = values.get(name)
        flat |= dict(_leaves(name, nested)) if isinstance(nested, Mapping) else {name: value}
    return replace(run, parameters=flat)


def _leaves(name: str, value: object) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    else:
        yield name, value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _parameters(trials: Sequence[Run]) -> tuple[tuple[str, ...], Mapping[str, Value]]:
    """Return the names of parameters that differ or are missing in trials, and the constants."""
    every = dict.fromkeys(name for trial in trials for name in trial.parameters)
    roots = list(dict.fromkeys(name.partition(".")[0] for name in every))
    # Keep the parameters of all branches of a choice together.
    names = sorted(every, key=lambda name: roots.index(name.partition(".")[0]))
    constant: dict[str, Value] = {}
    for name in names:
        values = [trial.parameters.get(name) for trial in trials]
        first = values[0]
        # Compare the types, too, since True == 1.
        if (
            len(trials) > 1
            and first is not None
            and all(type(value) is type(first) and value == first for value in values)
        ):
            constant[name] = redact(name, first)
    return tuple(name for name in names if name not in constant), constant


def short_origin(origin: Mapping[str, Any]) -> str:
    """Return a `Trial.origin` in at most two words; "" if not recorded."""
    kind = str(origin.get("kind", ""))
    if kind == "given":
        return f"hint {origin.get('point', 0) + 1}"
    if kind == "random" and origin.get("startup"):
        return "random start"
    if kind == "sobol" and origin.get("index", -1) >= 0:
        return f"sobol {origin['index']}"
    if kind == "grid" and "cell" in origin:
        return f"cell {origin['cell']}"
    return {"tpe": "TPE"}.get(kind, kind)


def origin_sentence(origin: Mapping[str, Any]) -> str:
    """Return a `Trial.origin` as a sentence; "" if not recorded."""
    match origin.get("kind"):
        case "given":
            words = _given(origin)
        case "random":
            words = _random(origin)
        case "sobol":
            words = f"point {origin.get('index')} of the Sobol sequence"
        case "grid":
            words = f"cell {origin.get('cell')} of {origin.get('of')} of the grid"
        case "tpe":
            words = _tpe(origin)
        case "evolution":
            score = number(origin.get("score", math.nan))
            words = f"by evolution: a change of trial {origin.get('parent')} ({score})"
        case "ensemble":
            words = f"an ensemble of the {count(len(origin.get('of') or ()), 'best trial')}"
        case _:
            return ""
    refused = origin.get("refused", 0)
    return words + (f"; {count(refused, 'earlier point')} violated a constraint" if refused else "")


def _name(path: str) -> str:
    """Remove the indices of branches from a parameter's path: `model.1.depth` → `model.depth`."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def _given(origin: Mapping[str, Any]) -> str:
    words = f"point {origin.get('point', 0) + 1} of the hints ({origin.get('place', '')})"
    if origin.get("because"):
        words += f": {origin['because']}"
    if origin.get("sampled"):
        names = ", ".join(map(_name, origin["sampled"]))
        words += f"; {names} sampled by {short_origin(origin.get('rest') or {}) or 'random'}"
    return words


def _random(origin: Mapping[str, Any]) -> str:
    if origin.get("startup"):
        sampler = "the evolution" if origin.get("before") else "TPE"
        return (
            f"at random during {sampler}'s startup, after {count(origin.get('ended', 0), 'trial')}"
        )
    if origin.get("instead_of") == "evolution":
        return "at random, because changes of the parent repeated trials or violated a constraint"
    if origin.get("instead_of"):
        return "at random, because TPE's suggestions repeatedly violated a constraint"
    return "at random"


def _tpe(origin: Mapping[str, Any]) -> str:
    good, until = count(len(origin.get("good") or ()), "good trial"), origin.get("good_until")
    score = f" ({number(until)} or better)" if until is not None else ""
    running = len(origin.get("running") or ())
    also = f", {running} still running" if running else ""
    bad = origin.get("bad", 0)
    return f"by TPE: likely among the {good}{score}, unlikely among the {bad} others{also}"
