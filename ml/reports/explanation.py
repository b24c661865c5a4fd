"""The explanation of a sweep: the origin of every trial, what ended it, parameter importance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ml.backends.runs import Run, RunStore, TrackingUnavailable
from ml.reports import origins
from ml.reports.formatting import number, redact_text
from ml.reports.importance import Importance, importance
from ml.reports.sweep import Sweep, Trial, read_sweep
from ml.specs.search.constraints import names_of

_ENDING_TAGS = ("interval", "value", "threshold")
# Up to as many distinct integers are listed; more are a range.
_LISTED = 5
# Of how many other trials the share with a good value is taken, spread evenly over the sweep.
_OTHERS = 150


@dataclass(frozen=True)
class Ending:
    """Why a policy ended a trial: at `interval` its best value so far missed the threshold."""

    policy: str
    interval: int
    value: float
    threshold: float

    @property
    def missed_by(self) -> float:
        """The distance between value and threshold."""
        return abs(self.threshold - self.value)


@dataclass(frozen=True)
class Preference:
    """A parameter of a trial that TPE suggested: its value, and the values of the good trials.

    `good` holds the least and the largest value when `is_range`, else every value. `among_others`
    is the share of the other trials, completed or stopped early, with such a value: the smaller it
    is, the more the parameter sets the good trials apart.
    """

    name: str
    value: object
    good: tuple[Any, ...]
    is_range: bool
    among_others: float

    @property
    def good_values(self) -> str:
        """The values of the good trials in words."""
        if self.is_range:
            return " … ".join(dict.fromkeys(map(number, self.good)))
        return ", ".join(map(str, self.good))


@dataclass(frozen=True)
class ExplainedTrial:
    """A trial with its values, the record of their origin, and what ended it early.

    Without a record `origin` is empty and `number` is the trial's place in the sweep's record.
    """

    trial: Trial
    number: int
    values: Mapping[str, Any]
    origin: Mapping[str, Any]
    ending: Ending | None

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """The values by name; those in a branch of a nested choice as `model.depth`."""
        return names_of(self.values)

    @property
    def sentence(self) -> str:
        """Where the values came from."""
        return redact_text(origins.sentence(self.origin)) or "not recorded"


@dataclass(frozen=True)
class Explanation:
    """A sweep and its trials in the order of their starts; `notes` name what cannot be read."""

    run: Run
    sweep: Sweep
    sampling: Mapping[str, Any]
    trials: tuple[ExplainedTrial, ...]
    notes: tuple[str, ...] = ()

    def preferences(self, explained: ExplainedTrial) -> tuple[Preference, ...]:
        """Why TPE suggested the trial's values, the most telling parameter first."""
        good, running = (explained.origin.get(key) or () for key in ("good", "running"))
        if not good:
            return ()
        left_out = {*good, *running}
        others = [
            other
            for other in self.trials
            if other.number < explained.number
            and other.number not in left_out
            and other.trial.outcome in ("completed", "stopped")
        ]
        rest = [other.flat for other in others[:: max(1, len(others) // _OTHERS)]]
        best = [self._by_number[number].flat for number in good if number in self._by_number]
        preferences = [
            _preference(name, value, values, [flat[name] for flat in rest if name in flat])
            for name, value in explained.flat.items()
            if (values := [flat[name] for flat in best if name in flat])
        ]
        return tuple(sorted(preferences, key=lambda preference: preference.among_others))

    @cached_property
    def _by_number(self) -> Mapping[int, ExplainedTrial]:
        return {explained.number: explained for explained in self.trials}

    def importance(self) -> Importance:
        """The importance of the parameters; takes up to a second."""
        return importance(self.sweep)


def explain(run: Run, store: RunStore) -> Explanation:
    """The explanation of a sweep's run, which may still be running."""
    notes: list[str] = []
    lineage = store.entry(run).lineage
    sweep = read_sweep(run, lineage, store, notes)
    tags: dict[str, Mapping[str, str]] = {}
    try:
        tags = {name: store.tag(run.trials, f"ended_by.{name}") for name in _ENDING_TAGS}
    except TrackingUnavailable as error:
        notes.append(f"The thresholds of stopped trials are not known: {error}")
    trials = tuple(_explained(trial, tags) for trial in sweep.trials)
    return Explanation(run, sweep, lineage.get("sampling") or {}, trials, tuple(notes))


def as_json(explanation: Explanation, only: int | None = None) -> dict[str, Any]:
    """The explanation for a program; numbers that JSON does not have are text."""
    run, shares = explanation.run, explanation.importance()
    return {
        "run": run.name,
        "status": run.status,
        "objective": {"metric": explanation.sweep.metric, "goal": explanation.sweep.goal},
        "sampling": dict(explanation.sampling),
        "best": run.best,
        "trials": list(_trials(explanation, only)),
        "importance": {
            "shares": dict(shares.shares),
            "explained": shares.explained,
            "trials": shares.trials,
            "left_out": list(shares.excluded),
            "why": shares.reason,
        },
        "notes": list(explanation.notes),
    }


def _explained(trial: Trial, tags: Mapping[str, Mapping[str, str]]) -> ExplainedTrial:
    sample = trial.sample
    ending = None
    recorded = [tags.get(name, {}).get(trial.run.id) for name in _ENDING_TAGS]
    if trial.outcome == "stopped" and all(recorded):
        interval, value, threshold = (float(text or "nan") for text in recorded)
        ending = Ending(trial.run.ended_by, int(interval), value, threshold)
    return ExplainedTrial(
        trial,
        sample.number if sample else trial.number,
        sample.values if sample else trial.run.parameters,
        trial.origin,
        ending,
    )


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


def _trials(explanation: Explanation, only: int | None) -> Iterator[dict[str, Any]]:
    for explained in explanation.trials:
        if only is not None and explained.number != only:
            continue
        trial, ending = explained.trial, explained.ending
        yield {
            "number": explained.number,
            "name": trial.run.name,
            "outcome": trial.outcome,
            "value": _finite(trial.value),
            "values": dict(explained.values),
            "from": explained.sentence,
            "origin": dict(explained.origin),
            "preferences": [asdict(each) for each in explanation.preferences(explained)],
            "why": trial.reason,
            "ended_by": {
                "policy": ending.policy,
                "interval": ending.interval,
                "value": _finite(ending.value),
                "threshold": _finite(ending.threshold),
                "missed_by": _finite(ending.missed_by),
            }
            if ending
            else None,
        }


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
