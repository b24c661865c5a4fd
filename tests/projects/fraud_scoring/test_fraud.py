"""Costs, weights, jobs and the served answer of the project, on a few thousand rows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

from ml.backends.local.backend import LocalBackend
from ml.features.definition import read as definition_of
from ml.measures.evaluation import read_evaluation
from ml.measures.fairness import differences
from ml.measures.metrics import ScoredRows
from ml.measures.schema import TrainingSet, read
from ml.measures.tasks import metrics_of
from ml.projects.fraud_scoring import metrics, model, transactions
from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.costs import REVIEW, threshold
from ml.projects.fraud_scoring.endpoint import score
from ml.projects.fraud_scoring.history import FEATURE_SET, history
from ml.projects.fraud_scoring.train import PROJECT, SCHEMA
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import AutoMLPlan, PipelinePlan, SweepPlan
from ml.specs.sdk.load import load
from ml.toolkit.data.datasets import TRAIN, Dataset
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.tabular import evaluate, split, train
from tests.named import spans, wrong

JOBS = SCHEMA.parents[1] / "jobs"
SOURCE = transactions.SOURCE


@pytest.fixture(scope="module", name="small")
def _small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A table of a few cards."""
    folder = tmp_path_factory.mktemp("small")
    transactions.main(["--out", str(folder), "--cards", "150", "--days", "90"])
    return PROJECT.read(folder / transactions.PROJECT, {SOURCE: folder / SOURCE})


def scored(expected: list[int], scores: list[float]) -> ScoredRows:
    nothing = np.zeros(len(expected), dtype=np.int64)
    return ScoredRows(
        np.array([str(of) for of in expected]),
        np.array(["0"] * len(expected)),
        nothing,
        np.array(scores),
    )


def test_the_threshold_is_where_both_errors_cost_the_same() -> None:
    """A purchase of 5 is reviewed from one half, one of 495 from a hundredth."""
    assert (threshold(5.0), threshold(495.0)) == (0.5, 0.01)
    assert threshold(495.0) * 495 == pytest.approx((1 - threshold(495.0)) * REVIEW)


def test_what_errors_cost() -> None:
    """A missed fraud its amount, a false alarm a review, a fraud that is reviewed nothing."""
    given = scored([1, 1, 0, 0], [0.001, 0.9, 0.9, 0.001])
    columns = {"amount": np.array([200.0, 300.0, 50.0, 50.0])}
    assert metrics.cost(given, columns).tolist() == [[200, 200], [0, 300], [5, 0], [0, 0]]
    assert metrics.reviewed(given, columns).tolist() == [0, 1, 1, 0]
    assert metrics.caught(given, columns).sum(axis=0).tolist() == [1, 2]
    assert metrics.false_alarms(given, columns).sum(axis=0).tolist() == [1, 2]


def test_groups_are_compared_by_what_happens_to_them() -> None:
    """Selection, true and false positive rates: the group that is reviewed more is named."""
    count = 40
    groups = ["young"] * count + ["old"] * count
    expected = [1, 0] * count
    scores = [0.9] * count + [0.9 if of else 0.001 for of in expected[count:]]
    columns = {"amount": np.full(2 * count, 100.0)}
    given = scored(expected, scores)
    own = {name: of.values(name, given, columns) for name, of in metrics.METRICS.items()}
    given = ScoredRows(given.expected, given.predicted, given.rank, given.score, own)
    gaps = differences(metrics_of("binary", metrics.METRICS), given, groups, "test")
    assert gaps["reviewed"].difference == 0.5 and gaps["reviewed"].highest == "young"
    assert gaps["caught"].difference == 0.0 and gaps["false_alarms"].difference == 1.0


@pytest.mark.parametrize("changes", [{"positive_weight": 10.0}, {"others_share": 0.2}])
def test_weights_and_sampling_leave_the_probabilities_right(
    small: Dataset, changes: dict[str, float]
) -> None:
    """Their mean is the share of frauds, else the threshold would not follow from the costs."""
    columns, fitted = PROJECT.fit(small, {**model.SETTINGS, "trees": 60, **changes}, seed=0)
    mean = PROJECT.scores(small, TRAIN, columns, fitted).mean()
    assert 0.5 < mean / small.train.labels.mean() < 2


def test_the_evaluation_states_the_training_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the model's folder and the run do; another source is another table."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    for seed in (0, 1):
        words = ["--seed", str(seed), "--cards", "60", "--days", "200"]
        transactions.main(["--out", str(tmp_path / str(seed)), *words])
    data = ["--data", str(tmp_path / "0" / transactions.PROJECT), "--model", str(tmp_path / "out")]
    sources = [["--sources", str(tmp_path / str(seed) / SOURCE)] for seed in (0, 1)]
    train(PROJECT, [*data, *sources[0], "--trees", "20"])
    (tags,) = mlflow.search_runs(search_all_experiments=True)["tags.training_set"]
    stated = []
    for number, source in enumerate(sources):
        out = tmp_path / f"evaluation{number}"
        evaluate(PROJECT, [*data, *source, "--evaluation", str(out)], model="m")
        stated.append(read_evaluation(out).training_set)
    same, other = stated
    assert same is not None and other is not None
    assert (
        json.loads(tags) == json.loads((tmp_path / "out/settings.json").read_text())["training_set"]
    )
    assert same == read(TrainingSet, json.loads(tags)) and same.evaluated == same.digest
    assert other == replace(same, evaluated=other.evaluated) and other.evaluated != same.digest
    used, definition = same.sets[SOURCE], definition_of(FEATURE_SET)
    assert (used.version, used.definition) == (definition.version, definition.digest)
    assert used.last is not None and same.last_label is not None and used.last < same.last_label


def test_no_model_decides_by_age(small: Dataset) -> None:
    """It is a slice and no column; what is spent beside the usual is one."""
    columns = small.columns(derive, PROJECT.encoding)
    assert "age" not in columns.names and "unusual" in columns.names
    assert {*small.test.slices["age"]} == {*transactions.AGES}


def test_a_record_is_answered_and_decided_in_less_than_five_milliseconds(
    small: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the endpoint's code; contributions add up to the score."""
    columns, fitted = PROJECT.fit(small, {**model.SETTINGS, "trees": 60}, seed=0)
    columns.save(tmp_path)
    model.save(fitted, tmp_path)
    seal(tmp_path, {})
    explained = model.contributions(tmp_path, columns.matrix(small.test.rows[:50]))
    assert not isinstance(explained, str) and explained.method == "TreeSHAP"
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    bodies = [json.dumps(of) for of in small.test.requests[:200]]
    at = [column.name for column in small.features].index("amount")
    for body in bodies:
        answer = score.run(body)
        assert isinstance(answer, dict)
        amount = json.loads(body)["input_data"]["data"][0][at]
        is_above = answer["predictions"][0] > threshold(amount)
        assert answer["decisions"] == ["review" if is_above else "accept"]
    missing = json.loads(bodies[0])
    missing["input_data"]["data"][0][at] = None
    assert getattr(score.run(json.dumps(missing)), "status_code", 200) == 400
    for amount in (0, -2.5, -5.0):
        missing["input_data"]["data"][0][at] = amount
        refused = score.run(json.dumps(missing))
        assert getattr(refused, "status_code", 200) == 400
        sentence = json.loads(getattr(refused, "data", ""))["error"]["message"]
        assert sentence == f"amount: {amount} in row 1, expected an amount of more than 0"
    took = []
    for body in bodies:
        began = time.perf_counter()
        score.run(body)
        took.append(time.perf_counter() - began)
    assert np.median(took) < 0.005


def test_the_threshold_is_a_probability() -> None:
    """Of any amount."""
    assert [threshold(of) for of in (-5.0, -2.0, 0.0, REVIEW)] == [1.0, 1.0, 1.0, 0.5]


def test_a_window_that_is_over_counts_nothing() -> None:
    """An hour after the last payment, a day after it, and of a card without a known one."""
    known = {"count_1h": 2, "sum_1h": 5.0, "count_24h": 3, "sum_24h": 9.0}
    known |= {"usual_amount": 2.005001, "last_paid": datetime.fromtimestamp(1000, UTC)}
    columns = {
        second: [*history(1000.0 + second, known).values()] for second in (0, 3599, 3600, 86_400)
    }
    assert columns == {
        0: [2, 5.0, 3, 9.0, 0, 2.01],
        3599: [2, 5.0, 3, 9.0, 3599, 2.01],
        3600: [0, 0, 3, 9.0, 3600, 2.01],
        86_400: [0, 0, 0, 0, 86_400, 2.01],
    }
    assert [*history(1000.0, dict.fromkeys(known)).values()] == [0, 0, 0, 0, None, None]


def test_the_sweep_has_every_setting() -> None:
    """The whole space but the number of trees, which validation chooses."""
    sweep = plan(load(JOBS / "sweep.yml"))
    assert isinstance(sweep, SweepPlan)
    assert {*sweep.search_space} == {*model.SETTINGS} - {"trees"}


def test_two_candidates_of_one_pipeline() -> None:
    """AutoML by no accuracy and without the holder's age, and the sweep's own space."""
    pipeline = plan(load(JOBS / "pipeline.yml"))
    assert isinstance(pipeline, PipelinePlan)
    search, swept = (pipeline.steps[name].plan for name in ("search", "sweep"))
    assert isinstance(search, AutoMLPlan) and isinstance(swept, SweepPlan)
    assert (search.primary_metric, search.target_column) == ("AUC_weighted", "is_fraud")
    featurization = search.settings["featurization"]
    assert featurization["column_name_and_types"] == {"age": "Ignore"}  # type: ignore[index]
    alone = plan(load(JOBS / "sweep.yml"))
    assert isinstance(alone, SweepPlan)
    spaces = [
        {name: (of.kind, of.args) for name, of in each.search_space.items()}
        for each in (alone, swept)
    ]
    assert spaces[0] == spaces[1]
    assert LocalBackend().refusals(pipeline) == ()


def test_automl_is_given_no_row_of_the_test(small: Dataset, tmp_path: Path) -> None:
    """The rows of training and of validation, and what requests have."""
    data = tmp_path / "data"
    transactions.main(["--out", str(data), "--cards", "150", "--days", "90"])
    words = ["--data", str(data / transactions.PROJECT), "--sources", str(data / SOURCE)]
    for part in ("train", "validation"):
        words += [f"--{part}", str(tmp_path / part)]
    split(PROJECT, words)
    for part in ("train", "validation"):
        rows = pd.read_parquet(tmp_path / part / "rows.parquet")
        expected = [row[list(small.kinds).index("amount")] for row in small.splits[part].rows]
        assert rows["amount"].tolist() == expected
        assert not {*rows} & {"transaction", "made_at", "card"}


def test_the_page_names_what_is_there() -> None:
    """Commands with their options, files."""
    folder = SCHEMA.parents[1]
    assert [of for of in spans((folder / "README.md").read_text()) if wrong(of, folder)] == []
