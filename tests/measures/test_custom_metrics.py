"""Custom metrics: computed by its function once, and from what is kept ever after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml.measures import schema
from ml.measures.evaluation import EvaluationRefused, check, read_evaluation
from ml.measures.measurement import Rows, evaluate, metric_values
from ml.measures.metrics import CustomMetric, ScoredRows
from ml.measures.schema import Evaluation, KeptPredictions
from ml.measures.tasks import EVERY_METRIC, TASKS, Task
from ml.release.evidence.recomputation import (
    Predictions,
    mismatches,
    read_predictions,
    sha256,
    with_predictions,
)
from policies.promotion.champion_gates import paired_difference
from policies.promotion.evidence import Evidence
from policies.promotion.gate_settings import load
from tests.measures.test_measurement import COUNT, arguments, world

Columns = Mapping[str, NDArray[Any]]


def cost(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """What a wrong answer costs."""
    return np.where(scored.expected == scored.predicted, 0.0, columns["amount"])


def missed(scored: ScoredRows, columns: Columns) -> NDArray[np.float64]:
    """What is missed of what there was."""
    amounts = columns["amount"] * scored.expected
    return np.stack([amounts * (scored.predicted == 0), amounts], axis=1)


OWN = {
    "cost": CustomMetric("minimize", (0, 100), cost),
    "missed": CustomMetric("minimize", (0, 1), missed, ratio=True),
}


def splits() -> tuple[dict[str, Rows], Any]:
    """Validation and test of a binary model, with a column that costs."""
    rows, *others = world("binary")
    amounts = [float(at % 7) for at in range(COUNT)]
    return {name: replace(of, columns={"amount": amounts}) for name, of in rows.items()}, others


@pytest.fixture(name="kept", scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one evaluation, not to be changed."""
    folder = tmp_path_factory.mktemp("kept")
    measured(folder)
    return folder


def measured(folder: Path, **changed: Any) -> tuple[Evaluation, Predictions]:
    """The evidence of a model that is compared by its cost, and the predictions."""
    rows, others = splits()
    told = {"custom_metrics": OWN, "primary_metric": "cost", **changed}
    evaluate(folder, rows, *others, **arguments("binary", **told))
    return read(folder)


def read(folder: Path) -> tuple[Evaluation, Predictions]:
    """What an evaluation wrote."""
    evaluation = read_evaluation(folder)
    path = folder / "predictions.csv"
    return evaluation, read_predictions(path, evaluation)


def test_they_are_computed_again_without_the_function(kept: Path) -> None:
    """Value, interval, slices, fairness; by hand too, and as training logs them."""
    evaluation, predictions = read(kept)
    assert evaluation.goal == "minimize" and mismatches(evaluation, predictions) == ()
    rows, _ = splits()
    test = rows["test"]
    scored, amounts = predictions.answers("test"), np.array(test.columns["amount"])
    wrong = scored.expected != scored.predicted
    assert evaluation.metrics["test"]["cost"].value == pytest.approx((wrong * amounts).mean())
    ones = scored.expected == "1"
    share = (wrong * ones * amounts).sum() / (ones * amounts).sum()
    assert evaluation.metrics["test"]["missed"].value == pytest.approx(share)
    logged = metric_values("binary", test, custom_metrics=OWN)
    assert logged.keys() == {*TASKS["binary"].metrics, "cost", "missed"}
    assert logged["cost"] == evaluation.metrics["test"]["cost"].value
    assert {"cost", "missed"} <= evaluation.slices["side"]["left"].keys()
    assert {"cost", "missed"} <= evaluation.fairness["side"].keys()
    assert evaluation.baseline["test"]["cost"].value is not None


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_what_is_a_number_is_given_as_one(task: Task) -> None:
    """A comparison of texts with a number is false everywhere, and the metric 0 without a word."""
    rows = world(task)[0]["test"]
    labels = np.asarray(rows.labels)
    metric = CustomMetric("maximize", (0, 1), lambda scored, _: scored.expected == labels)
    assert metric_values(task, rows, custom_metrics={"right": metric})["right"] == 1


@pytest.mark.parametrize("primary", OWN)
def test_versions_are_compared_by_them(tmp_path: Path, primary: str) -> None:
    """Paired: a model beside itself does not differ, and beside a worse one it does."""
    evaluation, predictions = measured(tmp_path / "a", primary_metric=primary)
    ours = with_predictions(Evidence(evaluation=evaluation), predictions)
    assert ours.range is None
    same = paired_difference(ours, ours, "test", 0.95)
    assert (same.mean, same.low, same.high, same.count) == (0, 0, 0, COUNT)
    rows, others = splits()
    worse = {name: replace(of, scores=1 - np.asarray(of.scores)) for name, of in rows.items()}
    told = {"custom_metrics": OWN, "primary_metric": primary}
    evaluate(tmp_path / "b", worse, *others, **arguments("binary", **told))
    theirs = with_predictions(
        Evidence(evaluation=evaluation),
        read_predictions(tmp_path / "b/predictions.csv", evaluation),
    )
    assert paired_difference(ours, theirs, "test", 0.95).high < 0


def shown(changed: Mapping[str, CustomMetric], folder: Path) -> str:
    """Why an evaluation with these metrics ends."""
    rows, others = splits()
    told = arguments("binary", custom_metrics=changed)
    with pytest.raises((EvaluationRefused, ValueError)) as ended:
        evaluate(folder, rows, *others, **told)
    return str(ended.value)


@pytest.mark.parametrize(
    ("name", "metric", "message"),
    [
        ("cost", lambda a, c: [1.0], "gives (1,), expected (240,)"),
        ("cost", lambda a, c: np.full(len(a), np.nan), "not 1 finite numbers"),
        ("cost", lambda a, c: np.full(len(a), 101.0), "101, out of its range 0 to 100"),
        ("cost", lambda a, c: c["gone"], "fails with KeyError: 'gone', test_custom_metrics.py:"),
        ("Cost", lambda a, c: np.zeros(len(a)), "is no name such as"),
        ("test.cost", lambda a, c: np.zeros(len(a)), "is no name such as"),
        ("auc", lambda a, c: np.ones(len(a)), "`auc` is a metric of the framework"),
        ("gain_at_1", lambda a, c: np.ones(len(a)), "`gain_at_1` is a metric of the framework"),
    ],
)
def test_what_is_no_metric_is_told(tmp_path: Path, name: str, metric: Any, message: str) -> None:
    """With its name; nothing is written."""
    assert message in shown({name: CustomMetric("maximize", (0, 100), metric)}, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_function_of_no_file_is_told(tmp_path: Path) -> None:
    """Nobody could say whether two versions were measured by the same one."""
    metric = CustomMetric("maximize", (0, 1), partial(lambda scored, columns: scored.ones))
    assert "is no function of a file" in shown({"share": metric}, tmp_path)


def test_a_weight_is_not_negative(tmp_path: Path) -> None:
    """Nor is a ratio one column."""
    for given, message in {(1.0, -1.0): "weight -1", (1.0, 2.0, 3.0): "(240, 3)"}.items():
        metric = CustomMetric("maximize", (0, 1), lambda a, c, of=given: [of] * len(a), ratio=True)
        assert message in shown({"share": metric}, tmp_path)


ATTACKS = {
    "a metric of the framework": {
        "auc": {"goal": "maximize", "range": [0, 1], "ratio": False, "code": "ab"}
    },
    "a range without an end": {
        "cost": {"goal": "minimize", "range": [0, None], "ratio": False, "code": "ab"}
    },
    "a range the wrong way": {
        "cost": {"goal": "minimize", "range": [9, 0], "ratio": False, "code": "ab"}
    },
    "a goal of its own": {"cost": {"goal": "best", "range": [0, 9], "ratio": False, "code": "ab"}},
    "no form": {"cost": {"goal": "minimize", "range": [0, 9], "code": "ab"}},
    "no code": {"cost": {"goal": "minimize", "range": [0, 9], "ratio": False}},
    "nothing": {"cost": None},
}


@pytest.mark.attack(
    "An evaluation states a custom metric by a name or with a range that gates trust"
)
@pytest.mark.parametrize("stated", ATTACKS.values(), ids=ATTACKS)
def test_a_statement_that_is_no_metric(kept: Path, stated: dict[str, Any]) -> None:
    """Is refused where the evaluation is read, and by the gate that recomputes."""
    document = json.loads((kept / "evaluation.json").read_text())
    with pytest.raises(EvaluationRefused):
        check({**document, "custom_metrics": {**document["custom_metrics"], **stated}})
    evaluation = schema.read(Evaluation, {**document, "custom_metrics": stated})
    rows = read_predictions(kept / "predictions.csv", evaluation)
    assert rows.faults and mismatches(replace(evaluation, metrics={}, slices={}), rows)


@pytest.mark.attack("The kept values of a custom metric are edited")
@pytest.mark.parametrize("to", ["0.0", "nan", "101.0", "-1.0", "", "1e999", "x"])
def test_values_that_are_edited(kept: Path, tmp_path: Path, to: str) -> None:
    """The numbers no longer follow from them, or they are none."""
    evaluation, _ = read(kept)
    path = Path(shutil.copy(kept / "predictions.csv", tmp_path))
    header, *lines = path.read_text().splitlines()
    at = header.split(",").index("metric:cost")
    changed = next(line for line in lines if line.split(",")[at] not in ("0.0", to))
    cells = changed.split(",")
    cells[at] = to
    text = path.read_text().replace(changed, ",".join(cells))
    path.write_text(text)
    hashed = KeptPredictions("predictions.csv", sha256(path), 2 * COUNT)
    rows = read_predictions(path, evaluation)
    # One number suffices to tell; the others take time.
    metrics = {split: {"cost": of["cost"]} for split, of in evaluation.metrics.items()}
    edited = replace(evaluation, predictions=hashed, metrics=metrics, slices={}, fairness={})
    wrong = mismatches(edited, rows)
    assert any("cost" in of for of in wrong)


def test_the_policy_knows_the_range_of_each_metric() -> None:
    """Of the table of kinds: bounds in gates.yml are the range, as far as it has an end."""
    bounds = load()["quality"].bounds("bounds")
    for name, metric in EVERY_METRIC.items():
        low, high = metric.range
        if np.isfinite(high):
            assert tuple(bounds[name]) == (low, high), name
        elif name in bounds:
            assert bounds[name][0] == low, name


def test_a_kind_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another kind of task is evaluated and recomputed by what its entry says alone."""
    kind = replace(TASKS["regression"], metrics={"off": TASKS["regression"].metrics["mae"]})
    monkeypatch.setitem(TASKS, "other", kind)  # type: ignore[arg-type]
    told = {**arguments("regression"), "task": "other", "primary_metric": "off"}
    evaluate(tmp_path, *world("regression"), **told)
    evaluation = read_evaluation(tmp_path)
    rows = read_predictions(tmp_path / "predictions.csv", evaluation)
    assert mismatches(evaluation, rows) == () and evaluation.metrics["test"].keys() == {"off"}
