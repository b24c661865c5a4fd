"""Go on, hold or roll back: what the figures of green and the old version say. Pure functions.

How a server answers does not depend on how often it is asked; how fast it answers does, and on how
long it has run (caches, schedulers, the heap). So errors, refusals, shapes and predictions are
compared with all of the old version's, latency and memory with a baseline's: a second server of the
old version, started with green and given as many requests, whose times have green's distribution
wherever the versions are alike. So it is done at spinnaker.io/docs/guides/user/canary/
best-practices ("compare canary against baseline, not against production"). Each request is dealt
out at random, so what slows the whole machine falls on both alike; where callers send a routing key
it is they who are dealt out, and the level holds as far as they are many. What slows one process
for a moment (a neighbour on its core) does not: tens of requests of one second are late together,
which the test takes for as many witnesses. So slowness has to last: it rolls back only if it would
without any one stretch of the step's time.

Whatever cannot be read as sound figures rolls back: a canary fails closed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ml.release.canary.sequential import EVEN, RARE, averaged, evidence
from ml.release.declaration.strategy import Strategy
from ml.serving.router.records import BUCKETS, PER_OCTAVE

Action = Literal["go-on", "hold", "roll-back"]
# The signals that a sequential test decides, each at its share of the false alarms.
TESTED = ("errors", "refused", "latency", "answers", "predictions")
# A signal whose evidence is above this is not calm: more requests before the next step.
CALM = -1.0
# Latency is compared at every fourth bucket of the histogram: half an octave apart.
_EVERY = 4
# The share of requests that may be later than tolerated at any one time.
_LATER = 0.02
# Latency histograms of green and of its baseline.
Latencies = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Side:
    """One server's figures, or one version's, since the step began.

    `latency` counts by the router's buckets. `answers` were read for their shape, `strange` of them
    had one that the old version's first answers never had. `predictions` counts answers by bin.
    """

    requests: int
    errors: int
    refused: int
    latency: Sequence[int]
    answers: int = 0
    strange: int = 0
    predictions: Sequence[int] = ()


@dataclass(frozen=True)
class Memory:
    """Resident bytes of green and of its baseline: when green was warm, and now."""

    green_then: float
    green_now: float
    baseline_then: float
    baseline_now: float


@dataclass(frozen=True)
class Signal:
    """What one signal says: its log evidence against green and where it would roll back."""

    name: str
    evidence: float
    limit: float
    said: str

    @property
    def alarmed(self) -> bool:
        """Whether green is worse than tolerated."""
        return not self.evidence < self.limit

    @property
    def calm(self) -> bool:
        """Whether nothing speaks for longer watching."""
        return self.evidence <= CALM or self.evidence == -math.inf


@dataclass(frozen=True)
class Verdict:
    """The action, why in words, and every signal."""

    action: Action
    why: str
    signals: tuple[Signal, ...]


def decide(
    strategy: Strategy,
    stage: int,
    green: Side,
    old: Side,
    baseline: Side,
    memory: Memory | None,
    alive: bool,
    stretches: Sequence[Latencies] = (),
) -> Verdict:
    """What to do at this look at the stage of that number.

    `stretches` are the latencies of green and its baseline by stretches of the step's time, where
    they are known; green that was slow in one of them alone is held.

    `old` is blue's and the baseline's together; at the last stage, where green has everything, that
    of the stage before. Latency is not tested where green gets more than a baseline can.
    """
    if not alive:
        return Verdict("roll-back", "green's process has ended", ())
    balanced = strategy.stages[stage].balanced
    try:
        signals = _signals(strategy, green, old, baseline if balanced else None, memory)
    except (ValueError, TypeError, OverflowError) as error:
        return Verdict("roll-back", f"the figures cannot be trusted: {error}", ())
    if alarms := [signal for signal in signals if signal.alarmed]:
        only = [signal.name for signal in alarms] == ["latency"]
        if only and not _lasts(green.latency, baseline.latency, stretches, strategy):
            return Verdict("hold", "slower, in one stretch of time so far", signals)
        return Verdict("roll-back", "; ".join(signal.said for signal in alarms), signals)
    required = strategy.stages[stage].requests
    fewest = min(signal.requests for signal in (green, old, *([baseline] if balanced else [])))
    if fewest < required:
        return Verdict("hold", f"{fewest} of {required} requests", signals)
    patient = green.requests < required * strategy.patience
    if strategy.prediction and (_few(green) or _few(old)):
        return Verdict("hold" if patient else "roll-back", "too few predictions were read", signals)
    restless = [signal.name for signal in signals if not signal.calm]
    if restless and patient:
        return Verdict("hold", f"{', '.join(restless)} not calm yet", signals)
    return Verdict("go-on", f"{green.requests} requests, nothing worse than tolerated", signals)


def limit(strategy: Strategy) -> float:
    """The log evidence at which one signal of one stage rolls back."""
    return math.log(len(TESTED) * len(strategy.stages) / strategy.false_alarms)


def latency_evidence(green: Sequence[int], baseline: Sequence[int], factor: float) -> float:
    """log E against "green's times are at most the baseline's times `factor`"."""
    counts_g, counts_b = _sound(green, BUCKETS), _sound(baseline, BUCKETS)
    edges = np.arange(1, BUCKETS, _EVERY)
    moved = math.ceil(math.log2(factor) * PER_OCTAVE - 1e-9)
    edges = edges[edges + moved < BUCKETS]
    later_g = counts_g[::-1].cumsum()[::-1]  # [k]: in bucket k or later
    later_b = counts_b[::-1].cumsum()[::-1]
    return averaged(
        evidence(later_g[edges + moved], later_g[0], later_b[edges], later_b[0], _LATER)
    )


def _lasts(
    green: Sequence[int],
    baseline: Sequence[int],
    stretches: Sequence[Latencies],
    strategy: Strategy,
) -> bool:
    """Whether green's times alarm without any one of the stretches too."""
    factor = strategy.tolerances.latency
    return all(
        latency_evidence(
            np.subtract(green, without[0]).tolist(),
            np.subtract(baseline, without[1]).tolist(),
            factor,
        )
        >= limit(strategy)
        for without in stretches
    )


def drift_evidence(green: Sequence[int], old: Sequence[int], tolerated: float) -> float:
    """log E against "no set of bins holds more of green's predictions than tolerated".

    The sets are each bin, each run of bins from the first, and what each leaves over.
    """
    if not len(green) or len(green) != len(old):
        raise ValueError(f"{len(green)} and {len(old)} bins of predictions")
    counts_g, counts_b = _sound(green, len(green)), _sound(old, len(old))
    sets_g, sets_b = [counts_g, counts_g.cumsum()], [counts_b, counts_b.cumsum()]
    in_g, in_b = np.concatenate(sets_g), np.concatenate(sets_b)
    n, m = counts_g.sum(), counts_b.sum()
    both = [evidence(in_g, n, in_b, m, tolerated, EVEN)]
    both.append(evidence(n - in_g, n, m - in_b, m, tolerated, EVEN))
    return averaged(np.concatenate(both))


def _signals(
    strategy: Strategy, green: Side, old: Side, baseline: Side | None, memory: Memory | None
) -> tuple[Signal, ...]:
    limits, at = strategy.tolerances, limit(strategy)
    signals = []
    for name, g, n, b, m, margin in (
        ("errors", green.errors, green.requests, old.errors, old.requests, limits.errors),
        ("refused", green.refused, green.requests, old.refused, old.requests, limits.refused),
        ("answers", green.strange, green.answers, old.strange, old.answers, limits.answers),
    ):
        log_e = float(evidence(g, n, b, m, margin, RARE))
        text = f"{name}: {_share(g, n)} of green's, {_share(b, m)} of the old version's"
        signals.append(Signal(name, log_e, at, text))
    if baseline is not None:
        log_e = latency_evidence(green.latency, baseline.latency, limits.latency)
        text = f"latency: more than {limits.latency:g} times the baseline's"
        signals.append(Signal("latency", log_e, at, text))
    if strategy.prediction and green.predictions and old.predictions:
        log_e = drift_evidence(green.predictions, old.predictions, limits.drift)
        text = f"predictions: more than {limits.drift:.0%} lie where the old version's do not"
        signals.append(Signal("predictions", log_e, at, text))
    if memory is not None:
        signals.append(_memory(memory, limits.memory_mib))
    return tuple(signals)


def _memory(memory: Memory, allowed_mib: float) -> Signal:
    """A rule, not a test: growth beyond the baseline's, in MiB, against what is allowed."""
    natural = max(memory.baseline_now - memory.baseline_then, 0.0)
    grown = memory.green_now - memory.green_then - natural
    if not math.isfinite(grown) or memory.green_now <= 0:
        raise ValueError("resident memory")
    text = f"memory: grew by {grown / 2**20:.0f} MiB more than the baseline's"
    # Far from the limit it is calm; the scale is its own.
    value = grown / 2**20
    return Signal("memory", value if value > allowed_mib / 2 else -math.inf, allowed_mib, text)


def _few(side: Side) -> bool:
    return sum(side.predictions) < 20


def _sound(counts: Sequence[int], length: int) -> NDArray[np.float64]:
    histogram = np.asarray(counts, dtype=np.float64)
    if histogram.shape != (length,) or not np.isfinite(histogram).all() or (histogram < 0).any():
        raise ValueError("a histogram")
    return histogram


def _share(events: int, of: int) -> str:
    return f"{events} of {of} requests"
