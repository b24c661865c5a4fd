"""The decision of a canary (go on, hold or roll back) from its statistics.

All functions are pure. Invalid statistics roll back: a canary fails closed.

Errors, rejections, shapes and predictions do not depend on a server's load or age; they are
compared with those of both servers of the old version. Latency and memory do depend on it. They are
compared with a baseline: a second server of the old version, started with green and given as many
requests (spinnaker.io/docs/guides/user/canary/best-practices: "compare canary against baseline, not
against production").

Only requests that the router assigns at random are judged, so a slow machine slows both servers
alike. An answer within `latency_ms` is never slow, whatever the baseline's latency is. The
project's samples decide whether green goes on. Clients may send anything at any rate, so their
requests are compared separately and can only count against green: they can neither hide its errors
nor replace samples.

A process that briefly shares its core delays tens of requests together, which the test would count
as independent. So latency rolls back only if it still alarms with any single interval left out.

The test of a signal is valid at any time. Its `log_e_value` is the logarithm of an e-process: as
long as green's rate exceeds the old version's by no more than the margin, the chance that it *ever*
reaches log(1/alpha), however often it is evaluated and whatever follows from it, is at most
alpha (Ville's inequality). It is a mixture likelihood ratio by universal inference: each side's
counts under a Beta mixture over its rate, over the likelihood of the best pair of rates that the
null allows (Ramdas, Grünwald, Vovk, Shafer 2023, "Game-theoretic statistics and safe anytime-valid
inference", sections 4 and 5; Wasserman, Ramdas, Balakrishnan 2020). The two sides are independent,
and which of them gets the next request may depend on the past. Averages of e-processes with fixed
weights are e-processes, so one signal may test many thresholds; several signals split alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, xlog1py, xlogy

from ml.backends.traffic import BUCKETS, PER_OCTAVE, REQUEST_KINDS, bucket
from ml.release.declaration.release_file import Strategy

Action = Literal["go-on", "hold", "roll-back"]
# The signals with a sequential test, for requests of each kind. The probability of false alarms is
# split equally among them.
TESTED = ("errors", "refused", "latency", "answers", "predictions")
# A signal with a higher log e-value needs more requests before the next step.
SETTLED = -1.0
# Latency is compared at every fourth bucket of the histogram: half an octave apart.
_EVERY = 4
# The share of requests that may exceed the tolerated latency.
_LATER = 0.02
# Beta priors of the mixture. A wrong prior costs power, never the level of the test.
EVEN = (0.5, 0.5)
RARE = (0.5, 30.0)  # for rare events
_STEPS = 36  # bisection: 2 ** -36 of the interval
Floats = NDArray[np.float64]
# Latency histograms of green and of its baseline.
Latencies = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Stats:
    """The statistics of one or more servers since the step began."""

    requests: int
    errors: int  # answers with status 500 or more, or of the router itself
    refused: int  # answers of the server with status 400 to 499
    latency: Sequence[int]  # requests by bucket of the router's histogram
    answers: int = 0  # answers whose shape was read
    # Of those, answers with a shape that the old version's first answers lack.
    unknown_shapes: int = 0
    predictions: Sequence[int] = ()  # answers by bin of the prediction


@dataclass(frozen=True)
class Memory:
    """Resident bytes of green and of its baseline: when green was warm, and now."""

    green_then: float
    green_now: float
    baseline_then: float
    baseline_now: float


@dataclass(frozen=True)
class Signal:
    """The log e-value of a signal against green, the limit that rolls back, and a sentence."""

    name: str
    log_e_value: float
    limit: float
    sentence: str

    @property
    def alarmed(self) -> bool:
        """True if green is worse than tolerated. A NaN alarms."""
        return not self.log_e_value < self.limit

    @property
    def is_settled(self) -> bool:
        """True if the signal needs no more requests."""
        return self.log_e_value <= SETTLED or self.log_e_value == -math.inf


@dataclass(frozen=True)
class Verdict:
    """The action, the reason in a sentence, and every signal."""

    action: Action
    why: str
    signals: tuple[Signal, ...]


def decide(
    strategy: Strategy,
    stage: int,
    green: Stats,
    old: Stats,
    baseline: Stats,
    memory: Memory | None,
    alive: bool,
    intervals: Sequence[Latencies] = (),
) -> Verdict:
    """Return the verdict on the replayed samples at this poll of the stage.

    `old` are the joint statistics of blue and its baseline; at the last stage, where green gets all
    requests, those of the stage before. `intervals` are the latencies of green and its baseline by
    interval; a green that was slow in only one interval is held. Latency is not tested if green
    gets more than half of the requests, because the baseline then gets fewer.
    """
    if not alive:
        return Verdict("roll-back", "green's process has ended", ())
    balanced = strategy.stages[stage].balanced
    alarm, signals = _alarm(strategy, green, old, baseline if balanced else None, memory, intervals)
    if alarm is not None:
        return alarm
    required = strategy.stages[stage].requests
    fewest = min(signal.requests for signal in (green, old, *([baseline] if balanced else [])))
    if fewest < required:
        return Verdict("hold", f"{fewest} of {required} requests", signals)
    patient = green.requests < required * strategy.patience
    if strategy.prediction and (_few(green) or _few(old)):
        return Verdict("hold" if patient else "roll-back", "too few predictions were read", signals)
    undecided = [signal.name for signal in signals if not signal.is_settled]
    if undecided and patient:
        return Verdict("hold", f"{', '.join(undecided)} not calm yet", signals)
    return Verdict("go-on", f"{green.requests} requests, nothing worse than tolerated", signals)


def apply_client_evidence(
    verdict: Verdict,
    strategy: Strategy,
    stage: int,
    green: Stats,
    old: Stats,
    baseline: Stats,
    patient: bool,
    intervals: Sequence[Latencies] = (),
) -> Verdict:
    """Return the verdict on the samples, made stricter by the statistics of client requests.

    Roll back if client requests alarm. If a signal leans against green, hold a green that passes by
    the samples while `patient`.
    """
    if verdict.action == "roll-back":
        return verdict
    balanced = strategy.stages[stage].balanced
    alarm, signals = _alarm(strategy, green, old, baseline if balanced else None, None, intervals)
    if alarm is not None:
        return replace(alarm, why=f"requests of clients: {alarm.why}")
    leaning = [signal.name for signal in signals if signal.log_e_value > 0]
    if verdict.action == "go-on" and leaning and patient:
        return Verdict("hold", f"requests of clients: {', '.join(leaning)} not calm yet", signals)
    return verdict


def limit(strategy: Strategy) -> float:
    """Return the log e-value at which one signal of one stage rolls back."""
    return math.log(len(TESTED) * len(REQUEST_KINDS) * len(strategy.stages) / strategy.false_alarms)


def latency_log_e_value(
    green: Sequence[int], baseline: Sequence[int], factor: float, lenient_ms: float = 0.0
) -> float:
    """Return the log e-value against "green's latency is at most `factor` times the baseline's".

    `green` and `baseline` are latency histograms. Answers within `lenient_ms` are never too slow.
    """
    counts_g, counts_b = _sound(green, BUCKETS), _sound(baseline, BUCKETS)
    edges = np.arange(1, BUCKETS, _EVERY)
    shift = math.ceil(math.log2(factor) * PER_OCTAVE - 1e-9)
    # Bucket k holds the times from the bound of bucket k - 1 on.
    edges = edges[(edges + shift < BUCKETS) & (edges + shift > bucket(lenient_ms / 1000))]
    later_g = counts_g[::-1].cumsum()[::-1]  # [k]: in bucket k or later
    later_b = counts_b[::-1].cumsum()[::-1]
    return averaged(
        log_e_value(later_g[edges + shift], later_g[0], later_b[edges], later_b[0], _LATER)
    )


def _alarm(
    strategy: Strategy,
    green: Stats,
    old: Stats,
    baseline: Stats | None,
    memory: Memory | None,
    intervals: Sequence[Latencies],
) -> tuple[Verdict | None, tuple[Signal, ...]]:
    """Return (verdict if a signal alarms else None, all signals); latency needs a `baseline`."""
    try:
        signals = _signals(strategy, green, old, baseline, memory)
    except (ValueError, TypeError, OverflowError) as error:
        return Verdict("roll-back", f"the figures cannot be trusted: {error}", ()), ()
    alarms = [signal for signal in signals if signal.alarmed]
    if not alarms:
        return None, signals
    only_latency = [signal.name for signal in alarms] == ["latency"]
    if (
        baseline is not None
        and only_latency
        and not _is_lasting(green, baseline, intervals, strategy)
    ):
        return Verdict("hold", "slower, in one interval so far", signals), signals
    return Verdict("roll-back", "; ".join(signal.sentence for signal in alarms), signals), signals


def _is_lasting(
    green: Stats,
    baseline: Stats,
    intervals: Sequence[Latencies],
    strategy: Strategy,
) -> bool:
    """Return whether green's latency still alarms if any single interval is left out."""
    limits = strategy.tolerances
    return all(
        latency_log_e_value(
            np.subtract(green.latency, without[0]).tolist(),
            np.subtract(baseline.latency, without[1]).tolist(),
            limits.latency,
            limits.latency_ms,
        )
        >= limit(strategy)
        for without in intervals
    )


def drift_evidence(green: Sequence[int], old: Sequence[int], tolerated: float) -> float:
    """Return the log e-value against "the predictions drifted by no more than `tolerated`".

    Drift is by how much green's share of predictions in a set of bins exceeds the old version's.
    The sets are each bin, each range of bins from the first, and their complements.
    """
    if not len(green) or len(green) != len(old):
        raise ValueError(f"{len(green)} and {len(old)} bins of predictions")
    counts_g, counts_b = _sound(green, len(green)), _sound(old, len(old))
    sets_g, sets_b = [counts_g, counts_g.cumsum()], [counts_b, counts_b.cumsum()]
    in_g, in_b = np.concatenate(sets_g), np.concatenate(sets_b)
    n, m = counts_g.sum(), counts_b.sum()
    both = [log_e_value(in_g, n, in_b, m, tolerated, EVEN)]
    both.append(log_e_value(n - in_g, n, m - in_b, m, tolerated, EVEN))
    return averaged(np.concatenate(both))


def _signals(
    strategy: Strategy, green: Stats, old: Stats, baseline: Stats | None, memory: Memory | None
) -> tuple[Signal, ...]:
    limits, threshold = strategy.tolerances, limit(strategy)
    signals = []
    for name, g, n, b, m, margin in (
        ("errors", green.errors, green.requests, old.errors, old.requests, limits.errors),
        ("refused", green.refused, green.requests, old.refused, old.requests, limits.refused),
        (
            "answers",
            green.unknown_shapes,
            green.answers,
            old.unknown_shapes,
            old.answers,
            limits.answers,
        ),
    ):
        log_e = float(log_e_value(g, n, b, m, margin, RARE))
        text = f"{name}: {_share(g, n)} of green's, {_share(b, m)} of the old version's"
        signals.append(Signal(name, log_e, threshold, text))
    if baseline is not None:
        log_e = latency_log_e_value(
            green.latency, baseline.latency, limits.latency, limits.latency_ms
        )
        text = (
            f"latency: more than {limits.latency:g} times the baseline's, and over"
            f" {limits.latency_ms:g} ms"
        )
        signals.append(Signal("latency", log_e, threshold, text))
    if strategy.prediction and green.predictions and old.predictions:
        log_e = drift_evidence(green.predictions, old.predictions, limits.drift)
        text = f"predictions: more than {limits.drift:.0%} lie where the old version's do not"
        signals.append(Signal("predictions", log_e, threshold, text))
    if memory is not None:
        signals.append(_memory(memory, limits.memory_mib))
    return tuple(signals)


def _memory(memory: Memory, allowed_mib: float) -> Signal:
    """Return the signal of memory growth beyond the baseline's: a limit in MiB, no e-value."""
    natural = max(memory.baseline_now - memory.baseline_then, 0.0)
    grown = memory.green_now - memory.green_then - natural
    if not math.isfinite(grown) or memory.green_now <= 0:
        raise ValueError("resident memory")
    text = f"memory: grew by {grown / 2**20:.0f} MiB more than the baseline's"
    # Its scale is MiB; below half the limit the signal is settled.
    value = grown / 2**20
    return Signal("memory", value if value > allowed_mib / 2 else -math.inf, allowed_mib, text)


def _few(side: Stats) -> bool:
    return sum(side.predictions) < 20


def _sound(counts: Sequence[int], length: int) -> Floats:
    histogram = np.asarray(counts, dtype=np.float64)
    if histogram.shape != (length,) or not np.isfinite(histogram).all() or (histogram < 0).any():
        raise ValueError("a histogram")
    return histogram


def _share(events: int, total: int) -> str:
    return f"{events} of {total} requests"


def log_e_value(
    green: ArrayLike,
    green_requests: ArrayLike,
    blue: ArrayLike,
    blue_requests: ArrayLike,
    margin: float,
    prior: tuple[float, float] = EVEN,
) -> Floats:
    """Return the log e-value against `green's rate <= blue's rate + margin`, elementwise.

    `green` and `blue` count the events (errors, say) among their requests. Raises ValueError for
    counts that are negative, not finite, or larger than the number of requests.
    """
    counts = [
        np.asarray(count, dtype=np.float64)
        for count in (green, green_requests, blue, blue_requests)
    ]
    g, n, b, m = np.broadcast_arrays(*counts)
    valid = (g >= 0) & (g <= n) & (b >= 0) & (b <= m) & np.isfinite(n + m)
    if not valid.all():  # NaN compares false
        raise ValueError("counts of events among requests")
    # The maximum-likelihood rates; if the null excludes them, those on its border.
    best_g = np.asarray(g / np.maximum(n, 1))  # numpy makes scalars of arrays without axes
    best_b = np.asarray(b / np.maximum(m, 1))
    out = (best_g > best_b + margin) & (n > 0) & (m > 0)
    if out.any():
        border = _border(g[out], n[out], b[out], m[out], margin)
        best_g[out], best_b[out] = border + margin, border
    mixture = _mixture(g, n, prior) + _mixture(b, m, prior)
    return np.asarray(mixture - _likelihood(best_g, g, n) - _likelihood(best_b, b, m))


def _border(g: Floats, n: Floats, b: Floats, m: Floats, margin: float) -> Floats:
    """Return blue's most likely rate, given that green's is that rate plus the margin."""
    low: Floats = np.zeros(g.shape)
    high: Floats = np.full(g.shape, 1 - margin)
    for _ in range(_STEPS):  # the likelihood on the border is concave: halve by its slope
        middle = (low + high) / 2
        rises = _slope(middle + margin, g, n) + _slope(middle, b, m) > 0
        low[rises], high[~rises] = middle[rises], middle[~rises]
    return np.asarray((low + high) / 2)


def averaged(evidences: ArrayLike) -> float:
    """Return the log of the mean of e-values given by their logs; -inf (no evidence) for none.

    The mean of equal values is exact: without requests it is 0, which favours neither side.
    """
    logs = np.asarray(evidences, dtype=np.float64)
    if logs.size == 0:
        return -np.inf
    largest = logs.max()
    if not np.isfinite(largest):
        return float(largest)
    return float(largest + np.log(np.exp(logs - largest).mean()))


def _mixture(events: Floats, requests: Floats, prior: tuple[float, float]) -> Floats:
    a, b = prior
    log = betaln(events + a, requests - events + b) - betaln(a, b)
    return np.asarray(log, dtype=np.float64)


def _likelihood(rate: Floats, events: Floats, requests: Floats) -> Floats:
    log = xlogy(events, rate) + xlog1py(requests - events, -rate)
    return np.asarray(log, dtype=np.float64)


def _slope(rate: Floats, events: Floats, requests: Floats) -> Floats:
    """Return the derivative of the log-likelihood by the rate."""
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.where(events > 0, events / rate, 0.0)
        down = np.where(requests > events, (requests - events) / (1 - rate), 0.0)
    slope: Floats = up - down
    return slope
