"""MLflow models with pickles become folders that run no code, or are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ml.serving.scoring.columns import Columns
from ml.serving.scoring.manifest import verify
from ml.serving.scoring.members import Members
from ml.toolkit.automl import conversion
from ml.toolkit.training.searched import content
from policies.supply_chain.formats import formats
from tests.automl.conftest import people, write

FEATURES = ["age", "income", "city", "spent"]
SMALL: dict[str, Any] = {"n_estimators": 15, "num_leaves": 7, "verbosity": -1, "n_jobs": 1}


class Guess(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that no converter knows."""

    def fit(self, rows: Any, labels: Any) -> Guess:
        self.classes_ = np.unique(labels)
        return self

    def predict_proba(self, rows: Any) -> Any:
        return np.full((len(rows), len(self.classes_)), 1 / len(self.classes_))


def table(folder: Path, classes: tuple[str, ...] = ("No", "Yes")) -> pd.DataFrame:
    """An MLTable of people, and its rows."""
    write(folder, people(300, classes=classes))
    return pd.read_csv(folder / "rows.csv", na_values=[""])


def pipeline(last: Any) -> Pipeline:
    numbers = SimpleImputer(strategy="median")
    # Rows lie on other sides of splits of numbers that were scaled in double precision.
    if not isinstance(last, RandomForestClassifier):
        numbers = make_pipeline(numbers, StandardScaler())
    parts = [
        ("numbers", numbers, ["age", "income", "spent"]),
        ("texts", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city"]),
    ]
    return Pipeline([("featurize", ColumnTransformer(parts)), ("last", last)])


def saved(estimator: Any, rows: pd.DataFrame, target: str, folder: Path) -> Any:
    """Fitted and saved as an MLflow model with a pickle."""
    import mlflow.sklearn
    from mlflow.models import infer_signature

    features = [name for name in FEATURES if name != target]
    estimator.fit(rows[features], rows[target])
    signature = infer_signature(rows[features])
    mlflow.sklearn.save_model(
        estimator,
        folder,
        signature=signature,
        serialization_format="cloudpickle",
        pip_requirements=[],
    )
    return estimator


def words(tmp_path: Path, target: str = "churn") -> list[str]:
    given = {"model": "model", "data": "table", "converted": "converted"}
    return [
        *(word for name, of in given.items() for word in (f"--{name}", str(tmp_path / of))),
        *("--target", target),
    ]


@pytest.mark.parametrize(
    ("last", "classes"),
    [
        (LGBMClassifier(**SMALL), ("No", "Yes")),
        (LGBMClassifier(**SMALL), ("a", "b", "c")),
        (LogisticRegression(), ("No", "Yes")),
        (RandomForestClassifier(15, max_depth=4, random_state=0), ("a", "b", "c")),
    ],
    ids=["LightGBM", "LightGBM, three classes", "logistic regression", "forest, three classes"],
)
def test_a_classifier_is_served_as_it_was(
    tmp_path: Path, last: Any, classes: tuple[str, ...]
) -> None:
    """One ONNX file behind columns.json, without a pickle, with the original's answers; a row with
    gaps and a city that it never saw among them.
    """
    rows = table(tmp_path / "table", classes)
    original = saved(pipeline(last), rows, "churn", tmp_path / "model")
    conversion.main(words(tmp_path))
    folder = tmp_path / "converted"
    assert verify(folder) and {of.name for of in folder.iterdir()} == {
        *("columns.json", "manifest.json", "members.json", "model.onnx", "settings.json"),
        "MLmodel",
    }
    assert {*formats(folder).values()} <= {"json", "onnx"}
    columns, members = Columns.load(folder, dict), Members(folder)
    asked = [[70, None, "north", 210.0], [20, 1e4, "east", 60.0], [33, 2e4, "west", 99.0]]
    expected = original.predict_proba(
        pd.DataFrame(asked, columns=FEATURES).astype({"income": float})
    )
    answers = members.predict(columns.matrix(asked))
    assert columns.classes == (classes if len(classes) > 2 else ())
    np.testing.assert_allclose(answers, expected if len(classes) > 2 else expected[:, 1], atol=1e-5)


def test_a_regression(tmp_path: Path) -> None:
    rows = table(tmp_path / "table")
    estimator = ColumnTransformer([("numbers", SimpleImputer(), ["age", "income"])])
    original = saved(
        make_pipeline(estimator, LGBMRegressor(**SMALL)), rows, "spent", tmp_path / "model"
    )
    conversion.main(words(tmp_path, "spent"))
    columns = Columns.load(tmp_path / "converted", dict)
    asked = [[70, 3e4, "north"], [20, 1e4, "east"]]
    expected = original.predict(pd.DataFrame(asked, columns=FEATURES[:3]))
    answers = Members(tmp_path / "converted").predict(columns.matrix(asked))
    np.testing.assert_allclose(answers, expected, rtol=1e-5)
    facts = json.loads((tmp_path / "converted" / "settings.json").read_text())["automl"]
    values = {name: rows[name] for name in columns.columns}
    assert facts["trained_on"] == content(values, rows["spent"].to_numpy())


def test_what_is_not_convertible_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of the step that no converter knows; nothing is written."""
    rows = table(tmp_path / "table")
    saved(pipeline(Guess()), rows, "churn", tmp_path / "model")
    with pytest.raises(SystemExit, match=r"error\[not-convertible\]: Guess") as ended:
        conversion.main(words(tmp_path))
    assert "hint: " in str(ended.value) and not (tmp_path / "converted").exists()


def test_a_model_that_answers_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one whose converter is wrong: of another model."""
    rows = table(tmp_path / "table")
    saved(pipeline(LogisticRegression()), rows, "churn", tmp_path / "model")
    other = pipeline(LogisticRegression(C=1e-6)).fit(rows[FEATURES], rows["churn"])
    graph = conversion._graph
    monkeypatch.setattr(conversion, "_graph", lambda estimator, frame: graph(other, frame))
    with pytest.raises(SystemExit, match=r"error\[conversion-mismatch\]"):
        conversion.main(words(tmp_path))
    assert not (tmp_path / "converted" / "manifest.json").exists()


def test_categories_with_blanks_around_them_are_another_model(tmp_path: Path) -> None:
    """A request is read without them, and would be of no category."""
    rows = [dict(row, city=f"{row['city']} ") for row in people(300)]
    rows = [dict(row, churn="Yes" if "north" in str(row["city"]) else "No") for row in rows]
    write(tmp_path / "table", rows)
    frame = pd.read_csv(tmp_path / "table" / "rows.csv", na_values=[""])
    saved(pipeline(LogisticRegression()), frame, "churn", tmp_path / "model")
    with pytest.raises(SystemExit, match=r"error\[conversion-mismatch\]"):
        conversion.main(words(tmp_path))


def test_a_folder_that_is_no_model_and_a_table_without_its_columns(tmp_path: Path) -> None:
    """Each with what it lacks."""
    rows = table(tmp_path / "table")
    (tmp_path / "model").mkdir()
    with pytest.raises(SystemExit, match=r"error\[load-failed\]"):
        conversion.main(words(tmp_path))
    shutil.rmtree(tmp_path / "model")
    saved(pipeline(LogisticRegression()), rows, "churn", tmp_path / "model")
    write(tmp_path / "table", [{"age": 3, "churn": "No"}, {"age": 4, "churn": "Yes"}])
    with pytest.raises(SystemExit, match=r"error\[column-mismatch\].*`income`"):
        conversion.main(words(tmp_path))


def test_the_other_class_is_refused(tmp_path: Path) -> None:
    rows = table(tmp_path / "table")
    saved(pipeline(LogisticRegression()), rows, "churn", tmp_path / "model")
    with pytest.raises(SystemExit, match=r"error\[class-mismatch\].*`Yes`"):
        conversion.main([*words(tmp_path), "--positive", "No"])
    conversion.main([*words(tmp_path), "--positive", "Yes"])
    members = json.loads((tmp_path / "converted" / "members.json").read_text())
    assert (members["task"], members["positive"]) == ("binary", "Yes")
