"""Compute the verdict on an experiment so far, in numbers and in a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ml.release.ab.experiment import Experiment
from ml.release.ab.records import Records
from ml.release.ab.sequence import Floats, imbalance, sample_size, sequence, width

Kind = Literal["better", "worse", "no-difference", "undecided", "untrustworthy"]
# The probability of ever reporting a mismatch although the assignment follows the declared share
# (Fabijan and others 2019, "Diagnosing sample ratio mismatch in online controlled experiments").
MISMATCH = 0.001
# The search for the number of needed outcomes ends here.
_FARTHEST = 10**9


@dataclass(frozen=True)
class Count:
    """The keys, the outcomes and their mean for one version."""

    assigned: int
    outcomes: int
    mean: float | None  # None without outcomes


@dataclass(frozen=True)
class ABVerdict:
    """The verdict on an experiment so far."""

    kind: Kind  # of B compared with A
    stop: bool  # whether no more outcomes are needed
    sentence: str
    a: Count
    b: Count
    difference: float | None  # B's mean minus A's; None while there are too few outcomes
    low: float | None  # ends of the difference's interval, None like the difference
    high: float | None
    more: int | None  # estimate of the outcomes that are still needed, 0 if `stop`
    planned: int  # outcomes of both versions that the declared power requires
    mismatch: str  # how assignments or outcomes differ from the share, "" if they do not


def verdict(experiment: Experiment, records: Records) -> ABVerdict:
    """Return the verdict on the outcomes so far; it is valid however often it is computed."""
    is_b, values = records.is_b, records.values
    counts = {
        arm: _count(sum(assigned == arm for assigned in records.assigned.values()), values[chosen])
        for arm, chosen in (("A", ~is_b), ("B", is_b))
    }
    mismatch = _mismatch(experiment, counts["A"], counts["B"])
    planned = experiment.planned
    difference = low = high = None
    more: int | None = max(planned - len(values), 0)
    if len(values):
        share, binary = experiment.share / 100, experiment.outcome == "binary"
        intervals = sequence(is_b, values, share, experiment.alpha, planned, binary)
        if math.isfinite(intervals.low[-1]):
            difference = float(intervals.difference[-1])
            low, high = float(intervals.low[-1]), float(intervals.high[-1])
            deviation, counted = float(intervals.deviation[-1]), int(intervals.counted[-1])
            more = _needed(experiment, deviation, abs(difference), counted) - counted
    kind = _kind(experiment, low, high, mismatch)
    stop = kind not in ("undecided", "untrustworthy")
    more = 0 if stop else more
    return ABVerdict(
        kind=kind,
        stop=stop,
        sentence=_sentence(experiment, kind, difference, low, high, more, mismatch),
        a=counts["A"],
        b=counts["B"],
        difference=difference,
        low=low,
        high=high,
        more=more,
        planned=planned,
        mismatch=mismatch,
    )


def _count(assigned: int, values: Floats) -> Count:
    mean = float(values.mean()) if len(values) else None
    return Count(assigned, len(values), mean)


def _mismatch(experiment: Experiment, a: Count, b: Count) -> str:
    """Return how assignments or outcomes differ from the declared share; "" if they do not."""
    share = experiment.share / 100
    for what, count_a, count_b in (
        ("keys assigned", a.assigned, b.assigned),
        ("outcomes", a.outcomes, b.outcomes),
    ):
        # Two tests: each has half of the probability.
        if imbalance(count_b, count_a, share) >= math.log(2 / MISMATCH):
            total = count_a + count_b
            return f"{count_b / total:.1%} of the {total:,} {what} are B's, not {share:.0%}"
    return ""


def _kind(experiment: Experiment, low: float | None, high: float | None, mismatch: str) -> Kind:
    if mismatch:
        return "untrustworthy"
    if low is None or high is None:
        return "undecided"
    if low > 0 or high < 0:
        return "better" if (low > 0) == (experiment.goal == "maximize") else "worse"
    return "no-difference" if max(-low, high) < experiment.effect else "undecided"


def _needed(experiment: Experiment, deviation: float, seen: float, counted: int) -> int:
    """Return how many outcomes are needed to detect the effect with this deviation.

    If there are as many already, return the number at which the interval excludes zero, or the
    effect, provided that the difference stays as it is.
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


def _sentence(
    experiment: Experiment,
    kind: Kind,
    difference: float | None,
    low: float | None,
    high: float | None,
    more: int | None,
    mismatch: str,
) -> str:
    if kind == "untrustworthy":
        return f"cannot be trusted: {mismatch}; find the cause before reading the result"
    if difference is None or low is None or high is None:
        return f"undecided: too few outcomes for an interval; about {more:,} more"
    ends = f"{_number(experiment, low)} to {_number(experiment, high)}"
    if kind in ("better", "worse"):
        best = "B" if kind == "better" else "A"
        least, most = (_number(experiment, end) for end in sorted((abs(low), abs(high))))
        by = _shown(experiment, abs(difference))
        return f"{best} is better by {by} ({least} to {most}); safe to stop"
    interval = f"B minus A is {_shown(experiment, difference)} ({ends})"
    effect = _shown(experiment, experiment.effect)
    if kind == "no-difference":
        return f"no difference of {effect} or more: {interval}; safe to stop"
    return f"undecided: {interval}; about {more:,} more outcomes"


def _shown(experiment: Experiment, value: float) -> str:
    """Return the value with its unit: rates are in percentage points."""
    return _number(experiment, value) + (" points" if experiment.outcome == "binary" else "")


def _number(experiment: Experiment, value: float) -> str:
    if experiment.outcome == "binary":
        # Enough decimals to show two significant digits of the effect.
        decimals = max(1, 1 - math.floor(math.log10(experiment.effect * 100)))
        text = f"{value * 100:.{decimals}f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")
