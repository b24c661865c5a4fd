"""ml.release.canary.verdict: go on, hold or roll back, from figures alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ml.backends.traffic import BUCKETS, bucket
from ml.release.canary.verdict import (
    Memory,
    Stats,
    Verdict,
    apply_client_evidence,
    decide,
    latency_log_e_value,
)
from ml.release.declaration.release_file import Strategy, Tolerances

STRATEGY = Strategy(
    requests=(100, 100, 100), prediction="answer", tolerances=Tolerances(latency_ms=0.0)
)
MIB = 2.0**20


def times(count: int, seconds: float) -> list[int]:
    """That many answers after that long."""
    found = [0] * BUCKETS
    found[bucket(seconds)] = count
    return found


BLUE = Stats(900, 0, 0, times(900, 0.01), 900, 0, (450, 450))
GREEN = Stats(100, 0, 0, times(100, 0.01), 100, 0, (50, 50))
STEADY = Memory(200 * MIB, 201 * MIB, 200 * MIB, 200 * MIB)


def judged(
    green: Stats,
    old: Stats = BLUE,
    *,
    baseline: Stats = GREEN,
    memory: Memory = STEADY,
    stage: int = 0,
    alive: bool = True,
) -> Verdict:
    """The verdict, beside old versions that are sound."""
    return decide(STRATEGY, stage, green, old, baseline, memory, alive)


def test_enough_requests_without_a_difference_go_on() -> None:
    """One short of the minimum, green's or blue's, holds."""
    assert judged(GREEN).action == "go-on"
    few = replace(GREEN, requests=99, latency=times(99, 0.01))
    assert judged(few).action == "hold"
    silent = replace(BLUE, requests=99, latency=times(99, 0.01))
    assert judged(GREEN, silent).action == "hold"


@pytest.mark.parametrize(
    ("green", "name"),
    [
        (replace(GREEN, errors=8), "errors"),
        (replace(GREEN, refused=12), "refused"),
        (replace(GREEN, unknown_shapes=12), "answers"),
        (replace(GREEN, latency=times(100, 0.02)), "latency"),
        (replace(GREEN, predictions=(100, 0)), "predictions"),
    ],
)
def test_each_signal_alone_rolls_back(green: Stats, name: str) -> None:
    """And the verdict names it."""
    verdict = judged(green)
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
def test_a_difference_that_is_tolerated_goes_on(green: Stats) -> None:
    """A little slower, a few other predictions, one request refused: green is not refused."""
    assert judged(green).action in ("go-on", "hold")


def test_what_is_not_calm_yet_is_watched_longer_but_not_for_ever() -> None:
    """Two errors of a hundred hold; still not settled at the limit of patience, they pass."""
    held = judged(replace(GREEN, errors=2))
    assert held.action == "hold" and "errors not calm" in held.why
    later = replace(GREEN, requests=600, errors=6, latency=times(600, 0.01))
    assert (
        judged(later, baseline=replace(GREEN, requests=600, latency=times(600, 0.01))).action
        == "go-on"
    )


def test_growing_memory_rolls_back() -> None:
    """Beyond what is allowed, and only what blue did not grow by too."""
    grown = Memory(200 * MIB, 260 * MIB, 200 * MIB, 200 * MIB)
    verdict = judged(GREEN, memory=grown)
    assert verdict.action == "roll-back" and "memory: grew by 60 MiB" in verdict.why
    both = replace(grown, baseline_now=250 * MIB)
    assert judged(GREEN, memory=both).action == "go-on"


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
def test_figures_that_are_none_roll_back(green: Stats, memory: Memory) -> None:
    """NaN compares false with every limit: that must not read as fine."""
    verdict = judged(green, memory=memory)
    assert verdict.action == "roll-back" and "cannot be trusted" in verdict.why


def test_a_dead_green_rolls_back_whatever_its_figures() -> None:
    """Also before it answered anything."""
    assert judged(GREEN, alive=False).action == "roll-back"


def test_no_predictions_where_they_are_asked_for_hold() -> None:
    """A pointer that points at nothing fails closed, and not only when the time is over."""
    blind = replace(GREEN, predictions=(0, 0))
    assert judged(blind).action == "hold"
    later = replace(blind, requests=600, latency=times(600, 0.01))
    found = judged(later, baseline=replace(later, predictions=(300, 300)))
    assert found.action == "roll-back" and found.why == "too few predictions were read"


def test_latency_is_not_compared_under_other_loads() -> None:
    """At 100 % green has all the requests; blue's times are of half of them."""
    slow = replace(GREEN, latency=times(100, 0.02))
    assert judged(slow, stage=2).action == "go-on"


LATE, PUNCTUAL = (times(50, 0.05), times(50, 0.01)), (times(50, 0.01), times(50, 0.01))


@pytest.mark.parametrize(
    ("intervals", "action"),
    [
        ([LATE], "hold"),
        ([PUNCTUAL, LATE, PUNCTUAL], "hold"),
        ([LATE, PUNCTUAL, LATE], "roll-back"),
        ([LATE, LATE], "roll-back"),
    ],
)
def test_slowness_has_to_last(intervals: list[tuple[list[int], list[int]]], action: str) -> None:
    """Fifty late requests of one moment are one witness: a neighbour had green's core."""
    both = [np.sum([one[side] for one in intervals], axis=0).tolist() for side in (0, 1)]
    count = 50 * len(intervals)
    green, baseline = (Stats(count, 0, 0, side, count, 0, (count // 2,) * 2) for side in both)
    found = decide(STRATEGY, 0, green, BLUE, baseline, STEADY, True, intervals)
    assert found.action == action, found
    # Without the times of the requests each is a witness; other signals need no intervals.
    assert decide(STRATEGY, 0, green, BLUE, baseline, STEADY, True).action == "roll-back"
    failing = replace(green, errors=count // 2)
    said = decide(STRATEGY, 0, failing, BLUE, baseline, STEADY, True, intervals)
    assert said.action == "roll-back" and "errors" in said.why


@pytest.mark.parametrize(("factor", "seen"), [(1.0, False), (1.3, False), (2.0, True), (4.0, True)])
def test_latency_is_a_factor_on_the_whole_distribution(factor: float, seen: bool) -> None:
    """Times spread over two octaves, moved up by the factor."""
    blue, green = [0] * BUCKETS, [0] * BUCKETS
    for part in range(200):
        seconds = 0.005 * 4 ** (part / 200)
        blue[bucket(seconds)] += 3
        green[bucket(seconds * factor)] += 1
    assert (latency_log_e_value(green, blue, 1.4) > math.log(300)) is seen


@pytest.mark.parametrize(("green_s", "action"), [(0.09, "go-on"), (0.11, "roll-back")])
def test_what_is_fast_enough_is_not_slow(green_s: float, action: str) -> None:
    """Four times as slow as the baseline or more: on either side of the declared milliseconds."""
    lenient = replace(STRATEGY, tolerances=Tolerances(latency_ms=100.0))
    slow, fast = (replace(GREEN, latency=times(100, seconds)) for seconds in (green_s, 0.02))
    assert decide(lenient, 0, slow, BLUE, fast, STEADY, True).action == action


@pytest.mark.parametrize(("green_s", "action"), [(0.012, "go-on"), (0.024, "roll-back")])
def test_latency_is_compared_with_a_server_that_is_asked_as_often(
    green_s: float, action: str
) -> None:
    """Blue, with eight times the requests, answers in a third of the time: that says nothing."""
    often = replace(BLUE, latency=times(900, 0.004))
    seldom = replace(GREEN, latency=times(100, 0.012))
    slow = replace(GREEN, latency=times(100, green_s))
    assert judged(slow, often, baseline=seldom).action == action


def test_a_baseline_that_was_hardly_asked_holds() -> None:
    """Its times are too few to compare with; without one request there is no evidence at all."""
    for count in (0, 99):
        few = replace(GREEN, requests=count, latency=times(count, 0.01))
        verdict = judged(GREEN, baseline=few)
        assert verdict.action == "hold" and f"{count} of 100" in verdict.why


NOBODY = Stats(0, 0, 0, times(0, 0.01), 0, 0, (0, 0))


def with_callers(green: Stats, old: Stats, patient: bool = True) -> Verdict:
    """The verdict where the samples let green pass."""
    verdict = judged(GREEN)
    assert verdict.action == "go-on"
    return apply_client_evidence(verdict, STRATEGY, 0, green, old, GREEN, patient)


def test_requests_of_callers_speak_only_against_green() -> None:
    """None are needed; those that alarm roll back, those that lean that way hold for a while."""
    assert with_callers(NOBODY, NOBODY).action == "go-on"
    assert with_callers(GREEN, BLUE).action == "go-on"
    alarmed = with_callers(replace(GREEN, errors=9), BLUE)
    assert alarmed.action == "roll-back" and "requests of clients: errors" in alarmed.why
    leaning = replace(GREEN, errors=3)
    assert with_callers(leaning, BLUE).action == "hold"
    assert with_callers(leaning, BLUE, patient=False).action == "go-on"


def test_sound_requests_of_callers_do_not_make_up_for_samples() -> None:
    """However many there are."""
    many = replace(GREEN, requests=10**6, latency=times(10**6, 0.01), answers=10**6)
    for green in (replace(GREEN, refused=20), replace(GREEN, requests=50)):
        verdict = judged(green)
        assert apply_client_evidence(verdict, STRATEGY, 0, many, BLUE, GREEN, True) == verdict


def test_without_requests_no_signal_leans() -> None:
    """Not even by rounding: callers who ask nothing hold no step."""
    assert latency_log_e_value([0] * BUCKETS, [0] * BUCKETS, 1.4) == 0
