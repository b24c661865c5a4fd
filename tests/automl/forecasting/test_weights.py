"""The weights of a vote of forecasts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ml.automl import ensembles
from ml.automl.ensembles import OutOfFoldPredictions
from ml.automl.forecasting.weights import Weights, choose

STEPS = 14
Errors = Sequence[Sequence[float]]


def out_of_fold(errors: np.ndarray) -> OutOfFoldPredictions:
    """Answers (origins, steps) that are off by these errors."""
    labels = np.arange(errors.size, dtype=np.float64)
    rows = [*labels.astype(np.int64).reshape(errors.shape)]
    return OutOfFoldPredictions(
        rows, [labels[of] + wrong for of, wrong in zip(rows, errors, strict=True)], labels
    )


def error(of: OutOfFoldPredictions) -> float:
    """The mean absolute error over the origins."""
    folds = zip(of.rows, of.values, strict=True)
    return float(np.mean([np.abs(of.labels[rows] - values).mean() for rows, values in folds]))


def drawn(size: float, seed: int, origins: int = 12) -> OutOfFoldPredictions:
    """A trial whose errors have this deviation."""
    return out_of_fold(np.random.default_rng(seed).normal(0, size, (origins, STEPS)))


def test_families_that_are_as_good_have_like_weights() -> None:
    """Greedy selection among 12 origins would drop some of them by chance."""
    trials = [drawn(1.0, seed) for seed in range(4)]
    weights = choose(trials, ["naive", "theta", "ets", "arima"], error)[-1]
    assert [*weights] == [0, 1, 2, 3] and sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) > 0.15


def test_a_family_that_is_far_worse_has_no_weight() -> None:
    """Errors of one forecast that are 20 times those of the other do not cancel out."""
    trials = [drawn(1.0, 0), drawn(20.0, 1)]
    assert choose(trials, ["theta", "naive"], error)[-1] == {0: 1.0}


def test_trials_of_one_family_do_not_outvote_another() -> None:
    """A search tries trees often: with inverse errors the best trial speaks for its family."""
    shared = np.random.default_rng(0).normal(0, 1, (12, STEPS))
    trees = [out_of_fold(shared * (1 + number / 100)) for number in range(9)]
    weights = choose([*trees, drawn(1.0, 1)], ["light_gbm"] * 9 + ["theta"], error)[-1]
    assert weights[9] > 0.3 and sum(weights.values()) == pytest.approx(1)


def test_trials_of_one_family_are_averaged_where_it_is_best() -> None:
    """Greedy selection wins the cross-validation where the best forecasts are of one family."""
    trees = [drawn(1.0, seed) for seed in range(4)]
    weights = choose([*trees, drawn(30.0, 9)], ["light_gbm"] * 4 + ["naive"], error)[-1]
    assert len(weights) > 1 and 4 not in weights


@pytest.mark.parametrize("origins", [1, 2])
def test_few_origins_and_exact_forecasts(origins: int) -> None:
    """One origin has no other to choose a power by; a forecast without an error gets the vote."""
    trials = [out_of_fold(np.zeros((origins, STEPS))), drawn(1.0, 0, origins)]
    assert choose(trials, ["naive", "theta"], error)[-1] == {0: 1.0}


@pytest.mark.parametrize("calibrating", [0, 3])
def test_weights_at_an_origin_know_the_errors_at_earlier_ones_alone(calibrating: int) -> None:
    """Other forecasts from an origin on change no weight until the next one."""
    trials = [drawn(1.0 + seed, seed, 8) for seed in range(3)]
    families = ["naive", "theta", "arima"]
    before = choose(trials, families, error, calibrating)
    for origin in range(calibrating, 8):
        values = [of if at < origin else of[::-1] * 9 for at, of in enumerate(trials[0].values)]
        changed = [OutOfFoldPredictions(trials[0].rows, values, trials[0].labels), *trials[1:]]
        after = choose(changed, families, error, calibrating)
        assert after[: origin + 1] == before[: origin + 1]
    assert after[-1] != before[-1] and len(before) == 9


def test_members_that_are_good_by_chance_alone_do_not_flatter_the_vote() -> None:
    """Thirty trials are good at one origin each: greedy selection of them is better at the origins
    that chose it than it will be.
    """
    trials = [drawn(1.0, seed, 6) for seed in range(30)]
    *earlier, last = choose(trials, ["light_gbm"] * 30, error)
    expected = [error(ensembles.mean(*_parts(trials, at, of))) for at, of in enumerate(earlier)]
    optimistic = [error(ensembles.mean(*_parts(trials, at, last))) for at in range(6)]
    assert np.mean(expected) > np.mean(optimistic) * 1.1


def _parts(
    trials: Sequence[OutOfFoldPredictions], origin: int, weights: Weights
) -> tuple[list[OutOfFoldPredictions], list[float]]:
    parts = [
        OutOfFoldPredictions([of.rows[origin]], [of.values[origin]], of.labels)
        for of in (trials[member] for member in weights)
    ]
    return parts, [*weights.values()]
