"""A sweep explained: where every trial came from, what ended it, and what mattered."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ml.backends.base import Run
from ml.backends.local.runs import records
from ml.reports import origins, recorded
from ml.reports.importance import Importance, importance
from ml.reports.numbers import number
from ml.reports.privacy import plain
from ml.reports.sweeps import Sweep, Trial, sweep_of
from ml.specs.search.constraints import names_of

_NUMBERS = ("interval", "value", "threshold")


@dataclass(frozen=True)
class Ending:
    """What a policy found when it ended a trial: at `interval`, its best so far against a limit."""

    policy: str
    interval: int
    value: float
    threshold: float

    @property
    def missed_by(self) -> float:
        """How far the trial was from going on."""
        return abs(self.threshold - self.value)


@dataclass(frozen=True)
class Preference:
    """A parameter of a trial that TPE chose: its value, and those that the good trials had.

    `among_others` is the share of the other trials, ended or stopped early, that had such a value
    too: the smaller, the more the parameter sets the good trials apart. `good` holds the least and
    the largest when `is_range`, else every value.
    """

    name: str
    value: object
    good: tuple[Any, ...]
    is_range: bool
    among_others: float

    @property
    def had(self) -> str:
        """What the good trials had, in words."""
        if self.is_range:
            return " … ".join(dict.fromkeys(map(number, self.good)))
        return ", ".join(map(str, self.good))


@dataclass(frozen=True)
class Explained:
    """One trial: its values, the record of where they came from, and what ended it early.

    `origin` is empty and `number` counts from the sweep's record when nothing was recorded of it.
    """

    trial: Trial
    number: int
    values: Mapping[str, Any]
    origin: Mapping[str, Any]
    ending: Ending | None

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """The values by name, those in a branch of a nested choice by theirs (`model.depth`)."""
        return names_of(self.values)

    @property
    def said(self) -> str:
        """Where it came from, in a sentence."""
        return plain(origins.sentence(self.origin)) or "not recorded"


@dataclass(frozen=True)
class Explanation:
    """A sweep and its trials in the order of their starts; `notes` say what could not be read."""

    run: Run
    sweep: Sweep
    sampling: Mapping[str, Any]
    trials: tuple[Explained, ...]
    notes: tuple[str, ...] = field(default=())

    def preferences(self, trial: Explained) -> tuple[Preference, ...]:
        """What TPE preferred when it chose the trial, the most telling parameter first."""
        good, running = (trial.origin.get(key) or () for key in ("good", "running"))
        others = [
            one.flat
            for one in self.trials
            if one.number < trial.number
            and one.number not in {*good, *running}
            and one.trial.outcome in ("completed", "stopped")
        ]
        best = [one.flat for one in self.trials if one.number in good]
        preferences = [
            _preference(name, value, had, [one[name] for one in others if name in one])
            for name, value in trial.flat.items()
            if (had := [one[name] for one in best if name in one])
        ]
        return tuple(sorted(preferences, key=lambda one: one.among_others))

    def mattered(self) -> Importance:
        """Which parameters mattered; it takes up to a second."""
        return importance(self.sweep)


def explain(run: Run) -> Explanation:
    """The explanation of a sweep's run, whether it goes on or has ended; changes nothing."""
    notes: list[str] = []
    lineage = records.lineage(run.folder)
    sweep = sweep_of(run, lineage, notes)
    ids = [trial.run.id for trial in sweep.trials]
    numbers: dict[str, Mapping[str, str]] = {}
    try:
        numbers = {name: recorded.tag(ids, f"ended_by.{name}") for name in _NUMBERS}
    except sqlite3.Error as error:
        notes.append(f"The tracking store cannot be read ({error})")
    trials = tuple(_explained(trial, numbers) for trial in sweep.trials)
    return Explanation(run, sweep, lineage.get("sampling") or {}, trials, tuple(notes))


def _preference(name: str, value: object, had: list[Any], others: list[Any]) -> Preference:
    values = [one for n, one in enumerate(had) if one not in had[:n]]
    is_numeric = all(isinstance(one, int | float) for one in had + others)
    if is_numeric:
        values.sort()
    is_range = is_numeric and (len(values) > 5 or any(isinstance(one, float) for one in values))
    good = (values[0], values[-1]) if is_range else tuple(values)
    alike = sum(good[0] <= one <= good[1] if is_range else one in good for one in others)
    return Preference(name, value, good, is_range, alike / len(others) if others else 0.0)


def _explained(trial: Trial, numbers: Mapping[str, Mapping[str, str]]) -> Explained:
    sample = trial.sample
    ending = None
    found = [numbers.get(name, {}).get(trial.run.id) for name in _NUMBERS]
    if trial.outcome == "stopped" and all(found):
        interval, value, threshold = (float(one or "nan") for one in found)
        ending = Ending(trial.run.ended_by, int(interval), value, threshold)
    return Explained(
        trial,
        sample.number if sample else trial.number,
        sample.values if sample else trial.run.parameters,
        trial.origin,
        ending,
    )


def as_json(explanation: Explanation, only: int | None = None) -> dict[str, Any]:
    """The explanation for a program; numbers that JSON does not have are text."""
    run, mattered = explanation.run, explanation.mattered()
    return {
        "run": run.name,
        "status": run.status,
        "objective": {"metric": explanation.sweep.metric, "goal": explanation.sweep.goal},
        "sampling": dict(explanation.sampling),
        "best": run.best,
        "trials": list(_trials(explanation, only)),
        "importance": {
            "shares": dict(mattered.shares),
            "explained": mattered.explained,
            "trials": mattered.trials,
            "left_out": list(mattered.left_out),
            "why": mattered.why,
        },
        "notes": list(explanation.notes),
    }


def _trials(explanation: Explanation, only: int | None) -> Iterator[dict[str, Any]]:
    for one in explanation.trials:
        if only is not None and one.number != only:
            continue
        ending = one.ending
        yield {
            "number": one.number,
            "name": one.trial.run.name,
            "outcome": one.trial.outcome,
            "value": _finite(one.trial.value),
            "values": dict(one.values),
            "from": one.said,
            "origin": dict(one.origin),
            "preferences": [asdict(each) for each in explanation.preferences(one)],
            "why": one.trial.why,
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


def _finite(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)
