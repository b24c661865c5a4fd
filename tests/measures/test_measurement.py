"""ml.measures.measurement: the files of an evaluation, by real models of every task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from ml.measures.contributions import Contributions
from ml.measures.evaluation import EvaluationRefused, read_evaluation
from ml.measures.measurement import (
    Features,
    Rows,
    Training,
    constant_answer,
    evaluate,
    metric_values,
    predict,
)
from ml.measures.tasks import TASKS, Task
from ml.release.evidence.recomputation import (
    mismatches,
    overlap_mismatches,
    read_predictions,
)
from ml.toolkit.training.boosting import contributions

COUNT = 240
CLASSES = ("high", "low", "middle")
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(3 * COUNT, 2))
NUMBERS = TABLE[:, 0] + 0.3 * RNG.normal(size=3 * COUNT)
LABELS: dict[Task, np.ndarray] = {
    "binary": (NUMBERS > 0).astype(int),
    "multiclass": np.array(CLASSES)[np.digitize(NUMBERS, [-0.5, 0.5])],
    "regression": NUMBERS,
}
PRIMARY: dict[Task, str] = {"binary": "log_loss", "multiclass": "accuracy", "regression": "mae"}


def world(task: Task) -> tuple[dict[str, Rows], Training, Features, Contributions]:
    """Validation and test with the scores of a model of the other rows."""
    labels = LABELS[task]
    codes = np.searchsorted(CLASSES, labels) if task == "multiclass" else labels
    settings = {"objective": task, "verbose": -1, "num_threads": 1, "num_leaves": 4}
    settings |= {"num_class": 3} if task == "multiclass" else {}
    data = lightgbm.Dataset(TABLE[:COUNT], codes[:COUNT])
    booster = lightgbm.train(settings, data, num_boost_round=20)
    splits = {}
    for at, name in enumerate(("validation", "test"), start=1):
        rows = np.arange(at * COUNT, (at + 1) * COUNT)
        splits[name] = Rows(
            [f"r{row}" for row in rows],
            labels[rows],
            booster.predict(TABLE[rows]),
            {"side": ["left" if row % 2 else "right" for row in rows]},
        )
    learnt = Rows([f"r{row}" for row in range(COUNT)], labels[:COUNT])
    training = Training(learnt, {"num_leaves": 4}, [0.4, 0.5], seconds=0.1)
    features = Features(("decides", "does not"), TABLE[2 * COUNT :])
    return splits, training, features, contributions(booster, features.table)


def arguments(task: Task, **changed: Any) -> dict[str, Any]:
    """What `evaluate` is told besides the rows."""
    return {
        **{"task": task, "primary_metric": PRIMARY[task], "model": "tiny", "digest": "sha256:ab"},
        **({"classes": CLASSES} if task == "multiclass" else {}),
        **changed,
    }


@pytest.mark.parametrize(("name", "slices"), [("missing", 3), ("", 2)])
def test_rows_without_a_value_are_a_slice(tmp_path: Path, name: str, slices: int) -> None:
    """Evidence of before, where they are in none, still follows from its predictions."""
    splits, training, features, shares = world("binary")
    test = splits["test"]
    sides = [name if row % 4 == 0 else side for row, side in enumerate(test.slices["side"])]
    splits = {**splits, "test": replace(test, slices={"side": sides})}
    evaluate(tmp_path, splits, training, features, shares, **arguments("binary"))
    evaluation = read_evaluation(tmp_path)
    rows = read_predictions(tmp_path / "predictions.csv", evaluation)
    assert mismatches(evaluation, rows) == ()
    assert {*evaluation.slices["side"]} == {*sides} - {""} == {*rows.members()["test"]["side"]}
    assert evaluation.fairness["side"]["auc"].slices == slices


@pytest.mark.parametrize("task", LABELS)
def test_the_four_files_bear_each_other_out(tmp_path: Path, task: Task) -> None:
    """The gates' own readers recompute every number; the baseline is a constant, and worse."""
    inputs = {"decides": ("numeric", TABLE[:, 0].tolist())}
    result = evaluate(tmp_path, *world(task), **arguments(task, inputs=inputs))
    evaluation = read_evaluation(tmp_path)
    rows = read_predictions(tmp_path / "predictions.csv", evaluation)
    assert rows.faults == () and mismatches(evaluation, rows) == ()
    kept = rows.probabilities("test")
    assert tuple(kept) == (CLASSES if task == "multiclass" else ())
    for at, name in enumerate(kept):
        scores = np.asarray(world(task)[0]["test"].scores)[:, at]
        assert np.allclose(kept[name], scores, atol=1e-4)
    assert evaluation.identifiers and overlap_mismatches(evaluation, tmp_path) == ()
    assert evaluation.metrics.keys() == {"validation", "test"} and evaluation.slice_split == "test"
    assert evaluation.slices["side"].keys() == {"left", "right"}
    measure = "correlation" if task == "regression" else "auc"
    assert {check.check for check in evaluation.leakage} == {
        "identifiers.shared",
        *(f"{of}.{measure}" for of in ("feature", "joint", "model")),
    }
    assert evaluation.contributions[0].feature == "decides"
    primary, sign = PRIMARY[task], 1 if result.goal == "maximize" else -1
    ours, same = (of["test"][primary].value for of in (result.metrics, result.baseline))
    assert sign * ours > sign * same
    reference = json.loads((tmp_path / "reference.json").read_text())
    assert reference["digest"] == "sha256:ab" and reference["inputs"].keys() == {"decides"}
    kind = "categorical" if task == "multiclass" else "numeric"
    assert reference["predictions"]["prediction"]["kind"] == kind
    assert reference["quality"]["prediction"]["rows"] == 2 * COUNT


@pytest.mark.parametrize("task", LABELS)
@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_a_baseline_that_is_weaker_than_a_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: Task, times: float
) -> None:
    """It is stated with the evaluation, and told; one that is as good as a constant is not."""
    first = evaluate(tmp_path / "constant", *world(task), **arguments(task))
    assert first.baseline_from.startswith("a constant prediction")
    constant = first.baseline["test"][PRIMARY[task]]
    ends = {name: getattr(constant, name) * times for name in ("value", "low", "high")}
    changed = replace(constant, **ends)
    baseline = {"test": {PRIMARY[task]: changed}}
    told = arguments(task, baseline=baseline, baseline_from="a rule")
    capsys.readouterr()
    result = evaluate(tmp_path, *world(task), **told)
    worse = times < 1 if result.goal == "maximize" else times > 1
    assert ("warning[weak-baseline]" in capsys.readouterr().err) is worse
    assert read_evaluation(tmp_path).baseline_from == result.baseline_from
    weak = f"a rule; weaker than a constant prediction, which has {constant.value:.4g}"
    assert result.baseline_from == (weak if worse else "a rule")


def test_a_ranking_is_explained_and_not_searched_for_features(tmp_path: Path) -> None:
    """Ranks follow from scores; without inputs there is no reference.json."""
    splits, training, *explained = world("multiclass")
    baseline = {"test": {}}
    ranking = {"task": "ranking", "primary_metric": "gain_at_1", "baseline": baseline}
    evaluate(tmp_path, splits, training, *explained, **{**arguments("multiclass"), **ranking})
    evaluation = read_evaluation(tmp_path)
    assert [check.check for check in evaluation.leakage] == ["identifiers.shared"]
    assert mismatches(evaluation, read_predictions(tmp_path / "predictions.csv", evaluation)) == ()
    assert not (tmp_path / "reference.json").exists()


def test_a_row_of_training_in_the_test_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its identifier; the rows of validation are not looked at."""
    splits, training, *explained = world("binary")
    evaluate(tmp_path, splits, training, *explained, **arguments("binary"))
    assert "warning[leak]" not in capsys.readouterr().err
    names = [*training.rows.ids, splits["validation"].ids[0]]
    seen = replace(training, rows=replace(training.rows, identifiers=names))
    evaluate(tmp_path, splits, seen, *explained, **arguments("binary"))
    assert "warning[leak]" not in capsys.readouterr().err
    seen = replace(training, rows=replace(training.rows, identifiers=[splits["test"].ids[3]]))
    evaluate(tmp_path, splits, seen, *explained, **arguments("binary"))
    assert "warning[leak]: 1 of 240 by id were trained on: r483" in capsys.readouterr().err


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A score too few, a group where rows are drawn, a number that is none."""
    splits, training, *explained = world("binary")
    test = splits["test"]
    for wrong in (
        replace(test, scores=test.scores[:-1]),
        replace(test, slices={"side": ["left"]}),
        replace(test, groups=["g"] * COUNT),
        replace(test, scores=np.full(COUNT, np.nan)),
    ):
        with pytest.raises((ValueError, EvaluationRefused)):
            evaluate(
                tmp_path, {**splits, "test": wrong}, training, *explained, **arguments("binary")
            )
    assert not (tmp_path / "evaluation.json").exists()


def test_classes_that_the_model_does_not_know() -> None:
    """Their probability is 0, and in a ranking they come last; a tie is no answer."""
    scores = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    rows = Rows(["a", "b"], ["new", "high"], scores)
    first, second = predict("multiclass", "test", rows, CLASSES)
    assert (first.predicted, first.score, second.score) == ("high", 0.0, 0.4)
    first, second = predict("ranking", "test", rows, CLASSES)
    assert (first.rank, second.rank, first.score) == (4, 2, 0.5)


@pytest.mark.parametrize("task", LABELS)
def test_values_without_intervals(task: Task) -> None:
    """Those of `evaluate`, and of a constant only what is defined of it."""
    test = world(task)[0]["test"]
    classes = CLASSES if task == "multiclass" else ()
    values = metric_values(task, test, classes)
    assert values.keys() == TASKS[task].metrics.keys()
    constant = constant_answer(task, PRIMARY[task], test.labels, COUNT, classes)
    same = metric_values(task, replace(test, scores=constant), classes)
    assert same.get("auc", 0.5) == 0.5
    one_sided = replace(test, labels=np.ones(COUNT)) if task == "binary" else test
    assert ("auc" in metric_values(task, one_sided, classes)) is False
