"""What an experiment says so far, in figures and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from ml.release.ab.experiment import Experiment
from ml.release.ab.records import Records
from ml.release.ab.sequence import Floats, sample_size, sequence, width
from ml.release.canary.sequential import imbalance

Kind = Literal["better", "worse", "no-difference", "undecided", "not-to-be-trusted"]
# An assignment that is no more lopsided than declared is called so with at most this chance, ever
# (Fabijan and others 2019, "Diagnosing sample ratio mismatch in online controlled experiments").
MISMATCH = 0.001
# How far ahead the outcomes that are still needed are looked for.
_FARTHEST = 10**9


@dataclass(frozen=True)
class Count:
    """Of one version: keys assigned, outcomes, and their mean (None of none)."""

    assigned: int
    outcomes: int
    mean: float | None


@dataclass(frozen=True)
class Verdict:
    """`kind` is B's part: better or worse than A. `stop` says that more outcomes are not needed.

    `difference`, `low` and `high` are None before the first look. `more` is about how many
    outcomes are still needed, None when that is not known. `history` is (outcomes, difference, low,
    high) over time, thinned.
    """

    kind: Kind
    stop: bool
    said: str
    a: Count
    b: Count
    difference: float | None
    low: float | None
    high: float | None
    more: int | None
    planned: int
    mismatch: str
    history: tuple[tuple[int, float, float, float], ...]

    def to_json(self) -> Mapping[str, object]:
        """As JSON takes it."""
        return asdict(self)


def verdict(experiment: Experiment, records: Records, points: int = 200) -> Verdict:
    """The verdict after every outcome so far; looking at it changes nothing, however often."""
    is_b, values = records.is_b, records.values
    counts = {
        arm: _count(sum(one == arm for one in records.assigned.values()), values[chosen])
        for arm, chosen in (("A", ~is_b), ("B", is_b))
    }
    mismatch = _mismatch(experiment, counts["A"], counts["B"])
    planned = experiment.planned
    history: tuple[tuple[int, float, float, float], ...] = ()
    difference = low = high = None
    more: int | None = max(planned - len(values), 0)
    if len(values):
        looks = sequence(
            *(is_b, values, experiment.share / 100, experiment.alpha, planned),
            experiment.outcome == "binary",
        )
        history = _thinned(looks.difference, looks.low, looks.high, points)
        if math.isfinite(looks.low[-1]):
            difference = float(looks.difference[-1])
            low, high = float(looks.low[-1]), float(looks.high[-1])
            deviation, counted = float(looks.deviation[-1]), int(looks.counted[-1])
            more = _needed(experiment, deviation, abs(difference), counted) - counted
    kind = _kind(experiment, low, high, mismatch)
    stop = kind not in ("undecided", "not-to-be-trusted")
    more = 0 if stop else more
    return Verdict(
        kind=kind,
        stop=stop,
        said=_said(experiment, kind, difference, low, high, more, mismatch),
        a=counts["A"],
        b=counts["B"],
        difference=difference,
        low=low,
        high=high,
        more=more,
        planned=planned,
        mismatch=mismatch,
        history=history,
    )


def _count(assigned: int, values: Floats) -> Count:
    mean = float(values.mean()) if len(values) else None
    return Count(assigned, len(values), mean)


def _mismatch(experiment: Experiment, a: Count, b: Count) -> str:
    """What is wrong with who was assigned, or with whose outcomes came; "" when nothing is."""
    share = experiment.share / 100
    for what, of_a, of_b in (
        ("keys assigned", a.assigned, b.assigned),
        ("outcomes", a.outcomes, b.outcomes),
    ):
        # Two tests, before and after: each has half of the chance.
        if imbalance(of_b, of_a, share) >= math.log(2 / MISMATCH):
            seen = of_b / (of_a + of_b)
            return f"{seen:.1%} of the {of_a + of_b:,} {what} are B's, {share:.0%} were declared"
    return ""


def _kind(experiment: Experiment, low: float | None, high: float | None, mismatch: str) -> Kind:
    if mismatch:
        return "not-to-be-trusted"
    if low is None or high is None:
        return "undecided"
    if low > 0 or high < 0:
        return "better" if (low > 0) == (experiment.goal == "maximize") else "worse"
    return "no-difference" if max(-low, high) < experiment.effect else "undecided"


def _needed(experiment: Experiment, deviation: float, seen: float, counted: int) -> int:
    """The outcomes that show the effect with this deviation; when there are as many already, those
    after which the interval leaves out zero or an effect, if the difference stays what it is.
    """
    wanted = sample_size(deviation, experiment.effect, experiment.alpha, experiment.power)
    if wanted > counted:
        return wanted
    room = max(seen, experiment.effect - seen)
    n = counted
    while n < _FARTHEST:
        n = math.ceil(n * 1.02) + 1
        if deviation * float(width(n, experiment.alpha, experiment.planned)) < room:
            break
    return n


def _thinned(
    difference: Floats, low: Floats, high: Floats, points: int
) -> tuple[tuple[int, float, float, float], ...]:
    """At most so many looks, spread evenly over the logarithm of the count, the last among them."""
    ready = np.flatnonzero(np.isfinite(low))
    if not len(ready):
        return ()
    wanted = np.geomspace(ready[0] + 1, len(low), points).astype(int) - 1
    chosen = np.unique(np.append(wanted[np.isfinite(low[wanted])], len(low) - 1))
    return tuple(
        (int(at) + 1, float(difference[at]), float(low[at]), float(high[at]))
        for at in chosen
        if math.isfinite(low[at])
    )


def _said(
    experiment: Experiment,
    kind: Kind,
    difference: float | None,
    low: float | None,
    high: float | None,
    more: int | None,
    mismatch: str,
) -> str:
    if kind == "not-to-be-trusted":
        return f"not to be trusted: {mismatch}; find out who is missing before reading anything"
    if difference is None or low is None or high is None:
        return f"undecided: too few outcomes for an interval; about {more:,} more"
    ends = f"{_number(experiment, low)} to {_number(experiment, high)}"
    if kind in ("better", "worse"):
        best = "B" if kind == "better" else "A"
        # Said from the side of the better one, whichever way is better.
        least, most = (_number(experiment, one) for one in sorted((abs(low), abs(high))))
        by = _shown(experiment, abs(difference))
        return f"{best} is better by {by} ({least} to {most}); safe to stop"
    interval = f"B less A is {_shown(experiment, difference)} ({ends})"
    effect = _shown(experiment, experiment.effect)
    if kind == "no-difference":
        return f"no difference of {effect} or more: {interval}; safe to stop"
    return f"undecided: {interval}; about {more:,} more outcomes"


def _shown(experiment: Experiment, value: float) -> str:
    """With its unit: rates are in points of a hundred."""
    return _number(experiment, value) + (" points" if experiment.outcome == "binary" else "")


def _number(experiment: Experiment, value: float) -> str:
    if experiment.outcome == "binary":
        # Of the effect, two figures are seen.
        decimals = max(1, 1 - math.floor(math.log10(experiment.effect * 100)))
        text = f"{value * 100:.{decimals}f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")
