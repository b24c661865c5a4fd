"""evaluation.json: what it takes, what it refuses, and that changes are found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ml.measures.evaluation import (
    EvaluationRefused,
    Prediction,
    check,
    read_evaluation,
    write_evaluation,
)
from ml.measures.schema import (
    SCHEMA_VERSION,
    Contribution,
    Estimate,
    Evaluation,
    Explanation,
    Fit,
    KeptPredictions,
    Stability,
    TrainingSet,
    UsedFeatureSet,
)

GAIN = {"gain_at_1": Estimate(0.5, 0.2, 0.8, 2)}
SOUND = Evaluation(
    model="m",
    task="ranking",
    primary_metric="gain_at_1",
    goal="maximize",
    unit="question",
    resampled="question",
    feature_set_hash="ab",
    seed=0,
    hyperparameters={"leaves": 7},
    metrics={"test_known": GAIN},
    baseline={},
    slice_split="test_known",
    slices={"topic": {"cost": GAIN}},
    fairness={"topic": {}},
    contributions=(Contribution("f", 1.0),),
    explanation=Explanation("TreeSHAP", 2, 0.0),
    stability={"gain_at_1": Stability("folds", (0.5, 0.6), 0.07)},
    training=Fit(1.0, 2),
)
ROWS = [
    Prediction("q1", "test_known", {"topic": "cost"}, "a", "a", 1, 0.9),
    Prediction("q2", "test_known", {"topic": "cost"}, "a", 'b, "quoted"', 2, -0.5),
]


def test_what_is_written_is_read(tmp_path: Path):
    """The document comes back, with the predictions' hash and number."""
    write_evaluation(tmp_path, SOUND, ROWS)
    evaluation = read_evaluation(tmp_path)
    assert evaluation.schema_version == SCHEMA_VERSION and evaluation.predictions.rows == 2
    assert replace(evaluation, schema_version=math.nan, predictions=KeptPredictions()) == SOUND


def test_a_training_set_is_stated_where_there_is_one(tmp_path: Path):
    """Without feature sets the document has no such field, as before it existed."""
    write_evaluation(tmp_path / "none", SOUND, ROWS)
    assert "training_set" not in json.loads((tmp_path / "none" / "evaluation.json").read_text())
    assert read_evaluation(tmp_path / "none").training_set is None
    time = datetime(2025, 1, 1, tzinfo=UTC)
    used = TrainingSet("d1", "d1", time, time, {"payments": UsedFeatureSet("1", "c1", time, time)})
    write_evaluation(tmp_path / "some", replace(SOUND, training_set=used), ROWS)
    assert read_evaluation(tmp_path / "some").training_set == used
    unused = replace(used, sets={"payments": UsedFeatureSet("1", "c1")})
    with pytest.raises(EvaluationRefused, match=r"training_set\.sets\.payments\.first is None"):
        write_evaluation(tmp_path / "bad", replace(SOUND, training_set=unused), ROWS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
@pytest.mark.parametrize(
    "where", ["hyperparameters", "training", "stability", "contributions", "metrics"]
)
def test_what_is_not_finite_is_refused(tmp_path: Path, bad: float | None, where: str):
    """Wherever it stands, and nothing is written."""
    values = {
        "hyperparameters": {"leaves": bad},
        "training": Fit(bad, 2),
        "stability": {"gain_at_1": Stability("folds", (0.5, bad), 0.1)},
        "contributions": (Contribution("f", bad),),
        "metrics": {"test_known": {"gain_at_1": Estimate(bad, 0.1, 0.9, 2)}},
    }
    with pytest.raises(EvaluationRefused, match=where):
        write_evaluation(tmp_path / "out", replace(SOUND, **{where: values[where]}), ROWS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("row", [replace(ROWS[0], score=float("nan")), replace(ROWS[0], rank=0)])
def test_predictions_are_checked_too(tmp_path: Path, row: Prediction):
    """A score that is NaN or a rank under 1 names its question."""
    with pytest.raises(EvaluationRefused, match="q1"):
        write_evaluation(tmp_path, SOUND, [row])


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(replace(ROWS[0], slices={}), id="no topic"),
        pytest.param(replace(ROWS[0], slices={"topic": "cost", "age": "1"}), id="one more"),
        pytest.param(replace(ROWS[0], group="entry"), id="a group, where units are drawn"),
    ],
)
def test_predictions_fit_what_is_said_of_them(tmp_path: Path, row: Prediction):
    """The same dimensions for every unit, and groups exactly where groups are drawn."""
    with pytest.raises(EvaluationRefused, match="q1"):
        write_evaluation(tmp_path, SOUND, [ROWS[1], row])
    grouped = replace(SOUND, resampled="entry")
    with pytest.raises(EvaluationRefused, match="group"):
        write_evaluation(tmp_path, grouped, ROWS)
    write_evaluation(tmp_path, grouped, [replace(prediction, group="entry") for prediction in ROWS])
    assert (tmp_path / "predictions.csv").read_text().splitlines()[0].endswith(",slice:topic")


@pytest.mark.parametrize(
    "change",
    [
        {"primary_metric": "accuracy"},
        {"goal": "best"},
        {"metrics": {"test": {"gain_at_1": Estimate(0.9, 0.1, 0.8, 2)}}},
        {"metrics": {"test": {"gain_at_1": Estimate(0.5, 0.1, 0.8, 0)}}},
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, change: dict):
    """An unknown primary metric, a goal, an interval beside its value, no question at all."""
    with pytest.raises(EvaluationRefused):
        write_evaluation(tmp_path, replace(SOUND, **change), ROWS)


def test_fields_are_neither_missing_nor_unknown(tmp_path: Path):
    """Every field of the schema and no other."""
    write_evaluation(tmp_path, SOUND, ROWS)
    document = json.loads((tmp_path / "evaluation.json").read_text())
    check(document)
    # Evaluations may lack these: the gates say so, or do without.
    earlier = {"leakage", "identifiers", "baseline_from", "custom_metrics", "out_of_fold"}
    earlier |= {"requests", "baseline", "contributions", "explanation", "linear", "threshold"}
    for name in document.keys() - earlier:
        with pytest.raises(EvaluationRefused):
            check({key: value for key, value in document.items() if key != name})
    with pytest.raises(EvaluationRefused, match="more"):
        check({**document, "more": 1})


def test_changed_predictions_are_found(tmp_path: Path):
    """One character in predictions.csv, and the evaluation is refused."""
    write_evaluation(tmp_path, SOUND, ROWS)
    path = tmp_path / "predictions.csv"
    path.write_text(path.read_text().replace(",2,", ",1,"))
    with pytest.raises(EvaluationRefused, match="does not match"):
        read_evaluation(tmp_path)


def test_bare_nan_in_the_file_is_refused(tmp_path: Path):
    """Python's json reads NaN; the check does not let it pass."""
    write_evaluation(tmp_path, SOUND, ROWS)
    path = tmp_path / "evaluation.json"
    path.write_text(path.read_text().replace('"value": 0.5', '"value": NaN', 1))
    with pytest.raises(EvaluationRefused, match="nan"):
        read_evaluation(tmp_path)
