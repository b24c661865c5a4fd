"""Ranking by a weighted score beside the metric; the Pareto front; what is missing is named."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.release.selection.explanation import formula, scale, sentences
from ml.release.selection.selection import Candidate, Selection, select
from ml.release.selection.weights import TERMS, Cost, Latency, Stability, Term, Weights

WEIGHTS = Weights(
    quality=Term(1, 0.01),
    latency=Latency(0.5, 10),
    cost=Cost(0.1, 60),
    stability=Stability(1, 0.01),
)
STEADY = {"latency": 10.0, "cost": 60.0, "stability": 0.0}


def candidate(number: int, quality: float | None, **terms: float | None) -> Candidate:
    found = {"quality": quality, **STEADY, **terms}
    return Candidate(f"sweep_{number}", f"trial {number}", found)


def chosen(*candidates: Candidate, weights: Weights = WEIGHTS, goal: str = "maximize") -> Selection:
    return select(candidates, weights, "gain", "minimize" if goal == "minimize" else "maximize")


def order(made: Selection) -> list[str]:
    return [one.candidate.name for one in made.ranked]


def test_the_score_is_the_formula():
    """Each term by its reference and its weight; quality and the spread with their signs."""
    made = chosen(candidate(0, 0.7, latency=20.0, cost=120.0, stability=0.02))
    (only,) = made.ranked
    assert only.parts == pytest.approx(
        {"quality": 70.0, "latency": -1.0, "cost": -0.2, "stability": -2.0}
    )
    assert only.score == pytest.approx(66.8)
    assert formula(made) == (
        "score: +1 for each 1 point of gain, −0.5 for each 10 ms of latency, "
        "−0.1 for each 60 s of cost, −1 for each 1 point of spread"
    )


def test_scores_are_read_by_their_distance_from_the_best():
    """A score of a loss is negative and means nothing alone; without a score there is none."""
    unweighed = Weights()
    made = chosen(candidate(0, 78.6), candidate(1, 78.1), weights=unweighed, goal="minimize")
    assert [made.behind(one) for one in made.ranked] == pytest.approx([0.0, 0.5])
    assert scale(made) == "behind = the best score − the trial's; 1 is worth 1 of gain"
    some = chosen(candidate(0, 0.7, latency=None), candidate(1, 0.6, latency=5.0))
    assert [some.behind(one) for one in some.ranked] == [0.0, None]
    assert scale(some).endswith("1 is worth 1 point of gain")


def test_the_two_rankings_and_why_they_differ():
    """Trial 7 wins by the metric, trial 3 by the score: by how much, term by term."""
    made = chosen(
        candidate(7, 0.684, latency=31.0),
        candidate(3, 0.680, latency=10.0, cost=59.0),  # worth too little to be told
        candidate(1, 0.60),
    )
    assert order(made) == ["sweep_3", "sweep_7", "sweep_1"]
    assert [(one.by_score, one.by_metric) for one in made.ranked] == [(1, 2), (2, 1), (3, 3)]
    first, *rest = sentences(made)
    assert first == (
        "trial 7 is first by gain, trial 3 by the score: 0.4 points less gain (−0.40); "
        "3.1 times faster (+1.05)"
    )
    assert rest == []


def test_what_may_be_chance_is_said():
    """Half a point given up for steadiness, when seeds alone make a point and a half."""
    made = chosen(candidate(7, 0.685, stability=0.015), candidate(3, 0.68, stability=0.002))
    said = list(sentences(made))
    assert "steadier, a spread of 0.2 points instead of 1.5 points (+1.30)" in said[0]
    assert said[1] == (
        "what it gives up in gain is within the spread over seeds (1.5 points), and may be chance"
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"cost": 30.0}, {"cost": 90.0}, "3.0 times cheaper (+0.10)"),
        ({"latency": 0.0}, {"latency": 40.0}, "40 ms faster (+2.00)"),
        ({"latency": 20.0}, {"latency": 40.0}, "2.0 times faster (+1.00)"),
        ({"latency": 39.0}, {"latency": 40.0}, "1 ms faster (+0.05)"),
        (
            {"cost": 600.0, "latency": 1.0},
            {"cost": 60.0, "latency": 99.0},
            "10 times dearer (−0.90",
        ),
    ],
)
def test_differences_in_words(ours: dict[str, float], theirs: dict[str, float], words: str):
    """A factor where there is one, else the difference."""
    made = chosen(candidate(1, 0.6999, **ours), candidate(2, 0.70, **theirs))
    assert order(made)[0] == "sweep_1"
    assert words in next(iter(sentences(made)))


def test_a_metric_to_minimise():
    """Less is better in the score and in the metric's ranking."""
    loss = replace(WEIGHTS, quality=Term(1, 1))
    made = chosen(candidate(0, 2.0), candidate(1, 1.5), weights=loss, goal="minimize")
    assert order(made) == ["sweep_1", "sweep_0"] and made.by_metric.candidate.name == "sweep_1"
    assert formula(made).startswith("score: −1 for each 1 of gain, −0.5 for each 10 ms of latency")
    assert next(iter(sentences(made))) == "trial 1 is first by gain and by the score"


def test_one_candidate():
    made = chosen(candidate(4, 0.5))
    assert list(sentences(made)) == ["trial 4 is the only one that is ranked"]
    assert made.ranked[0].on_front is True


def test_equals_share_their_places():
    """The same in everything: both first, both on the front; nobody dominates his equal."""
    made = chosen(candidate(0, 0.7), candidate(1, 0.7), candidate(2, 0.6))
    assert [(one.by_score, one.by_metric) for one in made.ranked] == [(1, 1), (1, 1), (3, 3)]
    assert [one.on_front for one in made.ranked] == [True, True, False]
    assert list(sentences(made)) == [
        "trial 0 is first by gain and by the score",
        "level with it by the score: trial 1",
    ]


def test_the_front():
    """Who is best at something is on it; who is beaten in everything is not."""
    made = chosen(
        candidate(0, 0.9, latency=50.0),
        candidate(1, 0.8, latency=5.0),
        candidate(2, 0.8, latency=6.0),
        candidate(3, 0.85, latency=60.0),
        weights=Weights(),
    )
    front = {one.candidate.name: one.on_front for one in made.ranked}
    assert front == {"sweep_0": True, "sweep_1": True, "sweep_2": False, "sweep_3": False}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "not logged"),
        (math.nan, "NaN"),
        (math.inf, "infinite"),
        (-math.inf, "infinite"),
        (-1.0, "negative"),
        (1.7e308, "too large"),
    ],
)
@pytest.mark.parametrize("term", TERMS[1:])
def test_a_missing_term_is_named_and_never_zero(term: str, value: float | None, why: str):
    """One trial without a term that weighs has no score, whatever its quality; others keep theirs.

    Where nobody has the term it is in no score, and that is said.
    """
    bad = candidate(0, 0.99, **{term: value})
    made = chosen(bad, candidate(1, 0.5))
    assert order(made) == ["sweep_1", "sweep_0"]
    last = made.ranked[-1]
    assert (last.score, last.by_score, last.on_front) == (None, None, None)
    assert last.missing == {term: why} and made.left_out == {}
    assert made.by_metric.candidate.name == "sweep_0"
    said = list(sentences(made))
    assert any("trial 0 has no score" in one and why in one for one in said)
    alone = chosen(bad)
    assert alone.left_out == {term: why} and alone.ranked[0].score is not None
    assert any(f"{term} is in no score" in one for one in sentences(alone))


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 1e308])
def test_without_quality_nothing_is_ranked(value: float | None):
    """A NaN is not the best of all, nor the worst: it is not there."""
    made = chosen(candidate(0, value), candidate(1, 0.5))
    assert order(made) == ["sweep_1"]
    with pytest.raises(ValueError, match="gain"):
        chosen(candidate(0, value))


def test_a_term_without_weight_may_be_missing():
    """It is shown and compared where it is there; without it nothing is lost but the front."""
    made = chosen(candidate(0, 0.7, latency=None), candidate(1, 0.6), weights=Weights())
    assert [one.score for one in made.ranked] == pytest.approx([0.7, 0.6])
    assert [one.on_front for one in made.ranked] == [None, True]


def test_nobody_has_a_score():
    """Each lacks another term: then the metric alone ranks."""
    made = chosen(candidate(0, 0.7, latency=None), candidate(1, 0.8, cost=math.nan))
    assert made.by_score is None and order(made) == ["sweep_1", "sweep_0"]
    assert next(iter(sentences(made))) == "trial 1 is first by gain; none has a score"


finite = st.floats(0, 1e6, allow_nan=False)
fields = st.tuples(st.floats(-1e3, 1e3), finite, finite, st.floats(0, 1e3))
several = st.lists(fields, min_size=1, max_size=12)


def of(points: list[tuple[float, float, float, float]]) -> list[Candidate]:
    return [
        Candidate(str(number), str(number), dict(zip(TERMS, point, strict=True)))
        for number, point in enumerate(points)
    ]


@given(several)
def test_the_best_by_the_score_is_on_the_front(points: list[tuple[float, float, float, float]]):
    """With every weight above zero nobody dominates the winner, but for what rounding hides."""
    made = select(of(points), WEIGHTS, "gain", "maximize")
    best = [one for one in made.ranked if one.by_score == 1]
    top = max(one.score or 0.0 for one in made.ranked)
    near = [one for one in made.ranked if math.isclose(one.score or 0.0, top, abs_tol=1e-6)]
    assert best and any(one.on_front for one in near)


@given(several, fields)
def test_another_candidate_turns_no_order_round(
    points: list[tuple[float, float, float, float]], other: tuple[float, float, float, float]
):
    """The references are the project's, not the range of what is at hand: no rank reversal."""
    before = order(select(of(points), WEIGHTS, "gain", "maximize"))
    after = order(select(of([*points, other]), WEIGHTS, "gain", "maximize"))
    assert [name for name in after if name != str(len(points))] == before
