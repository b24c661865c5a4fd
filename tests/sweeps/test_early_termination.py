"""Early termination by the definitions and examples of Azure ML's documents, and by hand.

[tune] is "Hyperparameter tuning a model (v2)" (how-to-tune-hyperparameters); [bandit], [median] and
[truncation] are the remarks of BanditPolicy, MedianStoppingPolicy and TruncationSelectionPolicy in
the reference of azureml.train.hyperdrive, where the policies are defined in full; all of them on
learn.microsoft.com.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.core.errors import Place
from ml.specs.plan.plans import EarlyTermination
from ml.sweeps.early_termination import Policy, Verdict

HERE = Place("sweep.yml", 1)
GOALS = ["maximize", "minimize"]


def policy(type: str, every: int = 1, delay: int = 0, **settings: float) -> EarlyTermination:
    return EarlyTermination(type, HERE, every, delay, **settings)


MEDIAN = policy("median_stopping")
POLICIES = [
    MEDIAN,
    policy("bandit", slack_factor=0.2),
    policy("bandit", slack_amount=0.3),
    policy("truncation_selection", truncation_percentage=40),
]


Curves = Mapping[str, Sequence[float]]


def progress(settings: EarlyTermination, goal: str, curves: Curves) -> Policy:
    """The policy when a sweep has logged these curves."""
    state = Policy(settings, goal)
    for name, curve in curves.items():
        for value in curve:
            state.add(name, value)
    return state


def judge(
    settings: EarlyTermination, goal: str, curves: Curves, trial: str, interval: int
) -> Verdict | None:
    """The verdict on a trial's `interval`-th value when the sweep has logged these curves."""
    return progress(settings, goal, curves).verdict(trial, interval)


def ended(settings: EarlyTermination, curves: Curves, at: int, goal: str = "maximize") -> set[str]:
    """The trials that are ended at an interval."""
    state = progress(settings, goal, curves)
    return {name for name in curves if state.verdict(name, at)}


def mirrored(curves: Curves) -> dict[str, list[float]]:
    """The same curves where less is better."""
    return {name: [-value for value in curve] for name, curve in curves.items()}


def test_bandit_factor_as_published() -> None:
    """[tune]: applied at interval 10, the best job at interval 10 reported 0.8, maximize; with a
    slack_factor of 0.2, any job "whose best metric at interval 10 is less than 0.66
    (0.8/(1+slack_factor)) will be terminated"."""
    limit = 0.8 / 1.2
    best = [0.1 * n for n in range(1, 9)] + [0.8, 0.8]
    curves = {
        "best": best,
        "under": [0.0] * 9 + [math.nextafter(limit, 0)],
        "at": [0.0] * 9 + [limit],
        "was good": [0.7] + [0.0] * 9,
        "0.66": [0.66] * 10,
    }
    settings = policy("bandit", every=10, slack_factor=0.2)
    assert ended(settings, curves, 10) == {"under", "0.66"}
    for interval in range(1, 10):
        assert ended(settings, curves, interval) == set()


def test_bandit_compares_as_the_reference_does() -> None:
    """[bandit]: "This policy compares the value (Y + Y * 0.2) to 0.8, and if smaller, cancels the
    run", Y being the best that the run has reported."""
    settings = policy("bandit", slack_factor=0.2)
    for hundredths in range(1, 81):
        y = hundredths / 100
        if abs(y + y * 0.2 - 0.8) > 1e-12:
            stopped = ended(settings, {"x": [0.8], "y": [y]}, 1)
            assert ("y" in stopped) is (y + y * 0.2 < 0.8)


def test_bandit_factor_of_a_tenth_as_published() -> None:
    """[tune]: with slack_factor 0.1, jobs whose best metric is less than 1/(1+0.1), "or 91% of the
    best performing jobs will be terminated", from interval 5 on."""
    curves = {"best": [1.0] * 6, "90": [0.90] * 6, "91": [0.91] * 6}
    settings = policy("bandit", every=1, delay=5, slack_factor=0.1)
    assert [ended(settings, curves, n) for n in range(1, 7)] == [set()] * 4 + [{"90"}] * 2


@pytest.mark.parametrize(("value", "goes"), [(0.6, False), (math.nextafter(0.6, 0), True)])
def test_bandit_amount_as_published(value: float, goes: bool) -> None:
    """[bandit]: with slack_amount 0.2 and a best of 0.8, "any run with an AUC less than 0.6
    (0.8 - 0.2)" is terminated. 0.6 itself is not less: 0.8 - 0.2 is 0.6000000000000001 to a
    computer, so that the boundary is tried one step of a double above it."""
    threshold = 0.8 - 0.2
    curves = {"3": [0.8], "other": [threshold if not goes else value]}
    assert ("other" in ended(policy("bandit", slack_amount=0.2), curves, 1)) is goes


def test_bandit_delay_as_published() -> None:
    """[bandit]: evaluation_interval 100 and delay_evaluation 200: "the first time the policy will
    be applied is at interval 200"."""
    curves = {"best": [0.8] * 300, "poor": [0.1] * 300}
    settings = policy("bandit", every=100, delay=200, slack_factor=0.2)
    applied = [n for n in range(1, 301) if "poor" in ended(settings, curves, n)]
    assert applied == [200, 300]


@pytest.mark.parametrize(
    ("every", "delay", "applied"),
    [(1, 0, [1, 2, 3, 4, 5, 6, 7]), (2, 0, [2, 4, 6]), (1, 5, [5, 6, 7]), (2, 5, [6]), (3, 4, [6])],
)
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(
    "settings",
    [
        {"type": "bandit", "slack_factor": 0.2},
        {"type": "bandit", "slack_amount": 0.1},
        {"type": "median_stopping"},
        {"type": "truncation_selection", "truncation_percentage": 40},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_when_each_policy_is_applied(
    settings: dict, goal: str, every: int, delay: int, applied: list[int]
) -> None:
    """[tune]: an evaluation_interval of 2 applies the policy "every other time"; with a delay it
    is applied at "every multiple of evaluation_interval that is greater than or equal to
    delay_evaluation"."""
    curves = {"bad": [0.1] * 7, "good": [1.0] * 7, "better": [1.1] * 7}
    if goal == "minimize":
        curves = {name: [1 / value for value in curve] for name, curve in curves.items()}
    settings = policy(every=every, delay=delay, **settings)
    assert [n for n in range(1, 8) if "bad" in ended(settings, curves, n, goal)] == applied


def test_median_stopping_as_published() -> None:
    """[median]: "a run will be canceled at interval N if its best primary metric reported up to
    interval N is worse than the median of the running averages for intervals 1:N across all
    runs". By hand, at interval 5: the averages are 0.3, 0.5, 0.4, 0.42 and 0.2, their median is
    0.4; the bests are 0.5, 0.5, 0.4, 0.7 and 0.39."""
    curves = {
        "rising": [0.1, 0.2, 0.3, 0.4, 0.5],
        "flat": [0.5] * 5,
        "median": [0.4] * 5,
        "fallen": [0.7, 0.5, 0.4, 0.3, 0.2],
        "poor": [0.01, 0.1, 0.2, 0.3, 0.39],
    }
    settings = policy("median_stopping", every=1, delay=5)
    assert ended(settings, curves, 5) == {"poor"}
    verdict = judge(settings, "maximize", curves, "poor", 5)
    assert verdict is not None
    assert (verdict.value, verdict.threshold) == (0.39, 0.4)
    assert ended(settings, mirrored(curves), 5, "minimize") == {"poor"}


@given(st.floats(-1e6, 1e6), st.integers(1, 60))
def test_a_metric_that_never_moves_is_at_its_own_median(value: float, count: int) -> None:
    """Whatever 0.1 + 0.1 + 0.1 is to a computer: alone and among its like it is not worse."""
    curves = {"one": [value] * count, "two": [value] * count}
    for goal in GOALS:
        assert ended(policy("median_stopping"), curves, count, goal) == set()


def test_truncation_as_published() -> None:
    """[tune]: with truncation_percentage 20 and delay 5, a job is terminated at interval 5 if its
    performance "is in the lowest 20% of performance of all jobs at interval 5": of ten, two."""
    curves = {str(n): [n / 10] * 5 for n in range(10)}
    settings = policy("truncation_selection", every=1, delay=5, truncation_percentage=20)
    assert ended(settings, curves, 5) == {"0", "1"}
    assert ended(settings, mirrored(curves), 5, "minimize") == {"0", "1"}
    assert ended(settings, curves, 4) == set()


def test_truncation_is_fair_to_the_young_as_published() -> None:
    """[truncation]: "when evaluating a run at a interval N, its performance is only compared with
    the performance of other runs up to interval N even if they reported metrics for intervals
    greater than N". At interval 2 the young trial, 0.3, is above what `late` had, 0.2."""
    curves = {
        "late": [0.1, 0.2, 0.9, 0.95],
        "early": [0.6, 0.7, 0.75, 0.8],
        "young": [0.2, 0.3],
        "other": [0.4, 0.5, 0.6, 0.7],
    }
    settings = policy("truncation_selection", truncation_percentage=25)
    assert ended(settings, {"young": [0.2, 0.3], **curves}, 2) == {"late"}
    assert judge(settings, "maximize", curves, "young", 2) is None


@pytest.mark.parametrize(
    ("count", "percentage", "going"),
    [
        *[(5, 19, 0), (5, 20, 1), (5, 39, 1), (5, 40, 2), (5, 99, 4)],
        *[(1, 99, 0), (2, 50, 1), (100, 1, 1)],
    ],
)
def test_how_many_a_percentage_is(count: int, percentage: int, going: int) -> None:
    """Whole trials, rounded down: the documents do not say, and a trial too many is lost work."""
    curves = {str(n): [float(n)] for n in range(count)}
    settings = policy("truncation_selection", truncation_percentage=percentage)
    assert ended(settings, curves, 1) == {str(n) for n in range(going)}


def test_equals_of_the_worst_that_stays_stay() -> None:
    """Three of four are alike, half would go: the one that is worse goes alone."""
    curves = {"a": [0.1], "b": [0.5], "c": [0.5], "d": [0.5]}
    settings = policy("truncation_selection", truncation_percentage=50)
    assert ended(settings, curves, 1) == {"a"}


def by_definition(
    settings: EarlyTermination, goal: str, curves: Curves, name: str, at: int
) -> tuple[float, float | None]:
    """The value and the threshold, word for word from the documents, over whole curves."""
    best = max if goal == "maximize" else min
    sign = 1 if goal == "maximize" else -1
    if settings.type == "median_stopping":
        threshold: float | None = median(mean(curve[:at]) for curve in curves.values())
    elif settings.type == "bandit":
        leader = best(best(curve[:at]) for curve in curves.values())
        if settings.slack_amount is not None:
            threshold = leader - sign * settings.slack_amount
        else:
            ratio = 1 + (settings.slack_factor or 0)
            threshold = leader / ratio if sign * leader > 0 else leader * ratio
    else:
        reached = sorted(
            (best(curve[:at]) for curve in curves.values() if len(curve) >= at),
            reverse=goal == "minimize",
        )
        going = len(reached) * (settings.truncation_percentage or 0) // 100
        threshold = reached[going] if going else None
    return best(curves[name][:at]), threshold


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=7), min_size=1, max_size=8),
    st.sampled_from(GOALS),
    st.sampled_from(POLICIES),
)
def test_verdicts_are_those_of_the_definitions(
    rows: list[list[float]], goal: str, settings: EarlyTermination
) -> None:
    """The running tables of a sweep, against the definitions over every recorded value."""
    curves = {str(number): row for number, row in enumerate(rows)}
    state = progress(settings, goal, curves)
    for name, curve in curves.items():
        for at in range(1, len(curve) + 1):
            value, threshold = by_definition(settings, goal, curves, name, at)
            verdict = state.verdict(name, at)
            is_worse = threshold is not None and (
                value < threshold if goal == "maximize" else value > threshold
            )
            assert (verdict is not None) is is_worse
            if verdict is not None:
                assert (verdict.value, verdict.threshold) == (value, threshold)


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
    verdict = judge(MEDIAN, "maximize", THREE, trial, interval)
    if ends_with_threshold is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict.threshold == pytest.approx(ends_with_threshold)
        assert verdict.interval == interval


def test_median_stopping_minimize() -> None:
    """With a loss the lowest is best: c (best 0.8) ends, a and b stay."""
    stopped = {t: judge(MEDIAN, "minimize", THREE, t, 3) is not None for t in THREE}
    assert stopped == {"a": False, "b": False, "c": True}


def test_median_uses_the_best_so_far_not_the_last() -> None:
    """A trial that was good and got worse stays: its best counts."""
    curves = {"fallen": [0.9, 0.1], "steady": [0.5, 0.5], "other": [0.5, 0.5]}
    assert judge(MEDIAN, "maximize", curves, "fallen", 2) is None


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    """Averages 0.2, 0.4, 0.6, 0.8: the median is 0.5, so that 0.4 ends and 0.6 stays."""
    curves = {"a": [0.2], "b": [0.4], "c": [0.6], "d": [0.8]}
    assert judge(MEDIAN, "maximize", curves, "b", 1) is not None
    assert judge(MEDIAN, "maximize", curves, "c", 1) is None


def test_median_counts_shorter_trials_with_what_they_reported() -> None:
    """At interval 3, x counts with mean(0.9), y with 0.5: the median of (0.9, 0.5, 0.2) is 0.5."""
    curves = {"x": [0.9], "y": [0.5, 0.5], "z": [0.1, 0.2, 0.3]}
    verdict = judge(MEDIAN, "maximize", curves, "z", 3)
    assert verdict is not None
    assert verdict.threshold == pytest.approx(0.5)


def test_a_single_trial_is_never_stopped_by_the_median() -> None:
    """Its best is at least its own average."""
    assert judge(MEDIAN, "maximize", {"only": [0.9, 0.1, 0.1]}, "only", 3) is None


def test_a_value_that_is_not_finite_is_the_worst() -> None:
    """A trial that logs NaN first is ended as soon as others have logged something."""
    curves = {"nan": [math.nan], "a": [0.5], "b": [0.6]}
    assert judge(MEDIAN, "maximize", curves, "nan", 1) is not None
    assert judge(MEDIAN, "minimize", curves, "nan", 1) is not None
    assert judge(MEDIAN, "maximize", curves, "b", 1) is None


@pytest.mark.parametrize("slack", [{"slack_factor": 0.2}, {"slack_amount": 0.1}])
def test_bandit_minimize_is_mirrored(slack: dict[str, float]) -> None:
    """Best loss 0.5 with the factor 0.2 or the amount 0.1: whatever is above 0.6 ends."""
    curves = {"best": [0.5], "under": [0.59], "above": [0.61]}
    assert ended(policy("bandit", **slack), curves, 1, "minimize") == {"above"}


def test_bandit_keeps_the_best_of_negative_metrics() -> None:
    """Best -0.5, factor 0.2: the threshold is -0.6; dividing would end the best trial itself."""
    curves = {"best": [-0.5], "near": [-0.55], "far": [-0.7]}
    assert ended(policy("bandit", slack_factor=0.2), curves, 1) == {"far"}


def test_truncation_compares_at_the_same_age() -> None:
    """Old trials count with what they had reached at interval 1; younger ones do not count."""
    curves = {"old": [0.2, 0.9], "older": [0.3, 0.8, 0.9], "young": [0.25]}
    third, half = (policy("truncation_selection", truncation_percentage=n) for n in (34, 50))
    assert judge(third, "maximize", curves, "young", 1) is None
    assert judge(half, "maximize", curves, "old", 2) is None  # 0.9 of (0.9, 0.8)
    assert judge(half, "maximize", curves, "older", 2) is not None


CURVES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.lists(st.floats(-5, 5), min_size=1, max_size=5),
    min_size=2,
    max_size=6,
)


@given(CURVES, st.sampled_from(POLICIES))
def test_the_leader_always_stays(
    curves: dict[str, list[float]], settings: EarlyTermination
) -> None:
    """No policy ends the trial with the best value so far, whichever way is better."""
    n = min(len(curve) for curve in curves.values())
    for goal, pick in (("maximize", max), ("minimize", min)):
        leader = pick(curves, key=lambda name: pick(curves[name][:n]))
        same_age = {name: curve[:n] for name, curve in curves.items()}
        assert judge(settings, goal, same_age, leader, n) is None


@given(CURVES, st.floats(0.1, 10), st.floats(-3, 3))
def test_median_stopping_does_not_depend_on_the_scale(
    curves: dict[str, list[float]], factor: float, shift: float
) -> None:
    """Stretching and moving the metric changes no outcome, beyond rounding."""
    moved = {trial: [factor * v + shift for v in curve] for trial, curve in curves.items()}
    state, moved_state = (progress(MEDIAN, "maximize", curve_set) for curve_set in (curves, moved))
    for trial, curve in curves.items():
        verdict = state.verdict(trial, len(curve))
        if verdict is not None and verdict.threshold - verdict.value >= 1e-6:
            assert moved_state.verdict(trial, len(curve)) is not None


@given(
    curves=st.lists(st.lists(st.floats(-9, 9), min_size=1, max_size=6), min_size=1, max_size=9),
    settings=st.sampled_from(POLICIES),
)
def test_verdicts_do_not_depend_on_what_follows(
    curves: list[list[float]], settings: EarlyTermination
) -> None:
    """The verdict at the moment of logging is that over whole curves so far."""
    state = Policy(settings, "maximize")
    logged: dict[str, list[float]] = {}
    for number, curve in enumerate(curves):
        name = str(number)
        for interval, value in enumerate(curve, 1):
            logged.setdefault(name, []).append(value)
            state.add(name, value)
            expected = judge(settings, "maximize", logged, name, interval)
            assert state.verdict(name, interval) == expected
