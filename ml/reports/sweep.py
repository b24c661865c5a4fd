"""A sweep and its trials, from the run's record and the tracking store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ml.backends.runs import Curve, Run, RunStore, TrackingUnavailable
from ml.reports.formatting import headline, redact
from ml.specs.plan.plan import Sample, Value
from ml.sweeps.objective import Goal, best, score

Outcome = Literal["completed", "stopped", "unranked", "failed", "canceled", "running"]
# The outcomes in words.
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
    """A trial of a sweep: `value` is the best that it logged of the primary metric.

    It is None when nothing finite was logged. Only `completed` trials are ranked; one that
    completed without a rank (a NaN, no metric) is `unranked`. `reason` is the verdict of the
    policy that stopped it, or the error.
    """

    number: int
    run: Run
    outcome: Outcome
    curve: Curve
    value: float | None
    reason: str = ""
    sample: Sample | None = None

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where its values came from (see `ml.reports.origins`); empty when not recorded."""
        return self.sample.origin if self.sample else {}

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        return None if self.run.ended is None else self.run.ended - self.run.started


@dataclass(frozen=True)
class Sweep:
    """A sweep's trials in the order in which they started.

    `varied` names the parameters in which they differ; `constant` holds the others.
    """

    metric: str
    goal: Goal
    trials: tuple[Trial, ...]
    best: Trial | None
    varied: tuple[str, ...]
    constant: Mapping[str, Value]
    sampling: str

    @property
    def ranked(self) -> tuple[Trial, ...]:
        """The completed trials, best first; of equals the earlier one comes first."""
        sign = -1 if self.goal == "maximize" else 1
        ranked = [trial for trial in self.trials if trial.outcome == "completed"]
        return tuple(sorted(ranked, key=lambda trial: sign * (trial.value or 0.0)))

    def of(self, *outcomes: Outcome) -> tuple[Trial, ...]:
        """The trials with one of these outcomes."""
        return tuple(trial for trial in self.trials if trial.outcome in outcomes)


def read_sweep(run: Run, lineage: Mapping[str, Any], store: RunStore, notes: list[str]) -> Sweep:
    """The trials of a sweep's run; `notes` receives a sentence for what cannot be read."""
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
    for number, trial in enumerate(run.trials):
        last = ((0, trial.metrics[metric]),) if metric in trial.metrics else ()
        curve, reason = curves.get(trial.id, last), reasons.get(trial.id, trial.ended_by)
        trials.append(_trial(number, trial, goal, curve, reason, store.sample(trial)))
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
    """A nested choice as a parameter for each of its names: `model.kind`, `model.depth`."""
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
    """The names whose values differ (or that some trials lack), and the values of the others."""
    every = dict.fromkeys(name for trial in trials for name in trial.parameters)
    roots = list(dict.fromkeys(name.partition(".")[0] for name in every))
    # Parameters of different branches of a choice stand together.
    names = sorted(every, key=lambda name: roots.index(name.partition(".")[0]))
    constant: dict[str, Value] = {}
    for name in names:
        values = [trial.parameters.get(name) for trial in trials]
        first = values[0]
        # True equals 1 to Python, hence the types.
        if (
            len(trials) > 1
            and first is not None
            and all(type(value) is type(first) and value == first for value in values)
        ):
            constant[name] = redact(name, first)
    return tuple(name for name in names if name not in constant), constant
