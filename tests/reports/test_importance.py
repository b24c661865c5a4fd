"""Which parameters mattered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ml.backends.local.runs import runs
from ml.reports.facts import gather
from ml.reports.importance import MAX_TRIALS, MIN_TRIALS, Importance, importance
from ml.reports.sweep import Sweep
from ml.specs.plan.plan import Value
from tests.reports import made
from tests.reports.made import STORE, Made


def sweep(trials: list[Made]) -> Sweep:
    """The facts of a sweep of these trials."""
    made.sweep(trials)
    found = gather(runs.find("latest"), STORE).sweep
    assert found
    return found


def trials(number: int, noise: bool = False) -> list[Made]:
    """Trials whose value depends on the logarithm of `lr` and on `kind`, and not on `idle`."""
    chance, found = random.Random(1), []
    for _ in range(number):
        exponent, kind = chance.uniform(-5, 0), chance.choice(["a", "b"])
        given: dict[str, Value] = {"lr": 10**exponent, "kind": kind, "idle": chance.random()}
        value = chance.random() if noise else exponent + (0.8 if kind == "a" else 0.0)
        found.append(Made([value], given))
    return found


def test_what_mattered_comes_first(home: Path) -> None:
    """The parameter that decides has most of the variance, the idle one next to none."""
    found = importance(sweep(trials(60)))
    names = [name for name, _ in found.shares]
    assert names == ["lr", "kind", "idle"]
    assert found.shares[0][1] > 0.7
    assert found.shares[2][1] < 0.05
    assert sum(share for _, share in found.shares) == pytest.approx(1)
    assert found.explained > 0.7
    assert not found.is_weak


def test_noise_is_said_to_be_noise(home: Path) -> None:
    """A forest that predicts nothing has an order of parameters all the same."""
    found = importance(sweep(trials(40, noise=True)))
    assert found.shares
    assert found.is_weak


def test_a_thousand_trials_are_sampled(home: Path) -> None:
    """What was learnt from is said."""
    assert importance(sweep(trials(MAX_TRIALS * 2 + 1))).trials <= MAX_TRIALS


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            trials(MIN_TRIALS - 1),
            f"it needs {MIN_TRIALS} completed trials, and there are {MIN_TRIALS - 1}",
        ),
        ([Made([0.5], {"x": n, "y": -n}) for n in range(20)], "the same value"),
        ([Made([n / 20], {"x": n}) for n in range(20)], "fewer than two parameters"),
    ],
)
def test_when_nothing_can_be_said(home: Path, given: list[Made], why: str) -> None:
    """Too few trials, one value, one parameter."""
    found = importance(sweep(given))
    assert found.shares == ()
    assert why in found.reason


def test_conditional_parameters_are_left_out(home: Path) -> None:
    """A parameter that only some trials have cannot be compared; it is named."""
    given = trials(30)
    given[3] = Made(given[3].curve, {**given[3].parameters, "depth": 4})
    found = importance(sweep(given))
    assert found.excluded == ("depth",)
    assert isinstance(found, Importance)
    assert found.shares
