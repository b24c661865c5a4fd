"""Parameter importance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.reports.explanation import MAX_TRIALS, MIN_TRIALS, Importance, importance
from ml.reports.facts import gather
from ml.reports.sweep import Sweep
from ml.reports.views import importance_chart
from ml.specs.plan.plans import Value
from tests.local import BACKEND
from tests.reports import run_records
from tests.reports.run_records import TrialRecord


def sweep(trials: list[TrialRecord]) -> Sweep:
    """The facts of a sweep of these trials."""
    run_records.sweep(trials)
    result = gather(LocalRuns().find("latest"), BACKEND).sweep
    assert result
    return result


def trials(number: int, noise: bool = False) -> list[TrialRecord]:
    """Trials whose value depends on the logarithm of `lr` and on `kind`, and not on `idle`."""
    chance, result = random.Random(1), []
    for _ in range(number):
        exponent, kind = chance.uniform(-5, 0), chance.choice(["a", "b"])
        records: dict[str, Value] = {"lr": 10**exponent, "kind": kind, "idle": chance.random()}
        value = chance.random() if noise else exponent + (0.8 if kind == "a" else 0.0)
        result.append(TrialRecord([value], records))
    return result


def test_the_most_important_parameter_comes_first(home: Path) -> None:
    """The decisive parameter has most of the variance, the idle one almost none."""
    result = importance(sweep(trials(60)))
    names = [name for name, _ in result.shares]
    assert names == ["lr", "kind", "idle"]
    assert result.shares[0][1] > 0.7
    assert result.shares[2][1] < 0.05
    assert sum(share for _, share in result.shares) == pytest.approx(1)
    assert result.explained > 0.7
    assert not result.is_weak


def test_noise_is_weak(home: Path) -> None:
    """A forest that predicts nothing still has an order of parameters."""
    result = importance(sweep(trials(40, noise=True)))
    assert result.shares
    assert result.is_weak
    caption = str(importance_chart(result))
    assert "R² 0." in caption and "too low to rely on the shares" in caption
    assert "variance" not in caption and "1 is perfect, 0 is no better" in caption


def test_a_thousand_trials_are_sampled(home: Path) -> None:
    """`trials` counts the sample."""
    assert importance(sweep(trials(MAX_TRIALS * 2 + 1))).trials <= MAX_TRIALS


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (
            trials(MIN_TRIALS - 1),
            f"fANOVA needs {MIN_TRIALS} completed trials, the sweep has {MIN_TRIALS - 1}",
        ),
        ([TrialRecord([0.5], {"x": n, "y": -n}) for n in range(20)], "the same value"),
        ([TrialRecord([n / 20], {"x": n}) for n in range(20)], "fewer than two parameters"),
    ],
)
def test_when_importance_cannot_be_computed(
    home: Path, records: list[TrialRecord], why: str
) -> None:
    """Too few trials, one value, one parameter."""
    result = importance(sweep(records))
    assert result.shares == ()
    assert why in result.reason


def test_conditional_parameters_are_excluded(home: Path) -> None:
    """A parameter that some trials lack cannot be compared; it is named."""
    records = trials(30)
    records[3] = TrialRecord(records[3].curve, {**records[3].parameters, "depth": 4})
    result = importance(sweep(records))
    assert result.excluded == ("depth",)
    assert isinstance(result, Importance)
    assert result.shares
