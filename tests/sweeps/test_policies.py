"""Early termination on recorded curves; every outcome was worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.core.errors import Place
from ml.specs.plan.plan import EarlyTermination
from ml.sweeps.early_termination import Policy
from tests.sweeps.curves import judge

HERE = Place("sweep.yml", 1)


def median(every: int = 1, delay: int = 0) -> EarlyTermination:
    return EarlyTermination("median_stopping", HERE, every, delay)


# Running averages over 1..3: a 0.3, b 0.6, c 0.9; their median is 0.6.
THREE = {"a": [0.2, 0.3, 0.4], "b": [0.5, 0.6, 0.7], "c": [0.8, 0.9, 1.0]}


@pytest.mark.parametrize(
    ("trial", "interval", "ends_with_threshold"),
    [
        ("a", 3, 0.6),  # best 0.4 < median(0.3, 0.6, 0.9)
        ("b", 3, None),  # best 0.7 >= 0.6
        ("c", 3, None),
        ("a", 1, 0.5),  # best 0.2 < median(0.2, 0.5, 0.8)
        ("b", 1, None),  # best 0.5 equals the median: not worse
        ("a", 2, 0.55),  # best 0.3 < median(0.25, 0.55, 0.85)
    ],
)
def test_median_stopping_maximize(
    trial: str, interval: int, ends_with_threshold: float | None
) -> None:
    """A trial ends when its best by N is worse than the median of all running averages of 1..N."""
    verdict = judge(median(), "maximize", THREE, trial, interval)
    if ends_with_threshold is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.threshold == pytest.approx(ends_with_threshold)
        assert verdict.interval == interval


def test_median_stopping_minimize() -> None:
    """With a loss the lowest is best: c (best 0.8) ends, a and b stay."""
    ended = {t: judge(median(), "minimize", THREE, t, 3) is not None for t in THREE}
    assert ended == {"a": False, "b": False, "c": True}


def test_median_uses_the_best_so_far_not_the_last() -> None:
    """A trial that was good and got worse stays: its best counts."""
    curves = {"fallen": [0.9, 0.1], "steady": [0.5, 0.5], "other": [0.5, 0.5]}
    assert judge(median(), "maximize", curves, "fallen", 2) is None


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    """Averages 0.2, 0.4, 0.6, 0.8: the median is 0.5, so that 0.4 ends and 0.6 stays."""
    curves = {"a": [0.2], "b": [0.4], "c": [0.6], "d": [0.8]}
    assert judge(median(), "maximize", curves, "b", 1) is not None
    assert judge(median(), "maximize", curves, "c", 1) is None


def test_median_counts_shorter_trials_with_what_they_reported() -> None:
    """At interval 3, x counts with mean(0.9), y with 0.5: the median of (0.9, 0.5, 0.2) is 0.5."""
    curves = {"x": [0.9], "y": [0.5, 0.5], "z": [0.1, 0.2, 0.3]}
    verdict = judge(median(), "maximize", curves, "z", 3)
    assert verdict is not None
    assert verdict.threshold == pytest.approx(0.5)


def test_a_single_trial_is_never_stopped_by_the_median() -> None:
    """Its best is at least its own average."""
    assert judge(median(), "maximize", {"only": [0.9, 0.1, 0.1]}, "only", 3) is None


@pytest.mark.parametrize(
    ("every", "delay", "intervals"),
    [
        (1, 0, [1, 2, 3, 4, 5, 6]),
        (2, 0, [2, 4, 6]),
        (1, 5, [5, 6]),  # Azure ML's example: "at every interval starting at evaluation interval 5"
        (2, 5, [6]),  # "every multiple of evaluation_interval that is >= delay_evaluation"
        (3, 3, [3, 6]),
    ],
)
def test_when_a_policy_is_applied(every: int, delay: int, intervals: list[int]) -> None:
    """At multiples of evaluation_interval, not before delay_evaluation."""
    curves = {"bad": [0.0] * 6, "good": [1.0] * 6, "better": [1.0] * 6}
    applied = [n for n in range(1, 7) if judge(median(every, delay), "maximize", curves, "bad", n)]
    assert applied == intervals


def test_a_value_that_is_not_finite_is_the_worst() -> None:
    """A trial that logs NaN first is ended as soon as others have logged something."""
    curves = {"nan": [math.nan], "a": [0.5], "b": [0.6]}
    assert judge(median(), "maximize", curves, "nan", 1) is not None
    assert judge(median(), "minimize", curves, "nan", 1) is not None
    assert judge(median(), "maximize", curves, "b", 1) is None


def bandit(factor: float | None = None, amount: float | None = None) -> EarlyTermination:
    return EarlyTermination("bandit", HERE, 1, 0, slack_factor=factor, slack_amount=amount)


@pytest.mark.parametrize(
    ("value", "ended"), [(0.65, True), (0.67, False), (0.8, False), (0.6666, True)]
)
def test_bandit_slack_factor_is_azures_example(value: float, ended: bool) -> None:
    """Best 0.8, factor 0.2: whatever is under 0.8 / 1.2 = 0.667 ends."""
    curves = {"best": [0.8], "other": [value]}
    assert (judge(bandit(0.2), "maximize", curves, "other", 1) is not None) is ended


@pytest.mark.parametrize(("value", "ended"), [(0.59, True), (0.61, False)])
def test_bandit_slack_amount_is_azures_example(value: float, ended: bool) -> None:
    """Best 0.8, amount 0.2: whatever is under 0.6 ends."""
    curves = {"best": [0.8], "other": [value]}
    assert (judge(bandit(amount=0.2), "maximize", curves, "other", 1) is not None) is ended


@pytest.mark.parametrize(("value", "ended"), [(0.61, True), (0.59, False)])
def test_bandit_minimize_is_mirrored(value: float, ended: bool) -> None:
    """Best loss 0.5, factor 0.2: whatever is above 0.6 ends; so with the amount 0.1."""
    curves = {"best": [0.5], "other": [value]}
    assert (judge(bandit(0.2), "minimize", curves, "other", 1) is not None) is ended
    assert (judge(bandit(amount=0.1), "minimize", curves, "other", 1) is not None) is ended


def test_bandit_keeps_the_best_of_negative_metrics() -> None:
    """Best -0.5, factor 0.2: the threshold is -0.6; dividing would end the best trial itself."""
    curves = {"best": [-0.5], "near": [-0.55], "far": [-0.7]}
    ended = {t: judge(bandit(0.2), "maximize", curves, t, 1) is not None for t in curves}
    assert ended == {"best": False, "near": False, "far": True}


def truncation(percentage: int) -> EarlyTermination:
    return EarlyTermination("truncation_selection", HERE, 1, 0, truncation_percentage=percentage)


def test_truncation_ends_the_lowest_percentage() -> None:
    """20 % of five trials is one: the lowest; 40 % are two."""
    curves = {name: [value] for name, value in zip("abcde", [0.1, 0.2, 0.3, 0.4, 0.5], strict=True)}

    def ended(percentage: int) -> set[str]:
        return {t for t in curves if judge(truncation(percentage), "maximize", curves, t, 1)}

    assert ended(20) == {"a"}
    assert ended(40) == {"a", "b"}
    assert ended(19) == set()
    assert ended(99) == {"a", "b", "c", "d"}


def test_truncation_compares_at_the_same_age() -> None:
    """Old trials count with what they had reached at interval 1; younger ones do not count."""
    curves = {"old": [0.2, 0.9], "older": [0.3, 0.8, 0.9], "young": [0.25]}
    assert judge(truncation(34), "maximize", curves, "young", 1) is None
    verdict = judge(truncation(50), "maximize", curves, "old", 2)
    assert verdict is None  # 0.9 of (0.9, 0.8)
    assert judge(truncation(50), "maximize", curves, "older", 2) is not None


CURVES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.lists(st.floats(-5, 5), min_size=1, max_size=5),
    min_size=2,
    max_size=6,
)


@given(CURVES, st.sampled_from([median(), bandit(0.1), bandit(amount=0.3), truncation(60)]))
def test_the_leader_always_stays(curves: dict[str, list[float]], policy: EarlyTermination) -> None:
    """No policy ends the trial with the best value so far, whichever way is better."""
    n = min(len(curve) for curve in curves.values())
    for goal, pick in (("maximize", max), ("minimize", min)):
        leader = pick(curves, key=lambda name: pick(curves[name][:n]))
        same_age = {name: curve[:n] for name, curve in curves.items()}
        assert judge(policy, goal, same_age, leader, n) is None


@given(CURVES, st.floats(0.1, 10), st.floats(-3, 3))
def test_median_stopping_does_not_depend_on_the_scale(
    curves: dict[str, list[float]], factor: float, shift: float
) -> None:
    """Stretching and moving the metric changes no outcome, beyond rounding."""
    for trial, curve in curves.items():
        verdict = judge(median(), "maximize", curves, trial, len(curve))
        if verdict is None or verdict.threshold - verdict.value < 1e-6:
            continue
        moved = {t: [factor * v + shift for v in c] for t, c in curves.items()}
        assert judge(median(), "maximize", moved, trial, len(curve)) is not None


@given(
    curves=st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=6), min_size=1, max_size=9),
    policy=st.sampled_from([median(), bandit(amount=0.5), bandit(factor=0.2), truncation(40)]),
)
def test_verdicts_do_not_depend_on_what_follows(
    curves: list[list[float]], policy: EarlyTermination
) -> None:
    """The verdict at the moment of logging is that over whole curves so far."""
    progress = Policy(policy, "maximize")
    logged: dict[str, list[float]] = {}
    for number, curve in enumerate(curves):
        name = str(number)
        for interval, value in enumerate(curve, 1):
            logged.setdefault(name, []).append(value)
            progress.add(name, value)
            expected = judge(policy, "maximize", logged, name, interval)
            assert progress.verdict(name, interval) == expected
