"""ml.release.ab.verdict: the words follow from the figures, and doubtful figures get none."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from ml.release.ab.experiment import Arm, Experiment
from ml.release.ab.records import Records
from ml.release.ab.sequence import imbalance
from ml.release.ab.verdict import verdict

Begun = Callable[..., Experiment]


def drawn(made: Experiment, count: int, a: float, b: float, lost: float = 0.0) -> Records:
    """`count` keys with their outcomes at those rates; a share of B's outcomes never comes."""
    rng = np.random.default_rng(1)
    tickets = [made.ticket(f"k{number}") for number in range(count)]
    assigned = {ticket: made.arm(ticket) for ticket in tickets}
    outcomes = [
        (arm, float(rng.random() < (b if arm == "B" else a)))
        for arm in assigned.values()
        if arm == "A" or rng.random() >= lost
    ]
    return Records(assigned, outcomes, 0, 0, 0)


@pytest.mark.parametrize(
    ("a", "b", "count", "goal", "kind", "words"),
    [
        (0.4, 0.6, 3000, "maximize", "better", r"B is better by \d+\.\d points .*safe to stop"),
        (0.4, 0.6, 3000, "minimize", "worse", r"A is better by \d+\.\d points .*safe to stop"),
        (0.6, 0.4, 3000, "maximize", "worse", "A is better"),
        (0.4, 0.4, 6000, "maximize", "no-difference", r"no difference of 10\.0 points or more"),
        (0.4, 0.45, 600, "maximize", "undecided", r"undecided: B minus A .*about [\d,]+ more"),
        (0.4, 0.4, 20, "maximize", "undecided", "too few outcomes"),
    ],
)
def test_the_verdict_in_words(
    begun: Begun, a: float, b: float, count: int, goal: str, kind: str, words: str
) -> None:
    """Better, worse, alike, or how many more it takes."""
    made = begun(goal=goal)
    found = verdict(made, drawn(made, count, a, b))
    assert found.kind == kind and re.search(words, found.sentence), found.sentence
    assert found.stop == (kind != "undecided")
    assert found.more == 0 if found.stop else (found.more or 0) > 0


def test_a_small_rate_is_said_with_the_digits_it_takes(begun: Begun) -> None:
    """An effect of a hundredth of a point is not "0.0 points"."""
    made = begun(baseline=0.001, effect=0.0002)
    rng, count = np.random.default_rng(2), 60_000
    arms: list[Arm] = ["B" if number % 2 else "A" for number in range(count)]
    rates = {"A": 0.001, "B": 0.004}
    outcomes = [(arm, float(rng.random() < rates[arm])) for arm in arms]
    found = verdict(
        made, Records({f"{n:016x}": arm for n, arm in enumerate(arms)}, outcomes, 0, 0, 0)
    )
    assert found.kind == "better" and found.low and found.low > 0
    low, high = re.search(r"([\d.]+) to ([\d.]+)\)", found.sentence).groups()  # type: ignore[union-attr]
    assert float(low) == pytest.approx(found.low * 100, abs=0.001), found.sentence
    assert float(high) == pytest.approx(found.high * 100, abs=0.001)  # type: ignore[operator]


def test_no_outcome_yet(begun: Begun) -> None:
    """The whole plan is still needed."""
    made = begun()
    found = verdict(made, Records({}, [], 0, 0, 0))
    assert (found.kind, found.more) == ("undecided", made.planned)


def test_a_lopsided_assignment_is_not_read(begun: Begun) -> None:
    """However clear the difference looks: half of B's outcomes never came."""
    made = begun()
    found = verdict(made, drawn(made, 3000, 0.4, 0.6, lost=0.5))
    assert found.kind == "untrustworthy" and not found.stop
    assert "not 50%" in found.sentence and "outcomes are B's" in found.mismatch


def test_a_fair_assignment_is_hardly_ever_called_lopsided() -> None:
    """At 100 looks each, at most one in a hundred of 2,000 at a level of a hundredth."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(2000):
        b = np.cumsum(rng.binomial(20, 0.3, 100))
        looks = [
            imbalance(float(b[n]), 20.0 * (n + 1) - float(b[n]), 0.3) for n in range(0, 100, 5)
        ]
        alarms += max(looks) >= np.log(100)
    assert alarms / 2000 <= 0.01
