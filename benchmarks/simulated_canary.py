"""Simulate a canary: draw the statistics that a router records, decide by the real functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ml.backends.traffic import BUCKETS, FIRST_S, PER_OCTAVE
from ml.release.canary.traffic import ENOUGH_PER_S, INTERVAL_S, LatencyIntervals
from ml.release.canary.verdict import Memory, Stats, decide
from ml.release.declaration.release_file import Strategy, Tolerances

STRATEGY = Strategy(prediction="answer", tolerances=Tolerances(latency_ms=0.0))
DECISIONS_PER_STEP = (
    8  # number of decisions in the minimum time of a step; later ones have the same interval
)
MOST_WAITED = 20
# Seconds that router, server and replay add to the model's time.
OVERHEAD_S = 0.002
# Seconds of a stall, during which another process uses the core, and the factor of its latency.
STALL_S, STALLED = 0.5, 10.0
MIB = 2.0**20


@dataclass(frozen=True)
class Kind:
    """The behaviour of a deployment: error rates, latency, distribution of predictions."""

    errors: float  # share of requests that fail
    refused: float  # share of other requests that are rejected
    median_s: float  # median latency
    spread: float  # standard deviation of the latency's logarithm
    bins: tuple[float, ...]  # share of predictions in each bin
    unknown_shapes: float = 0.0  # share of responses with another schema
    leak_mib: float = 0.0  # memory leak per request
    # Relative increase of the latency for each request that went to other servers since the last
    # one, at most MOST_WAITED: servers with few requests are slow.
    wake: float = 0.0
    stalls: float = 0.0  # stalls of STALL_S per second and process

    def mean_s(self, share: float) -> float:
        """Return the mean seconds of a request to a server with that share of all requests."""
        waited = min((1 - share) / share, MOST_WAITED)
        return float(self.median_s * np.exp(self.spread**2 / 2) * (1 + self.wake * waited))


@dataclass(frozen=True)
class Simulated:
    """The result of a canary: verdict, reason, requests to green, simulated seconds."""

    passed: bool
    why: str
    requests: int
    seconds: float


def healthy(draw: np.random.Generator) -> Kind:
    """Return a random healthy deployment: few or no errors, fast or slow, with few or many bins."""
    return Kind(
        errors=float(draw.choice([0.0, 0.0, 0.001, 0.01])),
        refused=float(draw.choice([0.0, 0.0, 0.02])),
        median_s=float(draw.choice([0.001, 0.01, 0.2])),
        spread=float(draw.uniform(0.1, 0.7)),
        bins=tuple(draw.dirichlet(np.ones(int(draw.integers(3, 12))))),
        wake=float(draw.choice([0.0, 0.1, 0.5])),
        stalls=float(draw.choice([0.0, 0.0, 1 / 60])),
    )


def with_defect(blue: Kind, change: Mapping[str, object], draw: np.random.Generator) -> Kind:
    """Return `blue` with a defect.

    A changed latency is a factor of blue's; a constant prediction is in one random bin.
    """
    green = replace(blue, **change)  # type: ignore[arg-type]
    if "median_s" in change:
        green = replace(green, median_s=blue.median_s * green.median_s)
    if "bins" in change:
        place = int(draw.integers(len(blue.bins)))
        green = replace(green, bins=tuple(float(index == place) for index in range(len(blue.bins))))
    return green


def shifted_share(green: Kind, blue: Kind) -> float:
    """Return the share of green's predictions that differ in distribution from blue's."""
    return float(np.maximum(np.subtract(green.bins, blue.bins), 0).sum())


class _Server:
    """A server process with its statistics since the start of the step."""

    def __init__(self, kind: Kind, draw: np.random.Generator) -> None:
        self._kind, self._draw = kind, draw
        self._stalled = (0.0, 0.0)
        self.begin()

    def begin(self) -> None:
        """Reset the statistics at the start of a step."""
        bins = (0,) * len(self._kind.bins)
        self.side = Stats(0, 0, 0, np.zeros(BUCKETS, dtype=np.int64), 0, 0, bins)  # type: ignore[arg-type]

    def answer(self, requests: int, share: float, since: float, until: float) -> None:
        """Simulate the requests in a time span; `share` is the server's share of all requests."""
        kind, draw, side = self._kind, self._draw, self.side
        if since >= self._stalled[1] and draw.random() < kind.stalls * (until - since):
            begun = draw.uniform(since, until)
            self._stalled = begun, begun + STALL_S
        if not requests:
            return
        errors = int(draw.binomial(requests, kind.errors))
        refused = int(draw.binomial(requests - errors, kind.refused))
        answers = requests - errors - refused
        waited = np.minimum(draw.geometric(share, requests) - 1, MOST_WAITED)
        seconds = np.exp(kind.spread * draw.normal(size=requests))
        seconds *= kind.median_s * (1 + kind.wake * waited)
        if self._stalled[1] > since:
            came = draw.uniform(since, until, requests)
            seconds[(came >= self._stalled[0]) & (came < self._stalled[1])] *= STALLED
        places = np.clip(np.log2(seconds / FIRST_S) * PER_OCTAVE + 1, 0, BUCKETS - 1).astype(int)
        latency: NDArray[np.int64] = side.latency + np.bincount(places, minlength=BUCKETS)
        bins = np.asarray(side.predictions) + draw.multinomial(answers, kind.bins)
        self.side = Stats(
            side.requests + requests,
            side.errors + errors,
            side.refused + refused,
            latency,  # type: ignore[arg-type]
            side.answers + answers,
            side.unknown_shapes + int(draw.binomial(answers, kind.unknown_shapes)),
            tuple(bins.tolist()),
        )


def simulate(
    green: Kind, blue: Kind, draw: np.random.Generator, callers_per_s: float | None = None
) -> Simulated:
    """Simulate a canary from its first step to its end.

    By default, the number of requests per second is drawn: 0 (replay only), 30 or 300.
    """
    if callers_per_s is None:
        callers_per_s = float(draw.choice([0.0, 30.0, 300.0]))
    servers = [_Server(green, draw), _Server(blue, draw), _Server(blue, draw)]
    total, old = 0, servers[1].side
    moment = 0.0

    def clock() -> float:
        return moment

    for number, stage in enumerate(STRATEGY.stages):
        share = stage.percent / 100
        shares = [share, share, 1 - 2 * share] if stage.balanced else [share, 0.0, 1 - share]
        per_s = callers_per_s
        if per_s < ENOUGH_PER_S:  # one caller replays requests one after another
            times = zip((green, blue, blue), shares, strict=True)
            per_s = 1 / (OVERHEAD_S + sum(part * kind.mean_s(part) for kind, part in times if part))
        for server in servers:
            server.begin()
        began, least = moment, stage.requests / (share * per_s)
        step = min(least / DECISIONS_PER_STEP, INTERVAL_S)
        intervals = LatencyIntervals("green", "baseline", _tallies(servers), clock)
        polls = 0
        while True:
            counts = draw.multinomial(draw.poisson(per_s * step), shares)
            for server, count, part in zip(servers, counts, shares, strict=True):
                server.answer(int(count), part, moment, moment + step)
            total, moment, polls = total + int(counts[0]), moment + step, polls + 1
            latencies = intervals.observe(_tallies(servers))
            if polls % max(round(least / DECISIONS_PER_STEP / step), 1):
                continue
            sides = [server.side for server in servers]
            if stage.percent < 100:
                old = pooled(sides[1], sides[2])
            grown = 60 + total * green.leak_mib + draw.normal(0, 2)
            memory = Memory(60 * MIB, grown * MIB, 60 * MIB, 60 * MIB)
            verdict = decide(STRATEGY, number, sides[0], old, sides[1], memory, True, latencies)
            if verdict.action == "roll-back":
                return Simulated(False, verdict.why, total, moment)
            if verdict.action == "go-on":
                break
            if moment - began > STRATEGY.step_s:
                return Simulated(False, f"undecided: {verdict.why}", total, moment)
    return Simulated(True, verdict.why, total, moment)


def _tallies(servers: list[_Server]) -> Mapping[str, Mapping[str, object]]:
    green, baseline, _ = servers
    return {
        "green": {"latency": green.side.latency},
        "baseline": {"latency": baseline.side.latency},
    }


def pooled(first: Stats, second: Stats) -> Stats:
    """Return the sum of two statistics."""
    return Stats(
        first.requests + second.requests,
        first.errors + second.errors,
        first.refused + second.refused,
        np.add(first.latency, second.latency).tolist(),
        first.answers + second.answers,
        first.unknown_shapes + second.unknown_shapes,
        tuple(np.add(first.predictions, second.predictions).tolist()),
    )
