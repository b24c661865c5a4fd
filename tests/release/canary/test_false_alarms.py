"""The level that a canary states, by simulation; `make bench ARGS="canary"` has more of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks import simulated_canary as canary
from ml.backends.traffic import BUCKETS, bucket
from ml.release.canary.verdict import decide, latency_log_e_value, limit

CANARIES = 100


def refused(green_factor: float) -> int:
    """Of so many canaries of servers that are the slower the less often they are asked."""
    draw = np.random.default_rng(7)
    found = 0
    for _ in range(CANARIES):
        blue = replace(canary.healthy(draw), errors=0.0, wake=0.5)
        green = replace(blue, median_s=blue.median_s * green_factor)
        found += not canary.simulate(green, blue, draw).passed
    return found


def test_servers_that_are_slow_when_seldom_asked_are_refused_at_the_level() -> None:
    """At most as often as chance allows at the stated level, with 1 chance in 1,000 to err."""
    assert refused(1.0) <= binom.ppf(0.999, CANARIES, canary.STRATEGY.false_alarms)


def test_a_slow_green_is_refused_although_all_are_slow_when_seldom_asked() -> None:
    """Twice the latency, at every gap between requests."""
    assert refused(2.0) == CANARIES


def test_a_slow_model_that_hardly_anybody_asks_is_given_the_time() -> None:
    """Replayed one after another, its requests take minutes; it is not refused for that."""
    draw = np.random.default_rng(5)
    for wake in (0.0, 0.1, 0.5):
        kind = replace(canary.healthy(draw), errors=0.0, median_s=0.2, wake=wake, stalls=0.0)
        found = canary.simulate(kind, kind, draw, callers_per_s=0.0)
        assert found.passed, found


def test_bursts_of_slowness_fall_on_both_alike() -> None:
    """The machine is busy for twenty requests at a time and all take five times as long: requests
    are not independent, but which server gets one is."""
    draw, at, found = np.random.default_rng(3), limit(canary.STRATEGY), 0
    for _ in range(CANARIES):
        busy = np.repeat(draw.random(450) < 0.3, 20)
        seconds = 0.01 * np.exp(0.2 * draw.normal(size=busy.size)) * np.where(busy, 5, 1)
        buckets = np.array([bucket(one) for one in seconds])
        to = draw.random(busy.size)
        alarms = []
        for seen in range(375, busy.size + 1, 375):
            green, baseline = (
                np.bincount(
                    buckets[:seen][(low <= to[:seen]) & (to[:seen] < low + 0.1)], minlength=BUCKETS
                )
                for low in (0.0, 0.1)
            )
            alarms.append(latency_log_e_value(green.tolist(), baseline.tolist(), 1.4) >= at)
        found += any(alarms)
    assert found <= binom.ppf(0.999, CANARIES, canary.STRATEGY.false_alarms)


def test_compared_with_blue_most_of_them_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the baseline is for: production is asked more often than a canary."""

    def by_blue(strategy: object, stage: int, green: object, old: object, *rest: object) -> object:
        return decide(strategy, stage, green, old, old, *rest[1:])  # type: ignore[arg-type]

    monkeypatch.setattr(canary, "decide", by_blue)
    assert refused(1.0) > CANARIES / 2
