"""Run a peer of AutoML on a table, in the peers' environment: fit, predict the test, measure.

    .venv/peers/bin/python benchmarks/automl_peers.py NAME FOLDER SECONDS CORES OUT

FOLDER has `train/rows.parquet`, `test.parquet` and `about.json`. This file imports nothing of the
repository.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Predict = Callable[[pd.DataFrame], Any]


def optuna_lightgbm(
    rows: pd.DataFrame, labels: Any, classes: int, seconds: float, cores: int, folder: Path
) -> Predict:
    """Fit LightGBM by a simple loop: TPE, early stopping on a fifth of the rows, a final refit."""
    import lightgbm
    import optuna
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import train_test_split

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    began = time.monotonic()
    fitted, judged = train_test_split(
        np.arange(len(rows)), test_size=0.2, random_state=0, stratify=labels
    )
    fixed: dict[str, Any] = {"verbosity": -1, "num_threads": cores, "seed": 0, "bagging_freq": 1}
    fixed |= (
        {"objective": "binary", "metric": "auc"}
        if classes == 2
        else {"objective": "multiclass", "num_class": classes, "metric": "multi_logloss"}
    )
    took: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        started = time.monotonic()
        settings = {
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "num_leaves": trial.suggest_int("num_leaves", 4, 256, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 2, 100, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.4, 1.0),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.5, 1.0),
            "lambda_l1": trial.suggest_float("lambda_l1", 1e-8, 10.0, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-8, 10.0, log=True),
        }
        training = lightgbm.Dataset(rows.iloc[fitted], labels[fitted], params={"verbosity": -1})
        booster = lightgbm.train(
            {**fixed, **settings},
            training,
            2000,
            valid_sets=[training.create_valid(rows.iloc[judged], labels[judged])],
            callbacks=[lightgbm.early_stopping(50, verbose=False)],
        )
        trial.set_user_attr("rounds", booster.best_iteration)
        answers = booster.predict(rows.iloc[judged])
        took.append(time.monotonic() - started)
        return float(
            roc_auc_score(labels[judged], answers)
            if classes == 2
            else roc_auc_score(labels[judged], answers, multi_class="ovr", average="weighted")
        )

    def is_enough(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        # Reserve time for the final fit on all rows, which takes about as long as a trial.
        if time.monotonic() - began + 1.5 * float(np.mean(took)) > seconds:
            study.stop()

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, timeout=seconds, callbacks=[is_enough])
    best = study.best_trial
    booster = lightgbm.train(
        {**fixed, **best.params}, lightgbm.Dataset(rows, labels), best.user_attrs["rounds"]
    )
    answer: Predict = booster.predict
    return answer


def flaml(
    rows: pd.DataFrame, labels: Any, classes: int, seconds: float, cores: int, folder: Path
) -> Predict:
    """Fit FLAML with its default learners; its final refit is within the time budget."""
    from flaml import AutoML

    search = AutoML()
    search.fit(
        rows,
        labels,
        task="classification",
        metric="roc_auc" if classes == 2 else "roc_auc_ovr_weighted",
        time_budget=seconds,
        n_jobs=cores,
        seed=0,
        verbose=0,
    )
    answer: Predict = search.predict_proba
    return answer


def autogluon(
    rows: pd.DataFrame,
    labels: Any,
    classes: int,
    seconds: float,
    cores: int,
    folder: Path,
    preset: str = "medium_quality",
) -> Predict:
    """Fit AutoGluon's tabular predictor with a preset."""
    from autogluon.tabular import TabularPredictor

    predictor = TabularPredictor(
        "label",
        path=str(folder / "autogluon"),
        eval_metric="roc_auc" if classes == 2 else "roc_auc_ovr_weighted",
        verbosity=0,
    )
    predictor.fit(
        rows.assign(label=labels),
        time_limit=seconds,
        presets=preset,
        num_cpus=cores,
        num_gpus=0,
    )
    predictor.persist()
    return lambda table: predictor.predict_proba(table, as_multiclass=True)


def autogluon_best(
    rows: pd.DataFrame, labels: Any, classes: int, seconds: float, cores: int, folder: Path
) -> Predict:
    """Fit AutoGluon's tabular predictor with the preset `best_quality`."""
    return autogluon(rows, labels, classes, seconds, cores, folder, "best_quality")


PEERS = {
    "flaml": flaml,
    "autogluon": autogluon,
    "autogluon-best": autogluon_best,
    "optuna-lightgbm": optuna_lightgbm,
}


def main(arguments: Sequence[str]) -> None:
    """Fit, predict the test, and write `answers.npy` and `times.json` to OUT."""
    name, source, seconds, cores, out = arguments
    folder_of = Path(source)
    about = json.loads((folder_of / "about.json").read_text())
    classes: list[str] = about["classes"]
    train = pd.read_parquet(folder_of / "train" / "rows.parquet")
    labels = (
        train.pop(about["target"])
        .map({label: index for index, label in enumerate(classes)})
        .to_numpy()
    )
    texts = [column for column in train.columns if train[column].dtype == object]
    kinds = {text: pd.CategoricalDtype(sorted(train[text].dropna().unique())) for text in texts}
    train = train.astype(kinds)
    test = pd.read_parquet(folder_of / "test.parquet").drop(columns=about["target"]).astype(kinds)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        predict = PEERS[name](train, labels, len(classes), float(seconds), int(cores), Path(folder))
        fitting = time.perf_counter() - began
        answers = np.asarray(predict(test), dtype=np.float64)  # warm-up
        batch, row = _median(predict, [test] * 3), _median(predict, _single(test, 20))
    np.save(f"{out}/answers.npy", answers[:, 1] if answers.ndim == 2 == len(classes) else answers)
    times = {"fit": fitting, "predict": batch, "row": row}
    (Path(out) / "times.json").write_text(json.dumps(times))


def _single(table: pd.DataFrame, count: int) -> list[pd.DataFrame]:
    return [table.iloc[index : index + 1] for index in range(count)]


def _median(predict: Predict, tables: Sequence[pd.DataFrame]) -> float:
    took = []
    for table in tables:
        began = time.perf_counter()
        predict(table)
        took.append(time.perf_counter() - began)
    return float(np.median(took))


if __name__ == "__main__":
    main(sys.argv[1:])
