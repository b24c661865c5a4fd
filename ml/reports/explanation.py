"""Explain a sweep: where each trial's values come from, why it ended, parameter importance.

The importance is fANOVA on the completed trials, with a measure of its reliability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ml.backends.runs import Run, RunStore, TrackingUnavailable
from ml.reports.charts.scales import bounds, is_logarithmic, is_number
from ml.reports.formatting import number
from ml.reports.sweep import Sweep, Trial, read_sweep
from ml.specs.search.constraints import names_of

_ENDING_TAGS = ("interval", "value", "threshold")
# At most this many distinct integers are listed; more are shown as a range.
_LISTED = 5
# `Preference.among_others` is estimated from about this many evenly spaced trials.
_OTHERS = 150
# Minimum number of completed trials for the importance.
MIN_TRIALS = 10
# fANOVA takes 1 s for this many trials and 40 s for a thousand; more are sampled evenly.
MAX_TRIALS = 150
# If the forest explains a smaller share of the variance, the importance is unreliable.
WEAK = 0.2
TREES = 64
SEED = 0


@dataclass(frozen=True)
class Ending:
    """Why an early termination policy stopped a trial."""

    policy: str
    interval: int  # the evaluation interval at which the policy stopped the trial
    value: float  # the trial's best value until then
    threshold: float  # the policy's limit, which `value` did not reach

    @property
    def missed_by(self) -> float:
        """Return the distance between value and threshold."""
        return abs(self.threshold - self.value)


@dataclass(frozen=True)
class Preference:
    """A parameter value that TPE suggested, compared with the values of the good trials."""

    name: str
    value: object  # in this trial
    good: tuple[Any, ...]  # values in the good trials; (minimum, maximum) if `is_range`
    is_range: bool
    # Share of the other trials, completed or stopped early, whose value is in `good`. A small share
    # means that the parameter distinguishes the good trials.
    among_others: float

    @property
    def good_values(self) -> str:
        """Return the values of the good trials as text."""
        if self.is_range:
            return " … ".join(dict.fromkeys(map(number, self.good)))
        return ", ".join(map(str, self.good))


@dataclass(frozen=True)
class Importance:
    """Parameter importance: shares of the primary metric's variance that a forest explains."""

    # (parameter, share), largest first; the shares sum to 1. () if there is a `reason`.
    shares: tuple[tuple[str, float], ...] = ()
    explained: float = 0.0  # the forest's out-of-bag R²: 1 is perfect, 0 no better than the mean
    trials: int = 0  # number of trials that the forest was fitted on
    excluded: tuple[str, ...] = ()  # parameters that only some trials have
    reason: str = ""  # why the importance cannot be computed

    @property
    def is_weak(self) -> bool:
        """Whether the forest explains too little of the variance to rely on the shares."""
        return self.explained < WEAK


@dataclass(frozen=True)
class Explanation:
    """A sweep, and why a policy stopped some of its trials."""

    run: Run
    sweep: Sweep
    sampling: Mapping[str, Any]  # {} if not recorded
    endings: Mapping[int, Ending]  # by `Trial.number`
    notes: tuple[str, ...] = ()  # what could not be read

    def preferences(self, trial: Trial) -> tuple[Preference, ...]:
        """Return why TPE suggested the trial's values, the most distinctive parameter first.

        Returns () for a trial that TPE did not suggest.
        """
        good, running = (trial.origin.get(key) or () for key in ("good", "running"))
        if not good:
            return ()
        excluded = {*good, *running}
        others = [
            earlier
            for earlier in self.sweep.trials
            if earlier.sample_number < trial.sample_number
            and earlier.sample_number not in excluded
            and earlier.outcome in ("completed", "stopped")
        ]
        sample = [
            self._named[earlier.sample_number]
            for earlier in others[:: max(1, len(others) // _OTHERS)]
        ]
        best = [self._named[number] for number in good if number in self._named]
        preferences = [
            _preference(name, value, values, [named[name] for named in sample if name in named])
            for name, value in self._named[trial.sample_number].items()
            if (values := [named[name] for named in best if name in named])
        ]
        return tuple(sorted(preferences, key=lambda preference: preference.among_others))

    @cached_property
    def _named(self) -> Mapping[int, Mapping[str, Any]]:
        """Return sample number → parameter values, with nested choices as `model.depth`."""
        return {trial.sample_number: names_of(trial.values) for trial in self.sweep.trials}


def explain(run: Run, store: RunStore) -> Explanation:
    """Return the explanation of a sweep's run, which may still be running."""
    notes: list[str] = []
    lineage = store.entry(run).lineage
    sweep = read_sweep(run, lineage, store, notes)
    endings = {}
    try:
        tags = [store.tag(run.trials, f"ended_by.{name}") for name in _ENDING_TAGS]
        for trial in sweep.with_outcome("stopped"):
            texts = [of_trial.get(trial.run.id, "") for of_trial in tags]
            if all(texts):
                interval, value, threshold = map(float, texts)
                endings[trial.number] = Ending(trial.run.ended_by, int(interval), value, threshold)
    except TrackingUnavailable as error:
        notes.append(f"The thresholds of stopped trials cannot be read: {error}")
    return Explanation(run, sweep, lineage.get("sampling") or {}, endings, tuple(notes))


def as_json(explanation: Explanation, only: int | None = None) -> dict[str, Any]:
    """Return the explanation as JSON data, of all trials or of the sample number `only`."""
    run, sweep, shares = explanation.run, explanation.sweep, importance(explanation.sweep)
    trials = [trial for trial in sweep.trials if only in (None, trial.sample_number)]
    return {
        "run": run.name,
        "status": run.status,
        "objective": {"metric": sweep.metric, "goal": sweep.goal},
        "sampling": explanation.sampling,
        "best": run.best,
        "trials": [_trial_json(explanation, trial) for trial in trials],
        "importance": {
            "shares": dict(shares.shares),
            "explained": shares.explained,
            "trials": shares.trials,
            "left_out": shares.excluded,
            "why": shares.reason,
        },
        "notes": explanation.notes,
    }


def _trial_json(explanation: Explanation, trial: Trial) -> dict[str, Any]:
    ending = explanation.endings.get(trial.number)
    return {
        "number": trial.sample_number,
        "name": trial.run.name,
        "outcome": trial.outcome,
        "value": trial.value,
        "values": trial.values,
        "from": trial.origin_text or "not recorded",
        "origin": trial.origin,
        "preferences": [asdict(preference) for preference in explanation.preferences(trial)],
        "why": trial.reason,
        "ended_by": {**asdict(ending), "missed_by": ending.missed_by} if ending else None,
    }


def _preference(name: str, value: object, good: list[Any], others: list[Any]) -> Preference:
    values = [item for place, item in enumerate(good) if item not in good[:place]]
    is_numeric = all(isinstance(item, int | float) for item in good + others)
    if is_numeric:
        values.sort()
    is_range = is_numeric and (
        len(values) > _LISTED or any(isinstance(item, float) for item in values)
    )
    ends = (values[0], values[-1]) if is_range else tuple(values)
    alike = sum(ends[0] <= item <= ends[1] if is_range else item in ends for item in others)
    return Preference(name, value, ends, is_range, alike / len(others) if others else 0.0)


# A parameter's value in each trial: all numbers or all strings.
Column = list[float] | list[str]


def importance(sweep: Sweep) -> Importance:
    """Return the parameter importance by fANOVA (Hutter, Hoos, Leyton-Brown 2014) with Optuna.

    It uses only completed trials, as Optuna does, since trials stopped early have no final value.
    """
    ranked = sweep.with_outcome("completed")
    if len(ranked) < MIN_TRIALS:
        return Importance(
            reason=f"fANOVA needs {MIN_TRIALS} completed trials, the sweep has {len(ranked)}"
        )
    ranked = ranked[:: math.ceil(len(ranked) / MAX_TRIALS)]
    if len({trial.value for trial in ranked}) == 1:
        return Importance(reason="every completed trial has the same value")
    common = [n for n in sweep.varied if all(n in trial.run.parameters for trial in ranked)]
    columns = {name: column for name in common if len(set(column := _column(ranked, name))) > 1}
    if len(columns) < 2:
        return Importance(reason="fewer than two parameters differ between the completed trials")
    # Clip outliers: a diverged trial would account for all of the variance.
    low, high = bounds([trial.value or 0.0 for trial in ranked])
    values = [min(high, max(low, trial.value or 0.0)) for trial in ranked]
    return Importance(
        shares=_shares(columns, values),
        explained=_accuracy(columns, values),
        trials=len(ranked),
        excluded=tuple(name for name in sweep.varied if name not in common),
    )


def _column(trials: Sequence[Trial], name: str) -> Column:
    values = [trial.run.parameters[name] for trial in trials]
    if not all(is_number(value) for value in values):
        return [str(value) for value in values]
    numbers = [float(value) for value in values]
    if is_logarithmic(numbers):
        return [math.log(number) for number in numbers]
    return numbers


def _shares(columns: Mapping[str, Column], values: list[float]) -> tuple[tuple[str, float], ...]:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {
        name: CategoricalDistribution(sorted({str(value) for value in column}))
        if isinstance(column[0], str)
        else FloatDistribution(min(map(float, column)), max(map(float, column)))
        for name, column in columns.items()
    }
    study = optuna.create_study()
    study.add_trials(
        [
            optuna.create_trial(
                params={name: column[number] for name, column in columns.items()},
                distributions=space,
                value=value,
            )
            for number, value in enumerate(values)
        ]
    )
    evaluator = FanovaImportanceEvaluator(n_trees=TREES, seed=SEED)
    shares = get_param_importances(study, evaluator=evaluator, params=list(columns))
    return tuple((str(name), float(share)) for name, share in shares.items())


def _accuracy(columns: Mapping[str, Column], values: list[float]) -> float:
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    features: list[list[float]] = []
    for column in columns.values():
        if isinstance(column[0], str):
            for choice in sorted({str(value) for value in column}):
                features.append([float(value == choice) for value in column])
        else:
            features.append([float(value) for value in column])
    forest = RandomForestRegressor(n_estimators=TREES, oob_score=True, random_state=SEED)
    forest.fit(np.array(features).T, np.array(values))
    return float(forest.oob_score_)
