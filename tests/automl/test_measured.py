"""A project measures a model that AutoML searched, where it saw the rows of training alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from ml.measures.contributions import ExplainedRows
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.members import Members
from ml.serving.scoring.messages import BadRequest
from ml.toolkit.training import tabular
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import Winner
from ml.toolkit.training.tabular import Tabular, evaluate, split
from tests.automl.conftest import Logged, people, write

Fit = Callable[..., tuple[Path, dict[str, float]]]


def project(folder: Path, optional: Collection[str] = ("income",), **head: Any) -> Tabular:
    """A project of the table of people, whose own model is never asked."""
    folder.mkdir(parents=True)
    rows = [{"id": f"r{at}", **row} for at, row in enumerate(people(400))]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "id", "unique": True},
        {"name": "age", "type": "integer"},
        {"name": "income", "type": "float"},
        {"name": "city", "type": "category"},
        {"name": "spent", "type": "float"},
        {"name": "churn", "type": "category"},
    ]
    for column in columns:
        column["optional"] = column["name"] in optional
    about = {
        **{"task": "binary", "primary_metric": "auc", "target": "churn", "positive": "Yes"},
        **{"id": "id", "slices": ["city"], "delimiter": ",", "header": True},
        **{"rows": [100, 1000], "columns": columns},
    }
    schema = folder / "data" / "people.schema.yml"
    schema.parent.mkdir()
    schema.write_text(yaml.safe_dump(about | head))
    return Tabular(schema, SimpleNamespace(SETTINGS={}), dict, "codes")  # type: ignore[arg-type]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tabular, Path], Any]:
    """The evaluation of a model folder."""

    @contextmanager
    def tracking() -> Any:
        yield Logged()

    monkeypatch.setattr(tabular, "tracking", tracking)

    def run(of: Tabular, model: Path) -> Mapping[str, Any]:
        folder, to = of.schema.parent.parent, tmp_path / "evaluation"
        words = ["--data", str(folder), "--model", str(model), "--evaluation", str(to)]
        evaluate(of, words, model="people")
        document: dict[str, Any] = json.loads((to / "evaluation.json").read_text())
        return document

    return run


def searched(
    of: Tabular, fit: Fit, family: str = "light_gbm", settings: Any = None, **more: Any
) -> Path:
    """The model of a search in the rows that `split` writes."""
    folder = of.schema.parent.parent
    words = ["--data", str(folder), "--train", str(folder / "train")]
    split(of, [*words, "--validation", str(folder / "validation")])
    given = {"validation": folder / "validation", "positive_label": "Yes"} | more
    return fit(folder / "train", family, SMALL if settings is None else settings, **given)[0]


SMALL = {"n_estimators": 20, "learning_rate": 0.1, "num_leaves": 8}


def test_its_validation_is_the_trials_and_its_test_was_not_seen(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    """Metrics by the project's own splits, contributions, and refits of other seeds."""
    of = project(tmp_path / "people")
    model = searched(of, fit)
    evaluation = measure(of, model)
    trial = json.loads((model / "settings.json").read_text())["automl"]
    metrics = evaluation["metrics"]
    assert metrics["validation"]["auc"]["value"] == pytest.approx(trial["folds"][0]["auc"])
    assert metrics["test"]["auc"]["value"] > 0.7
    stability = evaluation["stability"]["auc"]
    assert stability["over"] == "seeds" and len(stability["values"]) == 3
    assert evaluation["hyperparameters"]["family"] == "light_gbm"
    assert evaluation["explanation"]["method"] == "TreeSHAP"
    explained = ExplainedRows.read(tmp_path / "evaluation")
    assert explained is not None and explained.categories["city"] == ["east", "north", "south"]
    assert explained.names[0] == evaluation["contributions"][0]["feature"]


def test_folds_of_the_schema_do_not_count(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    """A small table: the search draws its own folds of the rows of training, and the model is
    measured on rows that no fold has, as if the schema had no `folds`.
    """
    of, plain = project(tmp_path / "folds", folds=5), project(tmp_path / "plain")
    tags = {"cross_validation_repeats": "2"}
    model = searched(of, fit, validation=None, n_cross_validations=3, tags=tags)
    evaluation, without = measure(of, model), measure(plain, model)
    assert evaluation["metrics"] == without["metrics"] and not evaluation["out_of_fold"]
    dataset = plain.read(tmp_path / "plain")
    counts = {name: of["auc"]["count"] for name, of in evaluation["metrics"].items()}
    assert counts == {"validation": len(dataset.validation), "test": len(dataset.test)}
    stability = evaluation["stability"]["auc"]
    assert stability["over"] == "folds" and len(stability["values"]) == 6


def test_an_ensemble_is_explained_by_shuffling(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    """Two members have no exact contributions; the shares of the table's columns are measured."""
    of = project(tmp_path / "people")
    model = searched(of, fit)
    facts = json.loads((model / "settings.json").read_text())
    members = json.loads((model / "members.json").read_text())
    members["members"] *= 2
    (model / "members.json").write_text(json.dumps(members))
    seal(model, facts)
    assert isinstance(Winner.contributions(model, np.zeros((1, 4))), str)
    evaluation = measure(of, model)
    shares = {share["feature"]: share["share"] for share in evaluation["contributions"]}
    assert evaluation["explanation"]["method"] == "permutation importance"
    assert sum(shares.values()) == pytest.approx(1) and len(shares) == 4
    assert (
        0 < evaluation["explanation"]["error"] < 0.2
        and not (tmp_path / "evaluation/contributions.json").exists()
    )


@pytest.mark.parametrize("classes", [("No", "Yes"), ("a", "b", "c")])
def test_trees_of_xgboost_are_explained_exactly(
    tmp_path: Path, fit: Fit, classes: tuple[str, ...]
) -> None:
    """The contributions of a row add up to its raw score, of each class."""
    table = write(tmp_path / "table", people(200, classes=classes))
    settings = {"n_estimators": 9, "max_depth": 3}
    folder, _ = fit(table, "xg_boost_classifier", settings, n_cross_validations=2)
    numbers = Columns.load(folder, dict).matrix([[70, None, "north", 210.0], [20, 1e4, "x", 60.0]])
    of = Winner.contributions(folder, numbers)
    assert not isinstance(of, str) and of.rows == 2 and of.error < 1e-5
    assert of.values.shape == (2 * (len(classes) if len(classes) > 2 else 1), 4)


@pytest.mark.attack("an AutoML job is handed the rows of the test among those of training")
def test_a_model_that_saw_other_rows_is_not_measured(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    of = project(tmp_path / "people")
    model = searched(of, fit)
    folder = of.schema.parent.parent
    parts = [pd.read_parquet(folder / part / "rows.parquet") for part in ("train", "validation")]
    pd.concat(parts).to_parquet(folder / "train" / "rows.parquet", index=False)
    model, _ = fit(
        folder / "train", "light_gbm", SMALL, n_cross_validations=2, positive_label="Yes"
    )
    with pytest.raises(SystemExit, match=r"row-mismatch.*it was fitted on other rows"):
        measure(of, model)


@pytest.mark.attack("an AutoML job is handed the rows of the test as those that judge")
def test_a_model_that_other_rows_have_judged_is_not_measured(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    """They choose the trial, calibrate it and weigh an ensemble."""
    of = project(tmp_path / "people")
    searched(of, fit)
    folder = of.schema.parent.parent
    rows = pd.read_parquet(folder / "validation" / "rows.parquet")
    rows.iloc[5:].to_parquet(folder / "validation" / "rows.parquet", index=False)
    given = {"validation": folder / "validation", "positive_label": "Yes"}
    model, _ = fit(folder / "train", "light_gbm", SMALL, **given)
    with pytest.raises(SystemExit, match=r"row-mismatch.*it was validated on"):
        measure(of, model)


def test_a_model_that_answers_something_else_is_not_measured(
    tmp_path: Path, fit: Fit, measure: Callable[[Tabular, Path], Any]
) -> None:
    """Another positive class, and columns of another kind."""
    of = project(tmp_path / "people")
    with pytest.raises(SystemExit, match=r"error\[target-mismatch\]"):
        measure(of, searched(of, fit, positive_label="not Yes"))
    purposes = {"mode": "custom", "column_name_and_types": {"age": "Categorical"}}
    with pytest.raises(SystemExit, match=r"error\[column-mismatch\].*`age`"):
        measure(of, searched(of, fit, featurization=purposes))


@pytest.mark.parametrize("family", ["light_gbm", "xg_boost_classifier", "logistic_regression"])
def test_a_missing_value_means_what_it_means_to_the_project(
    tmp_path: Path, fit: Fit, family: str
) -> None:
    """Refused where the schema does not say `optional`; where it does, and the rows of a search
    lack it too rarely to learn from, neither 0 nor another category, as an unknown one.
    """
    of = project(tmp_path / "people", optional=("income", "city", "spent"))
    model = searched(of, fit, family, {} if family == "logistic_regression" else SMALL)
    columns = Columns.load(model, dict)
    names, row = ["age", "income", "city", "spent"], [40, 3e4, "north", 120.0]

    def answers(name: str, *values: object) -> Any:
        rows = [
            [value if of == name else own for of, own in zip(names, row, strict=True)]
            for value in values
        ]
        table = columns.matrix(columns.read(names, rows))
        return columns.predict_imputed(Members(model).predict, table)

    with pytest.raises(BadRequest, match="age: no value"):
        answers("age", None)
    missing, unknown, *known = answers("city", None, "new", "north", "south", "east")
    assert missing == unknown and min(known) < missing < max(known)
    nothing, zero = answers("spent", None, 0)
    assert nothing != zero
