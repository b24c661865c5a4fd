"""Define the forecaster families of a search, by Azure ML's names if Azure ML has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ml.automl.models.estimators import Settings
from ml.automl.models.families import FAMILIES as TABULAR
from ml.automl.models.families import REGRESSION, Family, Space


@dataclass(frozen=True)
class Forecasters:
    """A family of forecasters: its search space, and its portfolio of settings to try first."""

    space: Space = field(default_factory=dict)
    portfolio: Mapping[int, Settings] = field(default_factory=lambda: {0: {}})
    usual: bool = True
    weighted: bool = False

    def space_of(self, task: str) -> Space:
        """Return the search space; it does not depend on the task."""
        return self.space


# `relative`: trees predict the difference from the mean of the last season, so that forecasts can
# exceed the range of the training data.
_SERIES: Space = {"relative": ("choice", True, False)}
_TREES: Mapping[str, Any] = {"colsample_bytree": 0.8, "subsample": 0.8}


def _boosted(name: str, sizes: Mapping[str, Any], turns: tuple[int, int]) -> Forecasters:
    """Return a family of boosted trees, with the search space of the tabular family `name`."""
    tabular: Family = next(family for family in TABULAR if family.names.get(REGRESSION) == name)
    space = {**tabular.space, **_SERIES, "n_estimators": ("quniform", 100, 600, 50)}
    usual = {key: args[1] for key, args in space.items() if args[0] == "choice"}
    first = {**usual, **_TREES, **sizes, "learning_rate": 0.05, "n_estimators": 300}
    first |= {"reg_alpha": 0.001, "reg_lambda": 1.0}
    second = {**first, "relative": False}
    return Forecasters(space, {turns[0]: first, turns[1]: second})


FAMILIES: Mapping[str, Forecasters] = {
    "naive": Forecasters(),
    "seasonal_naive": Forecasters(),
    "light_gbm": _boosted(
        "light_gbm",
        {"num_leaves": 31, "min_data_in_leaf": 20, "max_bin": 255, "extra_trees": False},
        (1, 3),
    ),
    # Azure ML has no Theta, so it is tried only if the spec does not list algorithms.
    "theta": Forecasters(portfolio={2: {}}),
    "exponential_smoothing": Forecasters(portfolio={4: {}}),
    "xg_boost_regressor": _boosted(
        "xg_boost_regressor", {"max_depth": 6, "min_child_weight": 5.0}, (5, 6)
    ),
    # AutoARIMA is the slowest: with many series, its time limit may end before all are fitted.
    "auto_arima": Forecasters(portfolio={7: {}}),
}
# Baselines, which are tried even if the spec does not allow them.
ALWAYS = frozenset({"naive", "seasonal_naive"})
