"""ml.release.signals: go on, hold or roll back, from figures alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ml.release.signals import Memory, Side, judge, latency_evidence
from ml.release.strategy import Strategy
from ml.serving.router.tally import BUCKETS, bucket

STRATEGY = Strategy(requests=(100, 100, 100), prediction="answer")
MIB = 2.0**20


def times(count: int, seconds: float) -> list[int]:
    """That many answers after that long."""
    found = [0] * BUCKETS
    found[bucket(seconds)] = count
    return found


BLUE = Side(900, 0, 0, times(900, 0.01), 900, 0, (450, 450))
GREEN = Side(100, 0, 0, times(100, 0.01), 100, 0, (50, 50))
STEADY = Memory(200 * MIB, 201 * MIB, 200 * MIB, 200 * MIB)


def test_enough_requests_without_a_difference_go_on() -> None:
    """One short of the minimum, green's or blue's, holds."""
    assert judge(STRATEGY, 0, GREEN, BLUE, STEADY, True).action == "go-on"
    few = replace(GREEN, requests=99, latency=times(99, 0.01))
    assert judge(STRATEGY, 0, few, BLUE, STEADY, True).action == "hold"
    silent = replace(BLUE, requests=99, latency=times(99, 0.01))
    assert judge(STRATEGY, 0, GREEN, silent, STEADY, True).action == "hold"


@pytest.mark.parametrize(
    ("green", "name"),
    [
        (replace(GREEN, errors=8), "errors"),
        (replace(GREEN, refused=12), "refused"),
        (replace(GREEN, strange=12), "answers"),
        (replace(GREEN, latency=times(100, 0.02)), "latency"),
        (replace(GREEN, predictions=(100, 0)), "predictions"),
    ],
)
def test_each_signal_alone_rolls_back(green: Side, name: str) -> None:
    """And the verdict names it."""
    verdict = judge(STRATEGY, 0, green, BLUE, STEADY, True)
    assert verdict.action == "roll-back" and verdict.why.startswith(name)
    assert [one.name for one in verdict.signals if one.alarmed] == [name]


@pytest.mark.parametrize(
    "green",
    [
        replace(GREEN, latency=times(100, 0.0130)),
        replace(GREEN, predictions=(60, 40)),
        replace(GREEN, refused=1),
    ],
)
def test_a_difference_that_is_tolerated_goes_on(green: Side) -> None:
    """A little slower, a few other predictions, one request refused: green is not refused."""
    assert judge(STRATEGY, 0, green, BLUE, STEADY, True).action in ("go-on", "hold")


def test_what_is_not_calm_yet_is_watched_longer_but_not_for_ever() -> None:
    """Two errors of a hundred hold; still not settled at the limit of patience, they pass."""
    held = judge(STRATEGY, 0, replace(GREEN, errors=2), BLUE, STEADY, True)
    assert held.action == "hold" and "errors not calm" in held.why
    later = replace(GREEN, requests=600, errors=6, latency=times(600, 0.01))
    assert judge(STRATEGY, 0, later, BLUE, STEADY, True).action == "go-on"


def test_growing_memory_rolls_back() -> None:
    """Beyond what is allowed, and only what blue did not grow by too."""
    grown = Memory(200 * MIB, 260 * MIB, 200 * MIB, 200 * MIB)
    verdict = judge(STRATEGY, 0, GREEN, BLUE, grown, True)
    assert verdict.action == "roll-back" and "memory: grew by 60 MiB" in verdict.why
    both = replace(grown, blue_now=250 * MIB)
    assert judge(STRATEGY, 0, GREEN, BLUE, both, True).action == "go-on"


@pytest.mark.parametrize(
    ("green", "memory"),
    [
        (replace(GREEN, errors=-1), STEADY),
        (replace(GREEN, errors=101), STEADY),
        (replace(GREEN, latency=[0.0] * 3), STEADY),
        (replace(GREEN, latency=[math.nan] * BUCKETS), STEADY),
        (replace(GREEN, predictions=(math.nan, 1)), STEADY),
        (replace(GREEN, requests=math.nan), STEADY),
        (GREEN, replace(STEADY, green_now=math.nan)),
        (GREEN, replace(STEADY, green_now=0.0)),
    ],
)
def test_figures_that_are_none_roll_back(green: Side, memory: Memory) -> None:
    """NaN compares false with every limit: that must not read as fine."""
    verdict = judge(STRATEGY, 0, green, BLUE, memory, True)
    assert verdict.action == "roll-back" and "cannot be trusted" in verdict.why


def test_a_dead_green_rolls_back_whatever_its_figures() -> None:
    """Also before it answered anything."""
    assert judge(STRATEGY, 0, GREEN, BLUE, STEADY, False).action == "roll-back"


def test_no_predictions_where_they_are_asked_for_hold() -> None:
    """A pointer that points at nothing fails closed: the step is never decided."""
    blind = replace(GREEN, predictions=(0, 0))
    assert judge(STRATEGY, 0, blind, BLUE, STEADY, True).action == "hold"


def test_latency_is_not_compared_under_other_loads() -> None:
    """At 100 % green has all the requests; blue's times are of half of them."""
    slow = replace(GREEN, latency=times(100, 0.02))
    assert judge(STRATEGY, 2, slow, BLUE, STEADY, True).action == "go-on"


@pytest.mark.parametrize(("factor", "seen"), [(1.0, False), (1.3, False), (2.0, True), (4.0, True)])
def test_latency_is_a_factor_on_the_whole_distribution(factor: float, seen: bool) -> None:
    """Times spread over two octaves, moved up by the factor."""
    blue, green = [0] * BUCKETS, [0] * BUCKETS
    for part in range(200):
        seconds = 0.005 * 4 ** (part / 200)
        blue[bucket(seconds)] += 3
        green[bucket(seconds * factor)] += 1
    assert (latency_evidence(green, blue, 1.4) > math.log(300)) is seen


@pytest.mark.parametrize(
    ("blue_s", "green_s", "seen"),
    [(0.001, 0.0018, False), (0.001, 0.0045, True), (0.01, 0.0115, False), (0.01, 0.02, True)],
)
def test_the_first_milliseconds_do_not_count(blue_s: float, green_s: float, seen: bool) -> None:
    """A factor on a millisecond tells a server that sleeps between requests from one that does not:
    a healthy green at 10 % of the traffic of a quiet machine was taken back for it."""
    blue, green = times(600, blue_s), times(200, green_s)
    assert (latency_evidence(green, blue, 1.4, 0.002) > math.log(300)) is seen
    if blue_s == 0.001:
        assert latency_evidence(green, blue, 1.4) > math.log(300)
