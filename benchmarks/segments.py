"""Measure the effect of training boosted trees in segments, with a checkpoint after each.

The same generated table (20,000 rows, 30 columns) and settings, with row and column sampling, are
trained as a whole and in segments, with several seeds. The benchmark prints the mean difference in
log loss on other rows with its standard error, and the effect of the seed alone. The ratio is
LightGBM's CPU time in segments of 100 trees divided by that of one segment, the library's own
training.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from ml.toolkit.training.boosting import boost_lightgbm, boost_xgboost
from ml.toolkit.training.segments import ROUNDS, checkpointed

ROWS, COLUMNS, MOST = 20_000, 30, 1000
SIZES = (25, 50, ROUNDS)
LIGHTGBM = {
    **{"objective": "binary", "learning_rate": 0.05, "num_leaves": 15},
    **{"feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1},
    **{"deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1},
}
XGBOOST = {
    **{"objective": "binary:logistic", "learning_rate": 0.05, "max_depth": 4},
    **{"colsample_bytree": 0.8, "subsample": 0.8, "nthread": 1, "tree_method": "hist"},
}
Table = tuple[NDArray[np.float64], NDArray[np.float64]]
Fit = Callable[[Table, Table, int, int], tuple[Callable[[Any], Any], int]]


def main(quick: bool) -> float:
    seeds = range(5 if quick else 20)
    train, validation, test = (table(number) for number in range(3))
    ratio = 0.0
    libraries: dict[str, Fit] = {"LightGBM": with_lightgbm, "XGBoost": with_xgboost}
    for name, fit in libraries.items():
        losses: dict[int, list[float]] = {}
        seconds: dict[int, float] = {}
        for size in (MOST, *SIZES[-1:]) if quick else (MOST, *SIZES):
            losses[size], began = [], time.process_time()
            for seed in seeds:
                predict, trees = fit(train, validation, seed, size)
                losses[size].append(log_loss(predict(test[0]), test[1]))
            seconds[size] = (time.process_time() - began) / len(seeds)
            if size == MOST:
                spread = float(np.std(losses[MOST], ddof=1))
                print(
                    f"{name}, whole: log loss {np.mean(losses[MOST]):.5f}, of which the seed alone "
                    f"changes {spread:.5f}; {seconds[MOST]:.2f} s of CPU, {trees} trees"
                )
                continue
            differences = np.subtract(losses[size], losses[MOST])
            error = differences.std(ddof=1) / len(seeds) ** 0.5
            print(
                f"  segments of {size}: {differences.mean():+.5f} ± {error:.5f}, "
                f"{seconds[size] / seconds[MOST]:.2f} of the time"
            )
        ratio = ratio or seconds[ROUNDS] / seconds[MOST]
        print(f"  with checkpoints: {written(fit, train, validation):.1f} ms for each")
    return ratio


def table(seed: int) -> Table:
    """Return random rows, and labels that depend on a few of the columns."""
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(ROWS, COLUMNS))
    logit = rows[:, 0] * rows[:, 1] + np.sin(3 * rows[:, 2]) + rows[:, 3:8].sum(axis=1) / 2
    return rows, (draw.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(float)


def with_lightgbm(train: Table, validation: Table, seed: int, size: int) -> Any:
    """Train in segments of `size` trees; return a predict function and the number of trees."""
    data = lightgbm.Dataset(*train)
    booster = boost_lightgbm(
        {**LIGHTGBM, "seed": seed}, data, MOST, data.create_valid(*validation), segment=size
    )
    return booster.predict, booster.num_trees()


def with_xgboost(train: Table, validation: Table, seed: int, size: int) -> Any:
    """Train in segments of `size` trees; return a predict function and the number of trees."""
    import xgboost as xgb

    sets = xgb.DMatrix(*train), xgb.DMatrix(*validation)
    booster = boost_xgboost({**XGBOOST, "seed": seed}, sets[0], MOST, sets[1], segment=size)
    return lambda rows: booster.predict(xgb.DMatrix(rows)), booster.num_boosted_rounds()


def log_loss(scores: NDArray[Any], labels: NDArray[np.float64]) -> float:
    """Return the mean log loss over the rows."""
    right = np.where(labels == 1, scores, 1 - scores)
    return float(-np.log(np.clip(right, 1e-12, 1)).mean())


def written(fit: Fit, train: Table, validation: Table) -> float:
    """Return the milliseconds to write a checkpoint, including its data check.

    They are calculated from the shortest of three trainings with and without checkpoints.
    """
    taken: list[float] = []
    for keeps in (False, True):
        rounds = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                with checkpointed(Path(folder)) if keeps else nullcontext():
                    began = time.perf_counter()
                    fit(train, validation, 0, SIZES[0])
                    rounds.append(time.perf_counter() - began)
                newest = max((path.name for path in Path(folder).glob("*/round-*")), default="")
        taken.append(min(rounds))
    count = int(newest.partition("-")[2]) // SIZES[0]
    return 1000 * (taken[1] - taken[0]) / count
