"""A trial: what it fits, how it is judged, and what it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ml.automl import cache, encoding, tables
from ml.automl.models import families
from ml.automl.models.families import FAMILIES
from ml.serving.scoring import columns as columns_of_requests
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.manifest import verify
from ml.serving.scoring.members import Members
from ml.toolkit.automl import cells, reading
from policies.supply_chain.formats import formats
from tests.automl.conftest import folder_of, people, write

Fit = Callable[..., tuple[Path, dict[str, float]]]
# Fewer trees than a search would take.
SMALL = {"n_estimators": 10}
TREES = ("light_gbm", "xg_boost", "random_forest", "extreme_random_trees")
SMALL_TREES = {**SMALL, "learning_rate": 0.1, "num_leaves": 4, "min_data_in_leaf": 5}


def of_family(name: str, task: str) -> dict[str, Any]:
    _, first = min(families.of_task(task)[name].portfolio.items())
    settings = dict(first)
    return settings | (SMALL if name.startswith(TREES) else {})


@pytest.mark.parametrize(
    "name", [name for of in FAMILIES for name in [of.names.get("classification")] if name]
)
def test_every_family_of_classification(tmp_path: Path, fit: Fit, name: str) -> None:
    """Better than chance; the folder has safe formats alone, and answers requests."""
    table = write(tmp_path / "table", people())
    folder, metrics = fit(
        table, name, of_family(name, "classification"), n_cross_validations=2, target="churn"
    )
    assert metrics["AUC_weighted"] > 0.6 and metrics["AUC_weighted_std"] >= 0
    verify(folder)
    assert {*formats(folder).values()} <= {"lightgbm-text", "xgboost-json", "onnx", "json"}
    columns, members = Columns.load(folder, lambda row: row), Members(folder)
    rows = columns.read(
        ["age", "income", "city", "spent"], [[70, None, "north", 210.0], [20, 1e4, "x", 60.0]]
    )
    high, low = members.predict(columns.matrix(rows))
    assert 0 <= low < high <= 1 and members.positive == "Yes"


@pytest.mark.parametrize(
    "name", [name for of in FAMILIES for name in [of.names.get("regression")] if name]
)
def test_every_family_of_regression(tmp_path: Path, fit: Fit, name: str) -> None:
    table = write(tmp_path / "table", people())
    folder, metrics = fit(
        table,
        name,
        of_family(name, "regression"),
        task="regression",
        target="spent",
        metric="normalized_root_mean_squared_error",
        n_cross_validations=2,
    )
    assert metrics["normalized_root_mean_squared_error"] < 0.3 and metrics["mae"] > 0
    assert Members(folder).task == "regression"


@pytest.mark.parametrize("name", ["light_gbm", "xg_boost_regressor", "elastic_net", "knn"])
@pytest.mark.parametrize(("factor", "offset"), [(1e-7, 0.0), (1e6, 0.0), (1.0, 1e9)])
def test_a_regression_is_the_same_in_other_units(
    tmp_path: Path, fit: Fit, name: str, factor: float, offset: float
) -> None:
    """Thresholds of the libraries are absolute, and their numbers of single precision."""

    def of_units(folder: str, factor: float, offset: float) -> tuple[Path, float]:
        rows = [dict(row, spent=float(str(row["spent"])) * factor + offset) for row in people()]
        table = write(tmp_path / folder, rows)
        job = {"task": "regression", "target": "spent", "metric": "r2_score"}
        settings = of_family(name, "regression")
        model, metrics = fit(table, name, settings, n_cross_validations=2, **job)
        return model, metrics["r2_score"]

    model, other = of_units("other", factor, offset)
    _, usual = of_units("usual", 1.0, 0.0)
    assert other == pytest.approx(usual, abs=0.01) and usual > 0.3
    columns = Columns.load(model, lambda row: row)
    answers = Members(model).predict(columns.matrix([[70, None, "north", "Yes"]]))
    assert 0 < (answers[0] - offset) / factor < 1000


@pytest.mark.parametrize("name", ["light_gbm", "xg_boost_classifier", "logistic_regression"])
@pytest.mark.parametrize("scale", [1e-30, 1 / 240, 1e30])
def test_weights_are_the_same_in_other_units(
    tmp_path: Path, fit: Fit, name: str, scale: float
) -> None:
    scores = []
    for of in (scale, 1.0):
        rows = [dict(row, w=of * (0, 1, 2)[at % 3]) for at, row in enumerate(people())]
        job = {"weight_column_name": "w", "n_cross_validations": 2}
        settings = of_family(name, "classification")
        _, metrics = fit(write(tmp_path / str(of), rows), name, settings, **job)
        scores.append(metrics["AUC_weighted"])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3) and scores[1] > 0.7


def test_a_class_whose_rows_all_weigh_nothing_is_not_fitted(tmp_path: Path, fit: Fit) -> None:
    rows = changed(people(60), w=lambda at, row: int(row["churn"] == "No"))
    with pytest.raises(SystemExit, match=r"error\[single-class\].* those whose weight is 0"):
        fit(write(tmp_path / "table", rows), weight_column_name="w")


@pytest.mark.parametrize("metric", ["r2_score", "spearman_correlation"])
def test_a_fold_of_one_value_is_said(tmp_path: Path, fit: Fit, metric: str) -> None:
    """With a metric that is defined there."""
    rows = changed(people(60), spent=lambda at, row: 7.5 * (at == 3))
    job = {"task": "regression", "target": "spent", "n_cross_validations": 3}
    table = write(tmp_path / "table", rows)
    expected = r"(?s)error\[no-metric\].*`spent` is constant.*normalized_root_mean_squared_error"
    with pytest.raises(SystemExit, match=expected):
        fit(table, "light_gbm", SMALL_TREES, metric=metric, **job)
    fit(table, "light_gbm", SMALL_TREES, metric="normalized_root_mean_squared_error", **job)


@pytest.mark.parametrize("name", ["light_gbm", "xg_boost_classifier", "random_forest"])
def test_several_classes(tmp_path: Path, fit: Fit, name: str) -> None:
    """A probability a class, in the order of the classes of columns.json."""
    table = write(tmp_path / "table", people(classes=("a", "b", "c")))
    folder, metrics = fit(table, name, of_family(name, "classification"), n_cross_validations=2)
    columns, members = Columns.load(folder, lambda row: row), Members(folder)
    assert columns.classes == ("a", "b", "c") and metrics["accuracy"] > 0.4
    answers = members.predict(columns.matrix([[70, None, "north", 210.0]]))
    assert answers.shape == (1, 3) and answers.sum() == pytest.approx(1, abs=1e-4)


def test_numbers_are_those_of_the_server(tmp_path: Path) -> None:
    """The encoding of a whole column is that of `ml.serving.scoring.columns`, row by row."""
    rows = [dict(row, city="" if at % 9 == 0 else row["city"]) for at, row in enumerate(people(60))]
    frame = reading.read(write(tmp_path / "table", rows), "churn")
    table = tables.as_table(frame, target="churn", regression=False)
    labels = (table.labels == "Yes").astype(np.int64)
    document = encoding.fit(table, labels, np.arange(40), (), tables.Choices())
    columns = Columns(document, lambda row: row)
    given = [[row["age"], row["income"] or None, row["city"] or None, row["spent"]] for row in rows]
    served = columns.matrix(given).astype(np.float32)
    np.testing.assert_array_equal(encoding.matrix(table, document, np.arange(60)), served)
    assert columns.categorical == [2]


def test_the_final_score_is_of_rows_that_no_trial_saw(tmp_path: Path, fit: Fit) -> None:
    """A share of the rows, the same for every trial; neither fitted nor judged by."""
    table = write(tmp_path / "table", people())
    folder, _ = fit(table, n_cross_validations=2, test_data_size=0.25)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert facts["rows"] == {"fitted": 180, "test": 60}
    assert 0.5 < facts["test"]["AUC_weighted"] <= 1


def test_rows_of_the_test_need_no_weights_and_no_marks_of_folds(tmp_path: Path, fit: Fit) -> None:
    """Which say how rows are fitted; those of the others are as they would be without these."""
    rows = [
        {**row, "weight": str(1 + at % 3), "fold": str(at % 2)} for at, row in enumerate(people())
    ]
    table, tested = write(tmp_path / "a", rows), write(tmp_path / "b", people(90, seed=1))
    job = {"weight_column_name": "weight", "cv_split_column_names": ["fold"]}
    _, metrics = fit(table, **job)
    folder, same = fit(table, test=tested, **job)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert facts["rows"] == {"fitted": 240, "test": 90} and "AUC_weighted" in facts["test"]
    assert same["AUC_weighted"] == metrics["AUC_weighted"]


def test_rows_of_validation_judge_and_are_not_fitted(tmp_path: Path, fit: Fit) -> None:
    table, judged = write(tmp_path / "a", people(120)), write(tmp_path / "b", people(60, seed=1))
    folder, _ = fit(table, "light_gbm", of_family("light_gbm", "classification"), validation=judged)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert facts["rows"]["fitted"] == 120 and facts["validation"] == "60 rows of validation_data"
    assert (facts["over"], len(facts["folds"])) == ("seeds", 3)


def test_a_fit_that_no_seed_changes_has_no_spread(tmp_path: Path, fit: Fit) -> None:
    """Zero, not what is left of rounding the mean of equal scores; one that draws rows has some."""
    of = enumerate(people())
    rows = [dict(row, churn=row["churn"] if at % 4 == 0 else "No") for at, row in of]
    table, judged = write(tmp_path / "a", rows), write(tmp_path / "b", people(200, seed=1))
    job = {"validation": judged}
    _, metrics = fit(table, "logistic_regression", {"C": 0.3}, **job)
    assert metrics["AUC_weighted_std"] == 0.0
    _, metrics = fit(table, "logistic_regression", {"C": 0.3, "balance": "under"}, **job)
    assert metrics["AUC_weighted_std"] > 0.0


def test_an_ensemble_is_judged_as_its_members_are(tmp_path: Path, fit: Fit) -> None:
    """By each seed where one set of rows judges; its files are its members', with their weights."""
    table, judged = write(tmp_path / "a", people(120)), write(tmp_path / "b", people(60, seed=1))
    for name in ("light_gbm", "logistic_regression", "random_forest"):
        fit(table, name, of_family(name, "classification"), validation=judged)
    members = {"members": [0, 1, 2]}
    folder, metrics = fit(table, "voting_ensemble", members, validation=judged)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert (facts["over"], len(facts["folds"])) == ("seeds", 3)
    alone = [
        json.loads((folder.parents[1] / str(at) / "model/settings.json").read_text())["automl"]
        for at in range(3)
    ]
    best = max(np.mean([fold["AUC_weighted"] for fold in of["folds"]]) for of in alone)
    assert metrics["AUC_weighted"] >= best
    document = json.loads((folder / "members.json").read_text())
    assert sum(of["weight"] for of in document["members"]) == pytest.approx(1)
    verify(folder)


def test_a_choice_for_each_column_is_said(tmp_path: Path, fit: Fit) -> None:
    """What a column was taken for, and why one is left out; a purpose of the spec decides."""
    rows = [
        dict(
            row,
            id=f"c{at}",
            one=1,
            none="",
            day=f"2026-01-{at % 28 + 1:02}",
            code=at % 3,
            band="abc"[at % 3],
        )
        for at, row in enumerate(people(120))
    ]
    rows = [dict(row, band="abc"[at % 3]) for at, row in enumerate(rows)]
    table = write(tmp_path / "table", rows)
    purposes = {
        "mode": "custom",
        "column_name_and_types": {"code": "Categorical", "spent": "Ignore", "band": "Ignore"},
    }
    folder, _ = fit(table, n_cross_validations=2, featurization=purposes)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    chosen = {column["name"]: column["choice"] for column in facts["columns"]}
    assert chosen["id"].startswith("high cardinality") and chosen["one"].startswith("constant")
    assert chosen["none"].startswith("empty")
    assert chosen["day"] == "a time: calendar features and days"
    assert chosen["code"] == "a category of 3 values"
    assert chosen["spent"] == chosen["band"] == "excluded by the spec"
    used = [column["name"] for column in facts["columns"] if column["used"]]
    assert used == ["age", "income", "city", "day", "code"]
    # A request has every column of the table.
    assert "id" in Columns.load(folder, lambda row: row).columns


def test_the_target_encoded_among_the_columns_is_told(tmp_path: Path, fit: Fit) -> None:
    """A column that gives the target away, rare classes, and few rows: findings of the report."""
    rows = [dict(row, later=int(row["churn"] == "Yes")) for row in people(150)]
    folder, _ = fit(write(tmp_path / "table", rows), n_cross_validations=2)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    checks = {of["check"]: of["finding"] for of in facts["guardrails"]}
    assert "later" in checks["leakage"] and "150 rows" in checks["rows"]
    rare = [dict(row, churn="Yes" if at % 20 == 0 else "No") for at, row in enumerate(people(200))]
    folder, _ = fit(write(tmp_path / "rare", rare), n_cross_validations=2, metric="accuracy")
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    checks = {of["check"]: of["finding"] for of in facts["guardrails"]}
    assert "5.00%" in checks["imbalance"] and "accuracy" in checks["imbalance"]


def changed(rows: Any, **columns: Callable[[int, Mapping[str, object]], object]) -> Any:
    return [{**row, **{k: of(at, row) for k, of in columns.items()}} for at, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (changed(people(60), churn=lambda at, row: "No"), "single-class"),
        (changed(people(60), churn=lambda at, row: ""), "single-class"),
        (changed(people(60), churn=lambda at, row: f"c{at}"), "too-many-classes"),
        (changed(people(20), churn=lambda at, row: "Yes" if at == 3 else "No"), "too-few-rows"),
        ([{"a": 1, "churn": "Yes"}, {"a": 1, "churn": "No"}] * 20, "no-feature"),
    ],
    ids=["one class", "no target", "a name as the target", "one positive", "constant"],
)
def test_tables_that_no_model_can_be_made_of(
    tmp_path: Path, fit: Fit, rows: Any, code: str
) -> None:
    """End with the reason and no traceback."""
    with pytest.raises(SystemExit, match=rf"error\[{code}\]"):
        fit(write(tmp_path / "table", rows))


def test_a_constant_number_is_no_target(tmp_path: Path, fit: Fit) -> None:
    rows = changed(people(40), spent=lambda at, row: 7.5)
    job = {"task": "regression", "target": "spent", "metric": "r2_score"}
    with pytest.raises(
        SystemExit, match=r"error\[constant-target\]: `spent` has one value in all 40"
    ):
        fit(write(tmp_path / "table", rows), "light_gbm", SMALL_TREES, **job)
    rows = changed(people(40), spent=lambda at, row: 1e200 * (at == 3) + at)
    with pytest.raises(SystemExit, match=r"error\[target-too-large\]: `spent` is 1e\+200 in a row"):
        fit(write(tmp_path / "large", rows), "light_gbm", SMALL_TREES, **job)
    rows = changed(people(40), spent=lambda at, row: 7.5 + (at == 3))
    job["metric"] = "normalized_mean_absolute_error"
    fit(write(tmp_path / "two", rows), "light_gbm", SMALL_TREES, **job)


@pytest.mark.parametrize(
    ("name", "said"), [("age", "`age` twice"), ("", "an empty name")], ids=["twice", "none"]
)
def test_columns_without_a_name_of_their_own_are_refused(
    tmp_path: Path, fit: Fit, name: str, said: str
) -> None:
    header = ["age", "income", name, "spent", "churn"]
    with pytest.raises(SystemExit, match=rf"error\[column-names\].*{said}"):
        fit(write(tmp_path / "table", people(40), header))


@pytest.mark.parametrize(
    "rows",
    [
        people(20),
        changed(people(80), income=lambda at, row: "inf" if at % 5 == 0 else at),
        changed(people(80), age=lambda at, row: "old" if at % 7 == 0 else row["age"]),
        changed(people(80), none=lambda at, row: ""),
        changed(people(80), city=lambda at, row: f"town {at % 40}"),
    ],
    ids=["20 rows", "infinities", "mixed types", "a column without values", "many categories"],
)
@pytest.mark.parametrize("name", ["light_gbm", "logistic_regression", "random_forest"])
def test_hostile_tables_are_fitted(tmp_path: Path, fit: Fit, rows: Any, name: str) -> None:
    folder, metrics = fit(
        write(tmp_path / "table", rows),
        name,
        of_family(name, "classification"),
        n_cross_validations=2,
    )
    assert np.isfinite(metrics["AUC_weighted"])
    verify(folder)


def test_what_is_odd_about_a_column_is_said(tmp_path: Path, fit: Fit) -> None:
    """Infinities, numbers among texts, a column without values."""
    rows = changed(
        people(80),
        income=lambda at, row: "inf" if at % 5 == 0 else at / 7,
        age=lambda at, row: "old" if at % 7 == 0 else 20 + at % 9,
        none=lambda at, row: "",
    )
    folder, _ = fit(write(tmp_path / "table", rows), n_cross_validations=2)
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    chosen = {column["name"]: column["choice"] for column in facts["columns"]}
    assert chosen["income"] == "a number, 16 infinite treated as missing"
    assert chosen["age"] == "a category of 10 values"
    assert chosen["none"] == "empty: excluded"
    found = [of["finding"] for of in facts["guardrails"] if of["check"] == "columns"]
    assert found == ["none: empty: excluded"]


def test_a_category_of_10000_values(tmp_path: Path, fit: Fit) -> None:
    """Of few classes it is the mean of the target of each; of many the most frequent are told
    apart.
    """
    job = {"validation_data_size": 0.2}
    means, frequent = "target encoding", "the 1000 most frequent"
    for classes, choice in ((2, means), (3, means), (12, frequent)):
        rows = [
            {"town": f"t{at % 10_000}", "age": at % 61, "churn": at % classes}
            for at in range(20_001)
        ]
        table = write(tmp_path / str(classes), rows)
        folder, metrics = fit(table, "light_gbm", {**SMALL_TREES, "n_estimators": 2}, **job)
        columns = json.loads((folder / "settings.json").read_text())["automl"]["columns"]
        assert "10000 values" in columns[0]["choice"] and choice in columns[0]["choice"]
        assert np.isfinite(metrics["AUC_weighted"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_gbm", "xg_boost_classifier", "logistic_regression"])
def test_the_folder_is_a_model_of_mlflow(tmp_path: Path, fit: Fit, name: str) -> None:
    """Loaded by its flavor it answers requests as the server does."""
    import mlflow.pyfunc

    table = write(tmp_path / "table", people())
    settings = of_family(name, "classification")
    folder, _ = fit(table, name, settings, n_cross_validations=2)
    columns, members = Columns.load(folder, lambda row: row), Members(folder)
    rows = [[70, None, "north", 210.0], [20, 1e4, "east", 60.0]]
    loaded = mlflow.pyfunc.load_model(str(folder))
    answer = loaded.predict(pd.DataFrame(rows, columns=["age", "income", "city", "spent"]))
    np.testing.assert_array_equal(
        answer, columns.predict_imputed(members.predict, columns.matrix(rows))
    )


def test_the_model_of_mlflow_takes_the_table_that_it_was_fitted_to(
    tmp_path: Path, fit: Fit
) -> None:
    """Times, dates, decimals and booleans of Parquet, where a request has texts and numbers."""
    from ml.serving.scoring.flavor import Scorer

    frame = pd.DataFrame(people(60))
    frame["income"] = pd.to_numeric(frame["income"])
    frame["day"] = pd.date_range("2026-01-01", periods=60, freq="7h").where(frame.index % 9 > 0)
    frame["paid"] = frame["age"] % 3 == 0
    frame["due"] = [date(2026, 1 + at % 12, 1) for at in frame["age"]]
    frame["cost"] = [Decimal(str(of)) for of in frame["spent"]]
    frame = frame.drop(columns="spent")
    (tmp_path / "table").mkdir()
    frame.to_parquet(tmp_path / "table/rows.parquet")
    folder, _ = fit(folder_of(tmp_path / "table", {}, "read_parquet"), "light_gbm", SMALL_TREES)
    frame = frame.drop(columns="churn")
    written = frame.astype({"day": str, "due": str, "cost": float}).where(frame.notna(), None)
    written["paid"] = written["paid"].map({True: "true", False: "false"})
    answer = Scorer(folder).predict(frame)
    np.testing.assert_array_equal(answer, Scorer(folder).predict(written))
    assert len({*answer.tolist()}) > 10


def test_a_file_is_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the values of one that is read at once: a column that turns out to have texts late has
    texts from the start, and numbers stay numbers.
    """
    rows = changed(
        people(60),
        age=lambda at, row: "old" if at == 50 else 30 + at % 40,
        flag=lambda at, row: "True" if at % 3 else "FALSE",
        late=lambda at, row: 7 if at > 45 else "",
        big=lambda at, row: 2**40 + at if at > 30 else at % 3,
    )
    folder = write(tmp_path / "table", rows)
    whole = reading.read(folder, "churn")
    monkeypatch.setattr(reading, "PART", 7)
    parts = reading.read(folder, "churn")
    assert [*parts.columns] == [*whole.columns]
    for name in whole.columns:
        assert str(parts[name].dtype) == str(whole[name].dtype), name
        assert parts[name].astype(object).fillna("").tolist() == (
            whole[name].astype(object).fillna("").tolist()
        )
    assert {"old", "31"} <= {*parts["age"].cat.categories}
    assert parts["big"].max() == 2**40 + 59


def test_a_table_of_300_columns(tmp_path: Path, fit: Fit) -> None:
    """Numbers, categories and empty ones."""
    draw = np.random.default_rng(0)
    rows = []
    for at in range(120):
        row: dict[str, object] = {f"n{of}": round(float(draw.normal()), 3) for of in range(250)}
        row |= {f"c{of}": str(draw.choice(["x", "y", ""])) for of in range(45)}
        row |= {f"e{of}": "" for of in range(5)}
        rows.append({**row, "churn": "Yes" if float(str(row["n0"])) + at % 2 > 0.5 else "No"})
    folder, metrics = fit(write(tmp_path / "table", rows), "light_gbm", SMALL_TREES)
    columns = json.loads((folder / "settings.json").read_text())["automl"]["columns"]
    assert sum(of["used"] for of in columns) == 295 and metrics["AUC_weighted"] > 0.6


@pytest.mark.parametrize(
    ("text", "code"),
    [("a,churn\n", "unreadable"), ("", "unreadable"), ('a,churn\n"1,Yes\n2,No\n', "unreadable")],
    ids=["a header alone", "nothing", "a quote that never ends"],
)
def test_files_that_hold_no_table(tmp_path: Path, fit: Fit, text: str, code: str) -> None:
    folder = write(tmp_path / "table", people(5))
    (folder / "rows.csv").write_text(text)
    with pytest.raises(SystemExit, match=rf"error\[({code}|single-class)\]"):
        fit(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("paths: [{file: ./none.csv}]\ntransformations: [read_delimited]\n", "there is no file"),
        ("paths: [{file: ./rows.csv}]\n", "no MLTable with"),
        ("paths: [{file: ./rows.csv}]\ntransformations: [read_delimited, take: 3]\n", "`take`"),
        ("paths: [\n", "MLTable"),
    ],
)
def test_an_mltable_that_is_not_read_here(tmp_path: Path, fit: Fit, text: str, said: str) -> None:
    folder = write(tmp_path / "table", people(20))
    (folder / "MLTable").write_text(text)
    with pytest.raises(SystemExit, match=rf"(?s)error\[bad-mltable\].*{said}"):
        fit(folder)


def test_a_second_trial_reads_and_featurizes_nothing(
    tmp_path: Path, fit: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has what the first one computed; another table, or other featurization, is read.
    Its scores are those of a trial without one.
    """
    table = write(tmp_path / "table", people())
    settings = of_family("light_gbm", "classification")
    read: list[str] = []
    for module, name in ((reading, "read_all"), (encoding, "fit"), (encoding, "matrix")):
        plain = getattr(module, name)

        def counted(*of: Any, _plain: Any = plain, _name: str = name, **more: Any) -> Any:
            read.append(_name)
            return _plain(*of, **more)

        monkeypatch.setattr(module, name, counted)
    job = {"n_cross_validations": 2}
    _, first = fit(table, "light_gbm", settings, **job)
    assert {"read_all", "fit", "matrix"} == {*read}
    read.clear()
    _, second = fit(table, "light_gbm", settings, **job)
    assert not read
    assert second["AUC_weighted"] == first["AUC_weighted"]
    off = {"mode": "custom", "column_name_and_types": {"city": "Ignore"}}
    fit(table, "light_gbm", settings, **job, featurization=off)
    assert "read_all" in read
    read.clear()
    write(tmp_path / "table", people(seed=1))
    fit(table, "light_gbm", settings, **job)
    assert "read_all" in read


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes; what is larger than all of it, and a file that was cut off, do no harm."""
    monkeypatch.setattr(cache, "MOST", 2500)
    of, computed = cache.Cache(tmp_path / "cache"), []

    def value(name: str, length: int = 1000) -> bytes:
        def compute() -> bytes:
            computed.append(name)
            return bytes(length)

        answer = of.get_or_compute(compute, name)
        # A second passes: the clock of a file system has ticks of some milliseconds.
        for file in (tmp_path / "cache").iterdir():
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 1))
        return answer

    for name in ("a", "b", "a", "c", "a", "b"):
        assert value(name) == bytes(1000)
    assert computed == ["a", "b", "c", "b"]
    before = sorted((tmp_path / "cache").iterdir())
    for _ in range(2):
        assert value("large", 5000) == bytes(5000)
    assert {*before} < {*(tmp_path / "cache").iterdir()}
    assert sum(file.stat().st_size for file in (tmp_path / "cache").iterdir()) <= 2500
    computed.clear()
    value("d")
    newest = max((tmp_path / "cache").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    whole = newest.read_bytes()
    for damaged in (whole[:100], b"\x80\x05K" + whole[3:], b"cos\nno\n."):
        newest.write_bytes(damaged)
        assert value("d") == bytes(1000)
    assert computed == ["d"] * 4


def test_the_code_of_a_cache_is_that_of_all_who_encode() -> None:
    """A request's columns are computed by a module of another room."""
    content = cache._code()
    for module in (cache, encoding, columns_of_requests, reading, cells):
        assert Path(str(module.__file__)).read_bytes() in content


def test_the_cache_has_nothing_of_other_code_or_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that is resumed with changed code computes anew; a full disk ends no trial."""
    of, computed = cache.Cache(tmp_path / "cache"), []
    for code in (b"one", b"one", b"other"):
        monkeypatch.setattr(cache, "_code", lambda code=code: code)
        assert of.get_or_compute(lambda: computed.append("of code"), "key") is None
    assert len(computed) == 2

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pickle.dump", full)
    assert of.get_or_compute(lambda: 5, "new") == 5
    assert not [file for file in (tmp_path / "cache").iterdir() if file.suffix]
