"""Contributions of a real LightGBM model."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest

from ml.toolkit.training.boosting import NotAdditive, contributions

NAMES = ("useless", "decisive", "helpful")


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, np.ndarray]:
    """A model of y = 3·decisive + helpful, and 500 rows."""
    rows = np.random.default_rng(0).normal(size=(500, 3))
    settings = {"objective": "regression", "verbose": -1, "num_threads": 1, "seed": 0}
    data = lightgbm.Dataset(rows, 3 * rows[:, 1] + rows[:, 2])
    return lightgbm.train(settings, data, num_boost_round=30), rows


def test_shares_are_in_order_and_exact(fitted: tuple[Any, np.ndarray]):
    """What decides comes first, all shares are 1, and the contributions add up to the score."""
    explained = contributions(*fitted)
    shares = explained.shares(NAMES)
    assert [of.feature for of in shares] == ["decisive", "helpful", "useless"]
    assert sum(of.share for of in shares) == pytest.approx(1)
    assert explained.rows == 500 and explained.error < 1e-9
    with pytest.raises(ValueError):
        explained.shares(NAMES[:2])


class Approximate:
    """A booster whose contributions are a little off."""

    def __init__(self, booster: Any) -> None:
        self._booster = booster

    def predict(self, rows: np.ndarray, **how: bool) -> np.ndarray:
        """Scores as they are, contributions with something added."""
        return self._booster.predict(rows, **how) + (0.01 if "pred_contrib" in how else 0.0)


def test_contributions_that_do_not_add_up_are_refused(fitted: tuple[Any, np.ndarray]):
    """They explain another score."""
    booster, rows = fitted
    with pytest.raises(NotAdditive):
        contributions(Approximate(booster), rows)


def test_a_constant_model_has_no_shares():
    """Nothing contributes: shares of zero, which the gate refuses."""
    rows = np.ones((50, 3))
    data = lightgbm.Dataset(rows, np.ones(50))
    booster = lightgbm.train({"verbose": -1, "num_threads": 1}, data, num_boost_round=2)
    assert {of.share for of in contributions(booster, rows).shares(NAMES)} == {0.0}
