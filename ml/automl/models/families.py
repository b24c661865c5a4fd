"""Define the model families of a search, with their search spaces and portfolios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ml.automl.models import trees
from ml.automl.models.estimators import Fit, Fitted, Numbers, Settings, fit_of
from ml.automl.models.sampling import BALANCES

# Hyperparameter → Azure ML's name of its distribution and the arguments: ("quniform", 20, 300, 1).
Space = Mapping[str, tuple[Any, ...]]
CLASSIFICATION, REGRESSION = "classification", "regression"


@dataclass(frozen=True)
class Family:
    """A family of models: its fit function, search space and portfolio."""

    names: Mapping[str, str]  # task → Azure ML's name of the algorithm
    fit: Fit
    space: Space
    # Turn among all families → settings; the search tries these before it samples others.
    portfolio: Mapping[int, Settings]
    usual: bool = False  # False: tried only if `allowed_training_algorithms` names it
    weighted: bool = True  # whether it accepts sample weights
    in_steps: bool = False  # whether predictions jump, so that rounding inputs may change them
    seeded: bool = True  # whether the fit depends on the seed
    grow: trees.Grow | None = None  # fits boosted trees with early stopping; None for others

    def space_of(self, task: str) -> Space:
        """Return the search space; for classification, it includes `balance` (see `sampling`)."""
        balances = self.weighted and task == CLASSIFICATION
        return {**self.space, **({"balance": ("choice", *BALANCES)} if balances else {})}


def _log(low: float, high: float, kind: str = "loguniform", *steps: float) -> tuple[Any, ...]:
    """Return a log-scale distribution; Azure ML takes the logarithms of its bounds."""
    return (kind, math.log(low), math.log(high), *steps)


# FLAML's search space (flaml/automl/model.py) without the number of trees and slow values.
_TREES: Space = {
    "learning_rate": _log(0.02, 0.3),
    "colsample_bytree": ("uniform", 0.3, 1.0),
    "subsample": ("uniform", 0.6, 1.0),
    "reg_alpha": _log(0.001, 10.0),
    "reg_lambda": _log(0.001, 100.0),
}
# Values for the portfolio close to the libraries' defaults. A point of the portfolio has to set
# every hyperparameter, or else the missing one is sampled.
_MILD: Settings = {
    **{"learning_rate": 0.1, "colsample_bytree": 1.0, "subsample": 1.0},
    **{"reg_alpha": 0.001, "reg_lambda": 0.001},
}
_MILD_LIGHTGBM: Settings = {
    **_MILD,
    **{"num_leaves": 31, "min_data_in_leaf": 20, "max_bin": 255, "extra_trees": False},
}
_FOREST: Space = {
    "n_estimators": ("quniform", 50, 300, 10),
    "min_samples_leaf": ("choice", 1, 2, 4, 8, 16, 32),
    "max_features": ("choice", "sqrt", 0.3, 0.5, 0.8, 1.0),
}


def _both(name: str) -> Mapping[str, str]:
    return {CLASSIFICATION: name, REGRESSION: name}


# The portfolio begins with a cheap linear model and boosted trees, with about the defaults of their
# libraries and of AutoGluon 1.x (`GBM`, `GBMXT`, `GBMLarge`). Families that are slow or rarely best
# follow.
FAMILIES: Sequence[Family] = (
    Family(
        _both("light_gbm"),
        trees.fit_lightgbm,
        {
            **_TREES,
            "num_leaves": _log(4, 256, "qloguniform", 1),
            "min_data_in_leaf": _log(2, 128, "qloguniform", 1),
            "max_bin": ("choice", 63, 127, 255, 511),
            "extra_trees": ("choice", False, True),
        },
        {
            0: _MILD_LIGHTGBM,
            2: {**_MILD_LIGHTGBM, "extra_trees": True},
            4: {
                **{**_MILD_LIGHTGBM, "learning_rate": 0.05, "colsample_bytree": 0.9},
                **{"num_leaves": 128, "min_data_in_leaf": 3},
            },
            6: {
                **{**_MILD_LIGHTGBM, "learning_rate": 0.06, "colsample_bytree": 0.6},
                **{"num_leaves": 10, "min_data_in_leaf": 10, "subsample": 0.8, "reg_lambda": 3.0},
            },
        },
        usual=True,
        grow=trees.grow_lightgbm,
    ),
    Family(
        {CLASSIFICATION: "logistic_regression"},
        fit_of("linear_model", "LogisticRegression", max_iter=500, linear=True),
        {"C": _log(0.001, 100.0)},
        {1: {"C": 1.0}, 8: {"C": 0.05}},
        usual=True,
        seeded=False,
    ),
    Family(
        {REGRESSION: "elastic_net"},
        fit_of("linear_model", "", "ElasticNet", max_iter=2000, linear=True),
        {"alpha": _log(0.0001, 10.0), "l1_ratio": ("uniform", 0.0, 1.0)},
        {1: {"alpha": 0.001, "l1_ratio": 0.5}, 8: {"alpha": 0.1, "l1_ratio": 0.5}},
        usual=True,
        seeded=False,
    ),
    Family(
        {CLASSIFICATION: "xg_boost_classifier", REGRESSION: "xg_boost_regressor"},
        trees.fit_xgboost,
        {
            **_TREES,
            "max_depth": ("choice", 2, 3, 4, 5, 6, 8, 10),
            "min_child_weight": _log(0.5, 50.0),
        },
        {
            3: {
                **{**_MILD, "max_depth": 6, "min_child_weight": 1.0},
                **{"colsample_bytree": 0.8, "subsample": 0.9, "reg_lambda": 1.0},
            }
        },
        usual=True,
        grow=trees.grow_xgboost,
    ),
    Family(
        _both("extreme_random_trees"),
        fit_of("ensemble", "ExtraTreesClassifier", "ExtraTreesRegressor"),
        _FOREST,
        {5: {"n_estimators": 100, "min_samples_leaf": 4, "max_features": 0.5}},
        usual=True,
    ),
    Family(
        _both("random_forest"),
        fit_of("ensemble", "RandomForestClassifier", "RandomForestRegressor"),
        _FOREST,
        {7: {"n_estimators": 100, "min_samples_leaf": 4, "max_features": "sqrt"}},
        usual=True,
    ),
    Family(
        _both("knn"),
        fit_of("neighbors", "KNeighborsClassifier", "KNeighborsRegressor", linear=True),
        {"n_neighbors": ("quniform", 3, 100, 1), "weights": ("choice", "uniform", "distance")},
        {9: {"n_neighbors": 15, "weights": "uniform"}},
        weighted=False,
        seeded=False,
        in_steps=True,
    ),
    Family(
        {CLASSIFICATION: "svm"},
        fit_of("svm", "SVC", probability=True, linear=True),
        {"C": _log(0.01, 100.0)},
        {9: {"C": 1.0}},
    ),
    Family(
        {CLASSIFICATION: "bernoulli_naive_bayes"},
        fit_of("naive_bayes", "BernoulliNB", linear=True),
        {"alpha": _log(0.001, 10.0)},
        {9: {"alpha": 1.0}},
        seeded=False,
    ),
    Family(
        _both("decision_tree"),
        fit_of("tree", "DecisionTreeClassifier", "DecisionTreeRegressor"),
        {"max_depth": ("choice", 2, 3, 4, 6, 8, 12, 16), "min_samples_leaf": ("choice", 1, 5, 20)},
        {9: {"max_depth": 6, "min_samples_leaf": 5}},
    ),
)


def _small_trees(data: Numbers, settings: Settings, seed: int) -> Fitted:
    few = {"n_estimators": 50, "num_leaves": 7, "min_data_in_leaf": 20}
    return trees.fit_lightgbm(data, few, seed)


_CV: Mapping[str, Any] = {
    "scoring": "neg_log_loss",
    "use_legacy_attributes": False,
    "l1_ratios": (0.0,),
}
# Task → meta-models of a stack by Azure ML's names (`stack_meta_learner_type`), the default first.
# "Default meta-learners are LogisticRegression for classification tasks (or
# LogisticRegressionCV if cross-validation is enabled) and ElasticNet for regression … (or
# ElasticNetCV …)": here, a meta-model is always fitted to cross-validated predictions.
META_LEARNERS: Mapping[str, Mapping[str, Fit]] = {
    CLASSIFICATION: {
        "logistic_regression_cv": fit_of(
            "linear_model", "LogisticRegressionCV", cv=3, max_iter=500, **_CV
        ),
        "logistic_regression": fit_of("linear_model", "LogisticRegression", max_iter=500),
        "light_gbm_classifier": _small_trees,
    },
    REGRESSION: {
        "elastic_net_cv": fit_of("linear_model", "", "ElasticNetCV", cv=3),
        "elastic_net": fit_of("linear_model", "", "ElasticNet"),
        "linear_regression": fit_of("linear_model", "", "LinearRegression"),
        "light_gbm_regressor": _small_trees,
    },
}


def of_task(task: str) -> Mapping[str, Family]:
    """Return Azure ML's name → family for a task, in the order of FAMILIES."""
    return {family.names[task]: family for family in FAMILIES if task in family.names}
