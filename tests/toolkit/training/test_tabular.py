"""A project of one table: what its train.py and evaluate.py do, with folds and without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from ml.measures.evaluation import read_evaluation
from ml.measures.metrics import CustomMetric
from ml.measures.schema import Evaluation
from ml.serving.scoring.columns import Columns
from ml.toolkit.data.datasets import Dataset, Numbers
from ml.toolkit.training import tabular
from ml.toolkit.training.tabular import Model, Tabular, evaluate, train
from tests.toolkit.data.test_datasets import LINES, SCHEMA


class Tracker:
    """What was logged."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def parameters(self, values: Mapping[str, object]) -> None:
        return None

    def metrics(self, values: Mapping[str, float]) -> None:
        self.logged |= values


class Memory:
    """A model that remembers the labels of the rows that it has seen: `seen` are all of them."""

    SETTINGS: Mapping[str, Any] = {"unsure": 0.5}

    def __init__(self) -> None:
        self.fits: list[set[bytes]] = []

    def fit(self, columns: Any, train: Any, validation: Any, settings: Any, seed: int) -> Any:
        known = {row.tobytes(): of for row, of in zip(train.table, train.labels, strict=True)}
        self.fits.append({*known})
        return known

    def save(self, model: Any, folder: Path) -> None:
        text = json.dumps({row.hex(): of for row, of in model.items()})
        (folder / "model.json").write_text(text)

    def load(self, folder: Path) -> Any:
        known = json.loads((folder / "model.json").read_text())
        return {bytes.fromhex(row): of for row, of in known.items()}

    def predict(self, model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([model.get(row.tobytes(), 0.5) for row in table])

    def contributions(self, folder: Path, table: NDArray[np.float64]) -> str:
        return "it remembers"


@pytest.fixture(name="tracker")
def _tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    tracker = Tracker()
    monkeypatch.setattr(tabular, "tracking", lambda: tracker)
    return tracker


def project(folder: Path, **changed: object) -> Tabular:
    """A project whose model remembers; its schema has some fields changed."""
    (folder / "data").mkdir(exist_ok=True)
    # No two rows are alike.
    lines = [line.replace(",NA,", f",{at}.5,") for at, line in enumerate(LINES[:301])]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    schema = folder / "data/t.schema.yml"
    schema.write_text(yaml.safe_dump({**SCHEMA, "primary_metric": "brier", **changed}))
    (folder / "model.py").write_text("# it remembers\n")
    own = {"half": CustomMetric("maximize", (0, 1), lambda answers, columns: answers.score == 0.5)}
    return Tabular(schema, cast(Model, Memory()), lambda row: row, "codes", own)


def run(folder: Path, made: Tabular) -> Evaluation:
    """The evaluation of the model in the folder."""
    words = ["--data", str(folder), "--model", str(folder / "out")]
    evaluate(made, [*words, "--evaluation", str(folder / "evaluation")], model="tiny")
    return read_evaluation(folder / "evaluation")


def trained(folder: Path, made: Tabular) -> None:
    train(made, ["--data", str(folder), "--model", str(folder / "out"), "--unsure", "0.5"])


def test_no_row_is_answered_by_what_saw_it(tmp_path: Path, tracker: Tracker) -> None:
    """A model that remembers knows no row of the test, though it was trained on all of them."""
    made = project(tmp_path, folds=5)
    trained(tmp_path, made)
    assert tracker.logged["validation_half"] == 1
    evaluation = run(tmp_path, made)
    assert evaluation.metrics["test"]["half"].value == 1
    assert evaluation.metrics["test"]["half"].count == 225
    assert evaluation.out_of_fold == {"test": 5}
    registered, *others = cast(Any, made.model).fits
    of_folds = [of for of in others if of < registered]
    assert len(of_folds) == 5 and set.union(*of_folds) == registered
    assert len(registered) == 225


@pytest.mark.attack("A model that was trained on the rows of the test is measured on them")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"folds": 5}, {"folds": 0}),
        ({"folds": 0}, {"folds": 5}),
        ({"folds": 5}, {"folds": 6}),
        ({"folds": 5}, {"folds": 5, "group": "age"}),
        ({"folds": 5}, {"folds": 5, "positive": "no"}),
    ],
)
def test_another_split_than_that_of_training(
    tmp_path: Path, tracker: Tracker, change: dict[str, object], told: dict[str, object]
) -> None:
    """By folds before or after they were written into the schema."""

    def schema(fields: dict[str, object]) -> Tabular:
        return project(tmp_path, **{name: of for name, of in fields.items() if of})

    trained(tmp_path, schema(change))
    with pytest.raises(SystemExit, match="code-mismatch"):
        run(tmp_path, schema(told))


@pytest.mark.attack("A champion is measured out of fold by the code of the candidate")
def test_other_code_measures_another_model(tmp_path: Path, tracker: Tracker) -> None:
    """With folds alone; its metrics and its evaluation may be others."""
    made = project(tmp_path, folds=5)
    trained(tmp_path, made)
    (tmp_path / "metrics.py").write_text("METRICS = {}\n")
    run(tmp_path, made)
    (tmp_path / "model.py").write_text("# it forgets\n")
    with pytest.raises(SystemExit, match="code-mismatch"):
        run(tmp_path, made)


def test_a_metric_that_fails_is_told(tmp_path: Path, tracker: Tracker) -> None:
    """By training already, with its name and without a traceback."""
    made = project(tmp_path)
    broken = {"odd": CustomMetric("maximize", (0, 1), lambda answers, columns: columns["gone"])}
    other = Tabular(made.schema, made.model, made.derive, made.encoding, broken)
    with pytest.raises(SystemExit, match=r"no-metric.*`odd` fails with KeyError"):
        trained(tmp_path, other)


def test_columns_that_fail_are_told_without_a_traceback(tmp_path: Path, tracker: Tracker) -> None:
    """A value that `derive` does not expect, with its line; and the columns of a model that an
    earlier `derive` made.
    """
    made = project(tmp_path)
    broken = replace(made, derive=lambda row: {"half": 1 / cast(Any, row["missing"])})
    with pytest.raises(SystemExit, match=r"KeyError: 'missing', test_tabular.py:"):
        trained(tmp_path, broken)
    trained(tmp_path, made)
    other = replace(made, derive=lambda row: {"other": 1.0})
    with pytest.raises(SystemExit, match=r"no column '(?s:.*)a checkout of the commit"):
        run(tmp_path, other)


@pytest.mark.parametrize("folds", [None, 5])
def test_a_model_is_measured_on_a_table_with_more_columns(
    tmp_path: Path, tracker: Tracker, folds: int | None
) -> None:
    """As a champion is on the data of a candidate that reads a new column; training refuses it."""
    made = project(tmp_path, **({"folds": folds} if folds else {}))
    trained(tmp_path, made)
    before = run(tmp_path, made)
    table = tmp_path / "table.csv"
    head, *rows = table.read_text().splitlines()
    lines = [f"night,{head}", *(f"{at % 2},{row}" for at, row in enumerate(rows))]
    table.write_text("\n".join(lines) + "\n")
    after = run(tmp_path, made)
    assert after.metrics == before.metrics
    with pytest.raises(SystemExit, match="unexpected: night"):
        trained(tmp_path, made)
    table.write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    with pytest.raises(SystemExit, match="missing: left"):
        run(tmp_path, made)


@pytest.mark.parametrize("encoding", ["codes", "one-hot"])
def test_a_model_without_exact_contributions_is_shuffled(
    tmp_path: Path, tracker: Tracker, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    """By the table's columns, whatever the encoding; and a derived category that gives the target
    away is named by the training and by the evaluation.
    """

    class Reader(Memory):
        """It reads one category."""

        def predict(self, model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.where(table[:, -1] == 1, 0.9, 0.1)

    dataset = project(tmp_path).read(tmp_path)
    pairs = [
        pair
        for part in dataset.splits.values()
        for pair in zip(map(tuple, part.rows), part.labels, strict=True)
    ]
    positive = {row for row, label in pairs if label}

    def derive(row: Any) -> Any:
        return {"size": len(positive), "leak": "xy"[tuple(row.values()) in positive]}

    made = replace(
        project(tmp_path),
        model=cast(Model, Reader()),
        derive=derive,
        encoding=cast(Any, encoding),
    )
    trained(tmp_path, made)
    assert "warning[leak]: leak alone: auc 1.0000" in capsys.readouterr().err
    evaluation = run(tmp_path, made)
    told = capsys.readouterr().err
    assert "leak alone: auc 1.0000" in told and "the model on test: auc 1.0000" in told
    assert evaluation.explanation.method == "permutation importance"
    assert evaluation.explanation.rows == len(dataset.test)
    shares = {str(of.feature): of.share for of in evaluation.contributions}
    assert shares.keys() == {*dataset.kinds} and sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("changed", [{}, {"folds": 5}])
def test_a_linear_model_is_measured_beside_the_project_s(
    tmp_path: Path, tracker: Tracker, changed: dict[str, object]
) -> None:
    """On the same rows, out of fold where the model is: a quarter of the rows are `yes`."""
    made = project(tmp_path, **changed)
    trained(tmp_path, made)
    evaluation = run(tmp_path, made)
    assert evaluation.linear["brier"] < evaluation.metrics["test"]["brier"].value
    assert (
        f"a linear model has a test brier of {evaluation.linear['brier']:.4f}" in evaluation.text()
    )


def test_a_linear_model_that_cannot_be_fitted_is_named(
    tmp_path: Path,
    tracker: Tracker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To rows of one class; the model itself is measured."""
    made = project(tmp_path)
    trained(tmp_path, made)

    def numbers(dataset: Dataset, part: str, columns: Columns) -> Numbers:
        table = columns.matrix(dataset.splits[part].rows)
        return Numbers(table, np.zeros(len(table)))

    monkeypatch.setattr(Dataset, "numbers", numbers)
    assert run(tmp_path, made).linear == {}
    assert "no logistic regression beside the model: " in capsys.readouterr().err
