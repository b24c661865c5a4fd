"""Go on, hold or roll back: what the figures of green and blue say at one step. Pure functions.

Whatever cannot be read as sound figures rolls back: a canary fails closed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ml.release.sequential import EVEN, RARE, averaged, evidence
from ml.release.strategy import Strategy
from ml.serving.router.tally import BUCKETS, FIRST_S, PER_OCTAVE

Action = Literal["go-on", "hold", "roll-back"]
# The signals that a sequential test decides, each at its share of the false alarms.
TESTED = ("errors", "refused", "latency", "answers", "predictions")
# A signal whose evidence is above this is not calm: more requests before the next step.
CALM = -1.0
# Latency is compared at every fourth bucket of the histogram: half an octave apart.
_EVERY = 4
# The share of requests that may be later than tolerated at any one time.
_LATER = 0.02


@dataclass(frozen=True)
class Side:
    """One deployment's figures since the step began.

    `latency` counts by the router's buckets. `answers` were read for their shape, `strange` of them
    had one that blue's first answers never had. `predictions` counts answers by bin.
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
    """Resident bytes of green and of blue: when green was warm, and now."""

    green_then: float
    green_now: float
    blue_then: float
    blue_now: float


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


def judge(
    strategy: Strategy, stage: int, green: Side, blue: Side, memory: Memory | None, alive: bool
) -> Verdict:
    """What to do at this look at the stage of that number.

    At the last stage blue's figures are those of the one before: it gets no requests any more, and
    latency under the whole load is not compared with latency under half of it.
    """
    if not alive:
        return Verdict("roll-back", "green's process has ended", ())
    try:
        signals = _signals(strategy, strategy.stages[stage].percent == 100, green, blue, memory)
    except (ValueError, TypeError, OverflowError) as error:
        return Verdict("roll-back", f"the figures cannot be trusted: {error}", ())
    if alarms := [one for one in signals if one.alarmed]:
        return Verdict("roll-back", "; ".join(one.said for one in alarms), signals)
    wanted = strategy.stages[stage].requests
    if green.requests < wanted or blue.requests < wanted:
        fewer = min(green.requests, blue.requests)
        return Verdict("hold", f"{fewer} of {wanted} requests", signals)
    if strategy.prediction and (_few(green) or _few(blue)):
        return Verdict("hold", "too few predictions were read", signals)
    restless = [one.name for one in signals if not one.calm]
    if restless and green.requests < wanted * strategy.patience:
        return Verdict("hold", f"{', '.join(restless)} not calm yet", signals)
    return Verdict("go-on", f"{green.requests} requests, nothing worse than tolerated", signals)


def limit(strategy: Strategy) -> float:
    """The log evidence at which one signal of one stage rolls back."""
    return math.log(len(TESTED) * len(strategy.stages) / strategy.false_alarms)


def latency_evidence(
    green: Sequence[int], blue: Sequence[int], factor: float, slack_s: float = 0.0
) -> float:
    """log E against "green's times are at most blue's times `factor`, or `slack_s` seconds more".

    A server that gets a tenth of the requests answers each a little later than one that is always
    awake: below some milliseconds a factor alone would tell the shares of the traffic apart.
    """
    counts_g, counts_b = _sound(green, BUCKETS), _sound(blue, BUCKETS)
    edges = np.arange(1, BUCKETS, _EVERY)
    times = FIRST_S * 2.0 ** ((edges - 1) / PER_OCTAVE)  # in bucket k or later: from then on
    late = np.maximum(times * factor, times + slack_s)
    tolerated = 1 + np.ceil(np.log2(late / FIRST_S) * PER_OCTAVE - 1e-9).astype(int)
    edges, tolerated = edges[tolerated < BUCKETS], tolerated[tolerated < BUCKETS]
    later_g = counts_g[::-1].cumsum()[::-1]  # [k]: in bucket k or later
    later_b = counts_b[::-1].cumsum()[::-1]
    return averaged(evidence(later_g[tolerated], later_g[0], later_b[edges], later_b[0], _LATER))


def drift_evidence(green: Sequence[int], blue: Sequence[int], tolerated: float) -> float:
    """log E against "no set of bins holds more of green's predictions than tolerated".

    The sets are each bin, each run of bins from the first, and what each leaves over.
    """
    if not len(green) or len(green) != len(blue):
        raise ValueError(f"{len(green)} and {len(blue)} bins of predictions")
    counts_g, counts_b = _sound(green, len(green)), _sound(blue, len(blue))
    sets_g, sets_b = [counts_g, counts_g.cumsum()], [counts_b, counts_b.cumsum()]
    in_g, in_b = np.concatenate(sets_g), np.concatenate(sets_b)
    n, m = counts_g.sum(), counts_b.sum()
    both = [evidence(in_g, n, in_b, m, tolerated, EVEN)]
    both.append(evidence(n - in_g, n, m - in_b, m, tolerated, EVEN))
    return averaged(np.concatenate(both))


def _signals(
    strategy: Strategy, last: bool, green: Side, blue: Side, memory: Memory | None
) -> tuple[Signal, ...]:
    limits, at = strategy.tolerances, limit(strategy)
    found = []
    for name, g, n, b, m, margin in (
        ("errors", green.errors, green.requests, blue.errors, blue.requests, limits.errors),
        ("refused", green.refused, green.requests, blue.refused, blue.requests, limits.refused),
        ("answers", green.strange, green.answers, blue.strange, blue.answers, limits.answers),
    ):
        log_e = float(evidence(g, n, b, m, margin, RARE))
        said = f"{name}: {_share(g, n)} of green's, {_share(b, m)} of blue's"
        found.append(Signal(name, log_e, at, said))
    if not last:
        slack = limits.latency_ms / 1000
        log_e = latency_evidence(green.latency, blue.latency, limits.latency, slack)
        said = f"latency: more than {limits.latency:g} times blue's, and {limits.latency_ms:g} ms"
        found.append(Signal("latency", log_e, at, said))
    if strategy.prediction and green.predictions and blue.predictions:
        log_e = drift_evidence(green.predictions, blue.predictions, limits.drift)
        said = f"predictions: more than {limits.drift:.0%} lie where blue's do not"
        found.append(Signal("predictions", log_e, at, said))
    if memory is not None:
        found.append(_memory(memory, limits.memory_mib))
    return tuple(found)


def _memory(memory: Memory, allowed_mib: float) -> Signal:
    """A rule, not a test: growth beyond blue's, in MiB, against what is allowed."""
    grown = memory.green_now - memory.green_then - max(memory.blue_now - memory.blue_then, 0.0)
    if not math.isfinite(grown) or memory.green_now <= 0:
        raise ValueError("resident memory")
    said = f"memory: grew by {grown / 2**20:.0f} MiB more than blue's"
    # Far from the limit it is calm; the scale is its own.
    value = grown / 2**20
    return Signal("memory", value if value > allowed_mib / 2 else -math.inf, allowed_mib, said)


def _few(side: Side) -> bool:
    return sum(side.predictions) < 20


def _sound(counts: Sequence[int], length: int) -> NDArray[np.float64]:
    found = np.asarray(counts, dtype=np.float64)
    if found.shape != (length,) or not np.isfinite(found).all() or (found < 0).any():
        raise ValueError("a histogram")
    return found


def _share(events: int, of: int) -> str:
    return f"{events} of {of} requests"
