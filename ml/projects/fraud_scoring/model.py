"""The LightGBM model: fitting, saving, loading, prediction and explanation."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.trees import Trees
from ml.toolkit.data.datasets import Numbers
from ml.toolkit.training.boosting import boost_lightgbm, threads
from ml.toolkit.training.boosting import contributions as contributions_of_trees

FILE = "model.txt"
# Each is an argument of train.py and can be searched in jobs/sweep.yml. The last two are not
# LightGBM's: `positive_weight` is the weight of a fraud relative to another row, `others_share` the
# fraction of the non-fraud rows kept for training.
SETTINGS = {
    "trees": 1000,
    "learning_rate": 0.05,
    "num_leaves": 7,
    "min_child_samples": 20,
    "min_child_weight": 0.001,
    "min_split_gain": 0.0,
    "feature_fraction": 0.8,
    "bagging_fraction": 1.0,
    "lambda_l1": 0.0,
    "lambda_l2": 0.0,
    "max_bin": 255,
    "cat_smooth": 10.0,
    "cat_l2": 10.0,
    "positive_weight": 3.0,
    "others_share": 1.0,
}


def fit(
    columns: Columns, train: Numbers, validation: Numbers, settings: dict[str, Any], seed: int
) -> Any:
    """Return a LightGBM booster with early stopping on the validation rows.

    Weighting and downsampling change the fraud rate seen in training. The first tree's leaves are
    shifted to correct the predicted probabilities.
    """
    import lightgbm as lgb

    trees, weight, share = (
        settings.pop(name) for name in ("trees", "positive_weight", "others_share")
    )
    is_fraud = train.labels == 1
    rows = np.flatnonzero(is_fraud | (np.random.default_rng(seed).random(len(is_fraud)) < share))
    data = lgb.Dataset(
        train.table[rows],
        train.labels[rows],
        weight=np.where(is_fraud[rows], weight, 1.0),
        categorical_feature=columns.categorical,
    )
    watched = data.create_valid(validation.table, validation.labels)
    parameters = {
        # AUC depends on the ranking only, so weighting and downsampling do not distort it.
        **{"objective": "binary", "metric": "auc", "bagging_freq": 1},
        **{"seed": seed, "deterministic": True, "force_row_wise": True},
        **{"num_threads": threads(), "verbosity": -1},
        **settings,
    }
    booster = boost_lightgbm(parameters, data, trees, watched)
    first = booster.dump_model(num_iteration=1)["tree_info"][0]
    for leaf in range(first["num_leaves"]):
        value = booster.get_leaf_output(0, leaf) - log(weight / share)
        booster.set_leaf_output(0, leaf, value)
    return booster


def save(model: Any, folder: Path) -> None:
    """Write the model's file."""
    (folder / FILE).write_text(model.model_to_string(), encoding="utf-8")


def load(folder: Path) -> Trees:
    """Load the model in a folder."""
    return Trees(folder / FILE)


def predict(model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows,): the probability of class 1."""
    return np.asarray(model.predict(table))


def contributions(folder: Path, table: NDArray[np.float64]) -> Contributions | str:
    """Return the SHAP contribution of each column to each row's score, or why there is none."""
    import lightgbm as lgb

    return contributions_of_trees(lgb.Booster(model_file=folder / FILE), table)
