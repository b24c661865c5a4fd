"""One canary without servers: the figures that a router would record, cut into stretches of
simulated time and decided by the functions that lead a real one.
"""

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
LOOKS = 8  # in the time that a step takes at least; and so on while it holds
MOST_WAITED = 20
# What router, server and replay add to a model's own time.
OVERHEAD_S = 0.002
# While another process has a server's core its requests take so many times as long.
STALL_S, STALLED = 0.5, 10.0
MIB = 2.0**20


@dataclass(frozen=True)
class Kind:
    """One deployment's behaviour: shares of requests, a latency's median and spread, bins.

    With `wake` it takes so much of the median longer for each request that went elsewhere since its
    last, at most MOST_WAITED of them: a server that is seldom asked is slow. Each of its processes
    stalls for STALL_S so many times a second.
    """

    errors: float
    refused: float
    median_s: float
    spread: float
    bins: tuple[float, ...]
    strange: float = 0.0
    leak_mib: float = 0.0  # a request
    wake: float = 0.0
    stalls: float = 0.0

    def mean_s(self, share: float) -> float:
        """Seconds of a request to a server that has that share of them."""
        waited = min((1 - share) / share, MOST_WAITED)
        return float(self.median_s * np.exp(self.spread**2 / 2) * (1 + self.wake * waited))


@dataclass(frozen=True)
class Simulated:
    """How it ended, why, how many requests green had, and how long it would have taken."""

    passed: bool
    why: str
    requests: int
    seconds: float


def healthy(draw: np.random.Generator) -> Kind:
    """A deployment of some project: seldom or never failing, quick or slow, many answers or few."""
    return Kind(
        errors=float(draw.choice([0.0, 0.0, 0.001, 0.01])),
        refused=float(draw.choice([0.0, 0.0, 0.02])),
        median_s=float(draw.choice([0.001, 0.01, 0.2])),
        spread=float(draw.uniform(0.1, 0.7)),
        bins=tuple(draw.dirichlet(np.ones(int(draw.integers(3, 12))))),
        wake=float(draw.choice([0.0, 0.1, 0.5])),
        stalls=float(draw.choice([0.0, 0.0, 1 / 60])),
    )


def spoilt(blue: Kind, change: Mapping[str, object], draw: np.random.Generator) -> Kind:
    """The healthy one with the change: its latency is a factor, its one bin any of the others."""
    green = replace(blue, **change)  # type: ignore[arg-type]
    if "median_s" in change:
        green = replace(green, median_s=blue.median_s * green.median_s)
    if "bins" in change:
        place = int(draw.integers(len(blue.bins)))
        green = replace(green, bins=tuple(float(index == place) for index in range(len(blue.bins))))
    return green


def moved(green: Kind, blue: Kind) -> float:
    """The share of green's predictions that lie where blue's do not."""
    return float(np.maximum(np.subtract(green.bins, blue.bins), 0).sum())


class _Server:
    """One process: its figures since the step began."""

    def __init__(self, kind: Kind, draw: np.random.Generator) -> None:
        self._kind, self._draw = kind, draw
        self._stalled = (0.0, 0.0)
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        bins = (0,) * len(self._kind.bins)
        self.side = Stats(0, 0, 0, np.zeros(BUCKETS, dtype=np.int64), 0, 0, bins)  # type: ignore[arg-type]

    def answer(self, requests: int, share: float, since: float, until: float) -> None:
        """So many more requests, of that share of all, in that span of time."""
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
            side.strange + int(draw.binomial(answers, kind.strange)),
            tuple(bins.tolist()),
        )


def simulate(
    green: Kind, blue: Kind, draw: np.random.Generator, callers_per_s: float | None = None
) -> Simulated:
    """One canary from its first step to its end; callers are none, some or many if not stated."""
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
        if per_s < ENOUGH_PER_S:  # one caller replays, each request after the last
            times = zip((green, blue, blue), shares, strict=True)
            per_s = 1 / (OVERHEAD_S + sum(part * kind.mean_s(part) for kind, part in times if part))
        for server in servers:
            server.begin()
        began, least = moment, stage.requests / (share * per_s)
        step = min(least / LOOKS, INTERVAL_S)
        intervals = LatencyIntervals("green", "baseline", _tallies(servers), clock)
        looks = 0
        while True:
            counts = draw.multinomial(draw.poisson(per_s * step), shares)
            for server, count, part in zip(servers, counts, shares, strict=True):
                server.answer(int(count), part, moment, moment + step)
            total, moment, looks = total + int(counts[0]), moment + step, looks + 1
            latencies = intervals.observe(_tallies(servers))
            if looks % max(round(least / LOOKS / step), 1):
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
    """The figures of both together."""
    return Stats(
        first.requests + second.requests,
        first.errors + second.errors,
        first.refused + second.refused,
        np.add(first.latency, second.latency).tolist(),
        first.answers + second.answers,
        first.strange + second.strange,
        tuple(np.add(first.predictions, second.predictions).tolist()),
    )
