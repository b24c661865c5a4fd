"""Votes and stacks: made of what trials answered to rows that they did not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.automl import ensembles, metrics
from ml.automl.ensembles import OutOfFoldPredictions
from ml.serving.scoring.manifest import verify
from ml.serving.scoring.members import Members
from policies.supply_chain.formats import formats
from tests.automl.conftest import people, write
from tests.automl.test_trial import of_family

Fit = Callable[..., tuple[Path, dict[str, float]]]
REGRESSION = {"task": "regression", "target": "spent", "metric": "r2_score"}


def facts(folder: Path) -> Any:
    return json.loads((folder / "settings.json").read_text())["automl"]


def answers(
    signal: float, folds: int = 3, one_set: bool = False, seed: int = 0
) -> OutOfFoldPredictions:
    """Answers to 300 rows of two classes that know the label by so much."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, 300)
    rows = [np.arange(300) if one_set else np.arange(of, 300, folds) for of in range(folds)]
    values = [
        np.clip(0.5 + signal * (labels[of] - 0.5) + draw.normal(0, 0.2, len(of)), 0, 1)
        for of in rows
    ]
    return OutOfFoldPredictions(rows, values, labels)


@pytest.mark.parametrize("kind", ["folds", "one set", "folds drawn twice"])
def test_each_row_is_answered_by_a_model_that_was_not_fitted_to_it(kind: str) -> None:
    """A meta model that learns its rows by heart knows nothing of the others."""
    of = answers(0.0, one_set=kind == "one set")
    if kind == "folds drawn twice":
        parts = np.array_split(np.random.default_rng(1).permutation(300), 3)
        of = OutOfFoldPredictions([*of.rows, *parts], [*of.values, *parts], of.labels)
    given = OutOfFoldPredictions(of.rows, [rows.astype(float) for rows in of.rows], of.labels)
    asked: list[bool] = []

    def fit(table: Any, rows: Any) -> Any:
        assert len(rows) == len(table)
        known = {*table.tolist()}

        def predict(rows: Any) -> Any:
            asked.extend(row in known for row in rows)
            return rows

        return predict

    cross_fitted = ensembles.cross_fitted(given, fit, 0)
    assert len(asked) == sum(map(len, of.rows)) and not any(asked)
    for before, after in zip(given.values, cross_fitted.values, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("classes", [2, 3])
def test_areas_by_ranks_are_those_of_scikit_learn(classes: int) -> None:
    """With answers that are equal, and a class that no row has."""
    from sklearn.metrics import roc_auc_score

    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, 400)
    given = draw.dirichlet(np.ones(classes), 400).round(1) + 0.05
    given /= given.sum(axis=1, keepdims=True)
    task: Any = "binary" if classes == 2 else "multiclass"
    of = given[:, 1] if classes == 2 else np.column_stack([given, np.full(400, 1e-9)])
    defined = metrics.defined(task, labels, of, classes + (classes > 2), 1.0)
    given = of / of.sum(axis=1, keepdims=True) if classes > 2 else given
    ones = [roc_auc_score(labels == at, given[:, at]) for at in range(classes)]
    expected = np.average(ones, weights=np.bincount(labels))
    assert defined["AUC_weighted"]() == pytest.approx(expected, abs=1e-12)


def test_the_members_of_a_stack_are_the_best_of_each_family_first() -> None:
    families = ["a", "a", "a", "b", "a", "c", "d", "e"]
    assert ensembles.stacked(families) == [0, 3, 5, 6, 7]
    assert ensembles.stacked(["a", "a", "b"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        ({"n_cross_validations": 3}, None),
        ({"n_cross_validations": 2}, "logistic_regression"),
        ({"validation_data_size": 0.3}, "light_gbm_classifier"),
        ({**REGRESSION, "n_cross_validations": 3}, None),
        ({**REGRESSION, "validation_data_size": 0.3}, "linear_regression"),
    ],
    ids=["folds", "another meta model", "one set and trees", "regression", "regression, one set"],
)
def test_a_stack_is_a_folder_that_serves(
    tmp_path: Path, fit: Fit, job: dict[str, Any], kind: str | None
) -> None:
    """Safe formats alone; better than a guess, judged by rows that its meta model did not fit."""
    table = write(tmp_path / "table", people())
    task = job.get("task", "classification")
    third = "logistic_regression" if task == "classification" else "elastic_net"
    for name in ("light_gbm", third, "random_forest"):
        fit(table, name, of_family(name, task), **job)
    stack = {"stack": {"stack_meta_learner_type": kind}} if kind else {}
    folder, metrics = fit(table, "stack_ensemble", {"members": [0, 1, 2]}, **job, **stack)
    verify(folder)
    document = json.loads((folder / "members.json").read_text())
    assert document["meta"] in ("meta.onnx", "meta.txt") and len(document["members"]) == 3
    assert {*formats(folder).values()} <= {"lightgbm-text", "xgboost-json", "onnx", "json"}
    assert metrics["r2_score" if task == "regression" else "AUC_weighted"] > 0.6
    of_two = Members(folder).predict(np.array([[70, np.nan, 1, 210.0], [20, 1e4, 0, 60.0]])[:, :4])
    assert of_two.shape == (2,) and of_two[0] != of_two[1]


@pytest.mark.parametrize("kind", ["voting_ensemble", "stack_ensemble"])
def test_an_ensemble_is_the_same_in_other_units(tmp_path: Path, fit: Fit, kind: str) -> None:
    rows = [dict(row, spent=float(str(row["spent"])) * 1e-7 + 1) for row in people()]
    table, job = write(tmp_path / "table", rows), {**REGRESSION, "n_cross_validations": 3}
    for name in ("light_gbm", "elastic_net"):
        fit(table, name, of_family(name, "regression"), **job)
    _, metrics = fit(table, kind, {"members": [0, 1]}, **job)
    assert metrics["r2_score"] > 0.6


def test_a_stack_of_several_classes(tmp_path: Path, fit: Fit) -> None:
    table = write(tmp_path / "table", people(400, classes=("a", "b", "c")))
    for name in ("light_gbm", "logistic_regression"):
        fit(table, name, of_family(name, "classification"), n_cross_validations=2)
    members = {"members": [0, 1]}
    folder, metrics = fit(table, "stack_ensemble", members, n_cross_validations=2)
    of_rows = Members(folder).predict(np.array([[70, np.nan, 1, 210.0]]))
    assert of_rows.shape == (1, 3) and of_rows.sum() == pytest.approx(1, abs=1e-4)
    assert metrics["accuracy"] > 0.4


@pytest.mark.slow
def test_an_ensemble_is_a_model_of_mlflow(tmp_path: Path, fit: Fit) -> None:
    """Its loader is the repository's: it takes the columns of a request and answers as the folder
    does.
    """
    import mlflow.pyfunc
    import pandas as pd

    from ml.serving.scoring.columns import Columns

    table = write(tmp_path / "table", people())
    for name in ("light_gbm", "logistic_regression"):
        fit(table, name, of_family(name, "classification"), n_cross_validations=2)
    frame = pd.DataFrame(people(30, seed=5)).drop(columns="churn").replace("", None)
    for ensemble in ("voting_ensemble", "stack_ensemble"):
        folder, _ = fit(table, ensemble, {"members": [0, 1]}, n_cross_validations=2)
        columns, members = Columns.load(folder, lambda row: row), Members(folder)
        given = frame.astype(object).where(frame.notna(), None).values.tolist()
        expected = columns.predict_imputed(
            members.predict, columns.matrix(columns.read([*frame.columns], given))
        )
        loaded = mlflow.pyfunc.load_model(str(folder))
        np.testing.assert_array_equal(loaded.predict(frame), expected)


@pytest.mark.attack("a byte of a model's file is changed, and MLflow loads it")
def test_mlflow_loads_no_folder_that_was_changed(tmp_path: Path, fit: Fit) -> None:
    from ml.serving.scoring.flavor import _load_pyfunc
    from ml.serving.scoring.manifest import ManifestError

    folder, _ = fit(write(tmp_path / "table", people()), n_cross_validations=2)
    assert _load_pyfunc(str(folder))
    with (folder / "columns.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ManifestError, match="differs"):
        _load_pyfunc(str(folder))


def test_a_stack_counts_rows_by_their_weights(tmp_path: Path, fit: Fit) -> None:
    """Of a table with `weight_column_name` its mean probability is the share by weight."""
    draw = np.random.default_rng(0)
    rows = [
        {"x": round(float(draw.normal(at % 2)), 3), "w": 0.1 if at % 2 else 1.0}
        | {"churn": "Yes" if at % 2 else "No"}
        for at in range(600)
    ]
    table, job = write(tmp_path / "table", rows), {"weight_column_name": "w"}
    for name in ("light_gbm", "logistic_regression"):
        fit(table, name, of_family(name, "classification"), n_cross_validations=2, **job)
    folder, _ = fit(table, "stack_ensemble", {"members": [0, 1]}, n_cross_validations=2, **job)
    with np.load(folder.parent / "predictions" / "out_of_fold.npz") as saved:
        at = np.concatenate([saved[of] for of in saved.files if of.startswith("rows")])
        answers = np.concatenate([saved[of] for of in saved.files if of.startswith("values")])
    weights = np.array([row["w"] for row in rows])
    share = float(weights[1::2].sum() / weights.sum())
    assert abs(np.average(answers, weights=weights[at]) - share) < 0.03
