"""Fit boosted trees of LightGBM and XGBoost with cross-validated early stopping.

The models of all folds grow together, one tree at a time. The validation rows of the other folds,
never its own, determine a fold's number of trees, so that its score is not optimistic. The
libraries' early stopping uses the fold's own rows (`lightgbm.cv` all of them). The final model has
the number of trees that is best over all folds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.automl.models.estimators import Fitted, Numbers, Settings
from ml.toolkit.training.boosting import threads

# Maximum number of trees, and number without early stopping (LightGBM's and XGBoost's default).
MOST, USUAL = 1_500, 100
# Patience of early stopping, in trees: PATIENCE up to MANY_ROWS rows, since metrics of few rows are
# noisy; above, in inverse proportion to the rows (as in AutoGluon 1.x), at least IMPATIENCE.
PATIENCE, IMPATIENCE, MANY_ROWS = 300, 20, 10_000
# Minimum number of trees times learning rate; about exp(-LEAST) of the residual remains. The AUC
# may be best after one tree, when all scores are still close to the class's share.
LEAST = 2.0
# LightGBM's default learning rate, for settings without one.
RATE = 0.1
# Rows from which LightGBM computes its bins (default: 200,000, which need more memory).
BINNED = 50_000
# Metric of a search → LightGBM's and XGBoost's name. For other metrics, which are step functions or
# are missing in the libraries, early stopping uses the loss.
_METRICS = {
    "AUC_weighted": ("auc", "auc"),
    "average_precision_score_weighted": ("average_precision", "aucpr"),
    "normalized_mean_absolute_error": ("l1", "mae"),
}


class FittedTrees(Fitted, Protocol):
    """Fitted boosted trees."""

    @property
    def rounds(self) -> int:
        """Return the number of boosting rounds."""
        ...


class Growing(Protocol):
    """Boosted trees of one fold that grow step by step, with the fold's validation rows."""

    def add(self) -> float:
        """Add a boosting round; return the metric of the validation rows, higher is better."""
        ...

    def cut(self, trees: int) -> Fitted:
        """Return the model of the first `trees` boosting rounds."""
        ...


# Starts a fold: (training rows, validation rows, metric of the search, settings, seed).
Grow = Callable[[Numbers, Numbers, str, Settings, int], Growing]


def patience(rows: int) -> int:
    """Return the patience of early stopping, in trees, for a number of training rows."""
    return max(IMPATIENCE, PATIENCE * MANY_ROWS // max(MANY_ROWS, rows))


def fewest(rate: float) -> int:
    """Return the minimum number of trees for a learning rate."""
    return math.ceil(LEAST / rate)


def grow(
    folds: Sequence[Growing],
    most: int,
    patience: int,
    seconds: float = math.inf,
    fewest: int = 1,
) -> tuple[Sequence[int], int]:
    """Add trees to all folds with early stopping; return the best number of trees.

    The first result has each fold's number, which is best for the other folds (with a single fold,
    for itself); the second is best over all folds. Both are at least `fewest`, unless `most` or the
    time limit in `seconds` ends earlier.
    """
    until, count = time.monotonic() + seconds, len(folds)
    # One entry for each fold, and a last one for all folds together.
    best, rounds = np.full(count + 1, -np.inf), np.full(count + 1, fewest)
    is_open = np.ones(count + 1, dtype=bool)
    for number in range(1, most + 1):
        # A metric that is undefined on a fold's rows counts as 0.
        values = np.nan_to_num([fold.add() for fold in folds])
        others = (values.sum() - values) / (count - 1) if count > 1 else values
        of_this = np.append(others, values.mean())
        is_better = is_open & (of_this > best) & (number >= fewest)
        best, rounds = np.where(is_better, of_this, best), np.where(is_better, number, rounds)
        # The number of a fold that has stopped does not change while others continue.
        is_open &= number - rounds < patience
        if not is_open.any() or time.monotonic() > until:
            break
    rounds = np.minimum(rounds, number)
    return rounds[:-1].tolist(), int(rounds[-1])


def _parameters(
    data: Numbers, settings: Settings, metric: str, library: int, **extra: Any
) -> dict[str, Any]:
    """Return the library's parameters (0: LightGBM, 1: XGBoost), without the number of trees."""
    names = None if data.task == "multiclass" else _METRICS.get(metric)
    named = {("metric", "eval_metric")[library]: names[library]} if names else {}
    classes = {"num_class": data.classes} if data.task == "multiclass" else {}
    sampled = {name: value for name, value in settings.items() if name != "n_estimators"}
    return {**classes, **extra, **named, **sampled}


def _lightgbm_rows(
    data: Numbers, settings: Settings, seed: int, metric: str
) -> tuple[dict[str, Any], Any]:
    """Return LightGBM's parameters and binned data set."""
    import lightgbm

    extra: dict[str, Any] = {
        **{"objective": data.task, "num_threads": threads(), "verbosity": -1, "bagging_freq": 1},
        **{"seed": seed, "deterministic": True, "force_row_wise": True},
        # With few rows, LightGBM's default of 3 would exclude most columns.
        "min_data_in_bin": 1 if len(data.labels) < 200 else 3,
        "bin_construct_sample_cnt": BINNED,
    }
    parameters = _parameters(data, settings, metric, 0, **extra)
    rows = lightgbm.Dataset(
        data.table,
        data.labels,
        weight=data.weights,
        categorical_feature=list(data.categorical),
        params=parameters,
    )
    return parameters, rows.construct()


def fit_lightgbm(
    data: Numbers, settings: Settings, seed: int, seconds: float = math.inf
) -> FittedTrees:
    """Fit `n_estimators` trees without early stopping; add none after `seconds`."""
    import lightgbm

    until = time.monotonic() + seconds

    def stop(round: Any) -> None:
        if time.monotonic() > until:
            raise lightgbm.EarlyStopException(round.iteration, [])

    parameters, rows = _lightgbm_rows(data, settings, seed, "")
    del data  # free the numbers: LightGBM has its bins
    rounds = int(settings.get("n_estimators", USUAL))
    return _Booster(lightgbm.train(parameters, rows, rounds, callbacks=[stop]))


def grow_lightgbm(
    data: Numbers, early_stopping: Numbers, metric: str, settings: Settings, seed: int
) -> Growing:
    """Start the trees of a fold; see `Grow`."""
    import lightgbm

    parameters, rows = _lightgbm_rows(data, settings, seed, metric)
    weights = early_stopping.weights_like(data)
    del data
    validation = rows.create_valid(
        early_stopping.table, early_stopping.labels, weights, params=parameters
    )
    return _Booster(lightgbm.Booster(parameters, rows).add_valid(validation, "validation"))


@dataclass(frozen=True)
class _Booster:
    """Trees of LightGBM."""

    booster: Any

    @property
    def rounds(self) -> int:
        return int(self.booster.current_iteration())

    def add(self) -> float:
        self.booster.update()
        ((_, _, value, is_higher),) = self.booster.eval_valid()
        return float(value if is_higher else -value)

    def cut(self, trees: int) -> Fitted:
        self.booster.best_iteration = trees  # LightGBM predicts with these trees and saves them
        return _Booster(self.booster.free_dataset())

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(self.booster.predict(table), dtype=np.float64)

    def save(self, folder: Path) -> str:
        (folder / "model.txt").write_text(self.booster.model_to_string(), encoding="utf-8")
        return "model.txt"


_OBJECTIVES = {
    "binary": "binary:logistic",
    "multiclass": "multi:softprob",
    "regression": "reg:squarederror",
}


def _xgboost_parameters(
    data: Numbers, settings: Settings, seed: int, metric: str
) -> dict[str, Any]:
    extra = {"seed": seed, "nthread": threads(), "tree_method": "hist", "verbosity": 0}
    return _parameters(data, settings, metric, 1, objective=_OBJECTIVES[data.task], **extra)


def _xgboost_rows(
    table: NDArray[np.float32], categorical: Sequence[int], labels: Any = None, weights: Any = None
) -> Any:
    import xgboost

    # "c" for columns with category codes, "q" for numbers.
    kinds = ["c" if column in {*categorical} else "q" for column in range(table.shape[1])]
    return xgboost.DMatrix(
        table, labels, weight=weights, feature_types=kinds, enable_categorical=True
    )


def fit_xgboost(
    data: Numbers, settings: Settings, seed: int, seconds: float = math.inf
) -> FittedTrees:
    """Fit `n_estimators` trees without early stopping; add none after `seconds`."""
    import xgboost

    until = time.monotonic() + seconds

    class Deadline(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            return time.monotonic() > until

    rows = _xgboost_rows(data.table, data.categorical, data.labels, data.weights)
    rounds = int(settings.get("n_estimators", USUAL))
    parameters = _xgboost_parameters(data, settings, seed, "")
    booster = xgboost.train(parameters, rows, rounds, callbacks=[Deadline()])
    return _Xgboost(booster, data.categorical)


def grow_xgboost(
    data: Numbers, early_stopping: Numbers, metric: str, settings: Settings, seed: int
) -> Growing:
    """Start the trees of a fold; see `Grow`."""
    import xgboost

    parameters = _xgboost_parameters(data, settings, seed, metric)
    rows, validation = (
        _xgboost_rows(part.table, data.categorical, part.labels, weights)
        for part, weights in (
            (data, data.weights),
            (early_stopping, early_stopping.weights_like(data)),
        )
    )
    booster = xgboost.Booster(parameters, [rows, validation])
    sign = 1.0 if str(parameters.get("eval_metric", "")).startswith("auc") else -1.0
    return _GrowingXgboost(booster, data.categorical, rows, validation, sign)


@dataclass(frozen=True)
class _Xgboost:
    """Trees of XGBoost."""

    booster: Any
    categorical: Sequence[int]

    @property
    def rounds(self) -> int:
        return int(self.booster.num_boosted_rounds())

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        rows = _xgboost_rows(table, self.categorical)
        return np.asarray(self.booster.predict(rows), dtype=np.float64)

    def save(self, folder: Path) -> str:
        self.booster.save_model(folder / "model.json")
        return "model.json"


@dataclass(frozen=True)
class _GrowingXgboost(_Xgboost):
    rows: Any
    validation: Any
    sign: float

    def add(self) -> float:
        self.booster.update(self.rows, self.booster.num_boosted_rounds())
        # The result has the form "[0]\teval-auc:0.83712".
        return self.sign * float(self.booster.eval(self.validation).rpartition(":")[2])

    def cut(self, trees: int) -> Fitted:
        return _Xgboost(self.booster[:trees], self.categorical)
