"""Early termination against what Azure ML's documents say, number by number.

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
from ml.specs.plan.plan import EarlyTermination
from tests.sweeps.curves import judge

HERE = Place("sweep.yml", 1)
GOALS = ["maximize", "minimize"]


def policy(type: str, every: int = 1, delay: int = 0, **settings: float) -> EarlyTermination:
    return EarlyTermination(type, HERE, every, delay, **settings)


def ended(
    asked: EarlyTermination, curves: Mapping[str, Sequence[float]], at: int, goal: str = "maximize"
) -> set[str]:
    """The trials that are ended at an interval."""
    return {name for name in curves if judge(asked, goal, curves, name, at)}


def mirrored(curves: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
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
    asked = policy("bandit", every=10, slack_factor=0.2)
    assert ended(asked, curves, 10) == {"under", "0.66"}
    for interval in range(1, 10):
        assert ended(asked, curves, interval) == set()


def test_bandit_compares_as_the_reference_does() -> None:
    """[bandit]: "This policy compares the value (Y + Y * 0.2) to 0.8, and if smaller, cancels the
    run", Y being the best that the run has reported."""
    asked = policy("bandit", slack_factor=0.2)
    for hundredths in range(1, 81):
        y = hundredths / 100
        if abs(y + y * 0.2 - 0.8) > 1e-12:
            found = ended(asked, {"x": [0.8], "y": [y]}, 1)
            assert ("y" in found) is (y + y * 0.2 < 0.8)


def test_bandit_factor_of_a_tenth_as_published() -> None:
    """[tune]: with slack_factor 0.1, jobs whose best metric is less than 1/(1+0.1), "or 91% of the
    best performing jobs will be terminated", from interval 5 on."""
    curves = {"best": [1.0] * 6, "90": [0.90] * 6, "91": [0.91] * 6}
    asked = policy("bandit", every=1, delay=5, slack_factor=0.1)
    assert [ended(asked, curves, n) for n in range(1, 7)] == [set()] * 4 + [{"90"}] * 2


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
    asked = policy("bandit", every=100, delay=200, slack_factor=0.2)
    applied = [n for n in range(1, 301) if "poor" in ended(asked, curves, n)]
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
    asked = policy(every=every, delay=delay, **settings)
    assert [n for n in range(1, 8) if "bad" in ended(asked, curves, n, goal)] == applied


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
    asked = policy("median_stopping", every=1, delay=5)
    assert ended(asked, curves, 5) == {"poor"}
    verdict = judge(asked, "maximize", curves, "poor", 5)
    assert verdict is not None
    assert (verdict.value, verdict.threshold) == (0.39, 0.4)
    assert ended(asked, mirrored(curves), 5, "minimize") == {"poor"}


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
    asked = policy("truncation_selection", every=1, delay=5, truncation_percentage=20)
    assert ended(asked, curves, 5) == {"0", "1"}
    assert ended(asked, mirrored(curves), 5, "minimize") == {"0", "1"}
    assert ended(asked, curves, 4) == set()


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
    asked = policy("truncation_selection", truncation_percentage=25)
    assert ended(asked, {"young": [0.2, 0.3], **curves}, 2) == {"late"}
    assert judge(asked, "maximize", curves, "young", 2) is None


@pytest.mark.parametrize(
    ("count", "percentage", "going"),
    [(5, 19, 0), (5, 20, 1), (5, 39, 1), (5, 40, 2), (1, 99, 0), (2, 50, 1), (100, 1, 1)],
)
def test_how_many_a_percentage_is(count: int, percentage: int, going: int) -> None:
    """Whole trials, rounded down: the documents do not say, and a trial too many is lost work."""
    curves = {str(n): [float(n)] for n in range(count)}
    asked = policy("truncation_selection", truncation_percentage=percentage)
    assert ended(asked, curves, 1) == {str(n) for n in range(going)}


def test_equals_of_the_worst_that_stays_stay() -> None:
    """Three of four are alike, half would go: the one that is worse goes alone."""
    curves = {"a": [0.1], "b": [0.5], "c": [0.5], "d": [0.5]}
    asked = policy("truncation_selection", truncation_percentage=50)
    assert ended(asked, curves, 1) == {"a"}


def by_definition(
    asked: EarlyTermination, goal: str, curves: Mapping[str, Sequence[float]], name: str, at: int
) -> tuple[float, float | None]:
    """The value and the threshold, word for word from the documents, over whole curves."""
    best = max if goal == "maximize" else min
    sign = 1 if goal == "maximize" else -1
    if asked.type == "median_stopping":
        threshold: float | None = median(mean(curve[:at]) for curve in curves.values())
    elif asked.type == "bandit":
        leader = best(best(curve[:at]) for curve in curves.values())
        if asked.slack_amount is not None:
            threshold = leader - sign * asked.slack_amount
        else:
            ratio = 1 + (asked.slack_factor or 0)
            threshold = leader / ratio if sign * leader > 0 else leader * ratio
    else:
        reached = sorted(
            (best(curve[:at]) for curve in curves.values() if len(curve) >= at),
            reverse=goal == "minimize",
        )
        going = len(reached) * (asked.truncation_percentage or 0) // 100
        threshold = reached[going] if going else None
    return best(curves[name][:at]), threshold


@given(
    st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=7), min_size=1, max_size=8),
    st.sampled_from(GOALS),
    st.sampled_from(
        [
            policy("median_stopping"),
            policy("bandit", slack_factor=0.2),
            policy("bandit", slack_amount=0.3),
            policy("truncation_selection", truncation_percentage=40),
        ]
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_kept_gives_the_verdicts_of_whole_curves(
    rows: list[list[float]], goal: str, asked: EarlyTermination, chance
) -> None:
    """The sums and orders that a sweep keeps, against the definitions over every recorded value."""
    curves = {str(number): row for number, row in enumerate(rows)}
    for name, curve in curves.items():
        for at in range(1, len(curve) + 1):
            value, threshold = by_definition(asked, goal, curves, name, at)
            verdict = judge(asked, goal, curves, name, at)
            worse = threshold is not None and (
                value < threshold if goal == "maximize" else value > threshold
            )
            assert (verdict is not None) is worse
            if verdict is not None:
                assert (verdict.value, verdict.threshold) == (value, threshold)
