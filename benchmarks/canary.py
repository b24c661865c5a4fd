"""Canaries: how often a healthy green is refused, and how often and how soon a bad one is.

Simulated canaries draw the figures that a router would record and go through the very function that
decides; two thirds of the servers are the slower the less often they are asked. Real canaries are
three inference servers behind a router, with replayed requests. The ratio is the upper end of the
95 % interval of the simulated false-alarm rate over the level that is stated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from ml.release.signals import Memory, Side, judge
from ml.release.strategy import Strategy
from ml.serving.router.tally import BUCKETS, FIRST_S, PER_OCTAVE

STRATEGY = Strategy(prediction="answer")
LOOKS = 4  # in the time that a step takes at least; and so on while it holds
HEALTHY, BAD, REAL = 10_000, 400, 200
PAIRS_OF_SERVERS = 10
MOST_WAITED = 20
MIB = 2.0**20
CONSTANT = "a constant prediction"


@dataclass(frozen=True)
class Kind:
    """One deployment's behaviour: shares of requests, a latency's median and spread, bins.

    With `wake` it takes so much of the median longer for each request that went elsewhere since its
    last, at most MOST_WAITED of them: a server that is seldom asked is slow.
    """

    errors: float
    refused: float
    median_s: float
    spread: float
    bins: tuple[float, ...]
    strange: float = 0.0
    leak_mib: float = 0.0  # a request
    wake: float = 0.0


def main(quick: bool) -> float:
    draw = np.random.default_rng(20)
    count = HEALTHY // 20 if quick else HEALTHY
    refused = 0
    looked: list[int] = []
    for _ in range(count):
        kind = healthy(draw)
        verdict, requests = simulate(kind, kind, draw)
        refused += verdict != "go-on"
        looked.append(requests)
    low, high = interval(refused, count)
    level = STRATEGY.false_alarms
    print(f"{count} simulated healthy canaries: {refused} refused, {refused / count:.2%}")
    print(f"  95 % interval {low:.3%} to {high:.3%}; stated level {level:.0%}")
    print(f"  {np.mean(looked):.0f} requests to green on average")
    for name, change in bad().items():
        found = []
        for _ in range(BAD // 10 if quick else BAD):
            blue = replace(healthy(draw), errors=0.0)
            green = spoilt(blue, change, draw)
            found.append((*simulate(green, blue, draw), moved(green, blue)))
        caught = [requests for verdict, requests, _ in found if verdict == "roll-back"]
        missed = [share for verdict, _, share in found if verdict != "roll-back"]
        middle = f"{np.median(caught):.0f}" if caught else "no"
        print(f"{name:22} refused {len(caught)} of {len(found)}, after {middle} requests to green")
        if missed and name == CONSTANT:
            allowed = STRATEGY.tolerances.drift
            within = sum(share <= allowed for share in missed)
            print(
                f"  of the {len(missed)} others {within} move no more predictions than the "
                f"tolerated {allowed:.0%}, since blue mostly gives that answer; the most that any "
                f"moves is {max(missed):.0%}"
            )
    real(5 if quick else REAL)
    return high / level


def healthy(draw: np.random.Generator) -> Kind:
    """A deployment of some project: seldom or never failing, quick or slow, many answers or few."""
    return Kind(
        errors=float(draw.choice([0.0, 0.0, 0.001, 0.01])),
        refused=float(draw.choice([0.0, 0.0, 0.02])),
        median_s=float(draw.choice([0.001, 0.01, 0.2])),
        spread=float(draw.uniform(0.1, 0.7)),
        bins=tuple(draw.dirichlet(np.ones(int(draw.integers(3, 12))))),
        wake=float(draw.choice([0.0, 0.1, 0.5])),
    )


def bad() -> Mapping[str, Mapping[str, object]]:
    """What is changed in a healthy one."""
    return {
        "errors 2 %": {"errors": 0.02},
        "errors 10 %": {"errors": 0.10},
        "errors 100 %": {"errors": 1.0},
        "twice the latency": {"median_s": 2.0},
        CONSTANT: {"bins": (1.0,)},
        "a memory leak": {"leak_mib": 0.2},
        "another schema": {"strange": 1.0},
    }


def spoilt(blue: Kind, change: Mapping[str, object], draw: np.random.Generator) -> Kind:
    """The healthy one with the change: its latency is a factor, its one bin any of the others."""
    green = replace(blue, **change)  # type: ignore[arg-type]
    if "median_s" in change:
        green = replace(green, median_s=blue.median_s * green.median_s)
    if "bins" in change:
        place = int(draw.integers(len(blue.bins)))
        green = replace(green, bins=tuple(float(at == place) for at in range(len(blue.bins))))
    return green


def moved(green: Kind, blue: Kind) -> float:
    """The share of green's predictions that lie where blue's do not."""
    return float(np.maximum(np.subtract(green.bins, blue.bins), 0).sum())


def simulate(green: Kind, blue: Kind, draw: np.random.Generator) -> tuple[str, int]:
    """The last action of one canary, and how many requests green had."""
    total, old = 0, _none(len(blue.bins))
    for number, stage in enumerate(STRATEGY.stages):
        share = stage.percent / 100
        shares = [share, share, 1 - 2 * share] if stage.balanced else [share, 0.0, 1 - share]
        sides = [_none(len(blue.bins)) for _ in shares]
        for _ in range(LOOKS * STRATEGY.patience + 1):
            part = round((stage.requests // LOOKS + 1) / share)
            counts = draw.multinomial(part, shares)
            sides = [
                _more(side, kind, int(count), share, draw)
                for side, kind, count, share in zip(
                    sides, (green, blue, blue), counts, shares, strict=True
                )
            ]
            total += int(counts[0])
            if stage.percent < 100:
                old = pooled(sides[1], sides[2])
            grown = 60 + total * green.leak_mib + draw.normal(0, 2)
            memory = Memory(60 * MIB, grown * MIB, 60 * MIB, 60 * MIB)
            verdict = judge(STRATEGY, number, sides[0], old, sides[1], memory, True)
            if verdict.action != "hold":
                break
        if verdict.action != "go-on":
            return "roll-back", total
    return "go-on", total


def real(count: int) -> None:
    """Healthy greens on real servers, each canary from its first step to its last."""
    from tests.release.greens import STRATEGY as EVERY
    from tests.release.greens import pair

    short = replace(EVERY, requests=(20, 40, 20))
    refused, requests, seconds, failed = [], 0, 0.0, 0
    done = 0
    while done < count:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLOPS_HOME"] = f"{folder}/home"
            with pair(Path(folder)) as made:
                for _ in range(min(max(count // PAIRS_OF_SERVERS, 1), count - done)):
                    outcome = made.lead(short)
                    done += 1
                    requests += sum(outcome.requests.values())
                    failed += sum(outcome.errors.values())
                    seconds += outcome.seconds
                    if outcome.kind != "passed":
                        refused.append(outcome.why)
        print(f"  {done} of {count} real ones, {len(refused)} refused", flush=True)
    _low, high = interval(len(refused), count)
    print(f"{count} real healthy canaries: {len(refused)} refused, 95 % interval to {high:.1%}")
    print(f"  {requests} requests, {failed} failed, {seconds / count:.1f} s a canary")
    for why in refused:
        print(f"  refused: {why}")


def interval(events: int, of: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share."""
    low = float(beta.ppf(0.025, events, of - events + 1)) if events else 0.0
    return low, float(beta.ppf(0.975, events + 1, of - events)) if events < of else 1.0


def _none(bins: int) -> Side:
    return Side(0, 0, 0, [0] * BUCKETS, 0, 0, (0,) * bins)


def pooled(one: Side, other: Side) -> Side:
    """The figures of both together."""
    return Side(
        one.requests + other.requests,
        one.errors + other.errors,
        one.refused + other.refused,
        np.add(one.latency, other.latency).tolist(),
        one.answers + other.answers,
        one.strange + other.strange,
        tuple(np.add(one.predictions, other.predictions).tolist()),
    )


def _more(side: Side, kind: Kind, requests: int, share: float, draw: np.random.Generator) -> Side:
    """The side after so many more requests, when it has that share of all."""
    if not requests:
        return side
    errors = int(draw.binomial(requests, kind.errors))
    refused = int(draw.binomial(requests - errors, kind.refused))
    answers = requests - errors - refused
    waited = np.minimum(draw.geometric(share, requests) - 1, MOST_WAITED)
    median_s = kind.median_s * (1 + kind.wake * waited)
    seconds = median_s * np.exp(kind.spread * draw.normal(size=requests))
    places = np.clip(np.log2(seconds / FIRST_S) * PER_OCTAVE + 1, 0, BUCKETS - 1).astype(int)
    latency: NDArray[np.int64] = np.asarray(side.latency) + np.bincount(places, minlength=BUCKETS)
    bins = np.asarray(side.predictions) + draw.multinomial(answers, kind.bins)
    return Side(
        side.requests + requests,
        side.errors + errors,
        side.refused + refused,
        latency.tolist(),
        side.answers + answers,
        side.strange + int(draw.binomial(answers, kind.strange)),
        tuple(bins.tolist()),
    )
