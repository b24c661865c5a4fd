"""Metrics of every task against scikit-learn's, their intervals, and rows that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as theirs

from ml.measures.bootstrap import FEWEST_GROUPS
from ml.measures.evaluation import Prediction, wrong_primary
from ml.measures.measurement import measure
from ml.measures.metrics import Draws, ScoredRows, estimate, estimates, value
from ml.measures.tasks import TASKS, Task, fault

OF_TWO = TASKS["binary"].metrics
RNG = np.random.default_rng(0)
COUNT = 300
TRUTH = RNG.integers(0, 2, COUNT)
# Tenths, so that many scores are tied; the ends too.
SCORE = np.clip(np.round(0.5 * TRUTH + 0.7 * RNG.random(COUNT) - 0.1, 1), 0, 1)
SAID = (SCORE > 0.5).astype(int)
NUMBERS = RNG.normal(10, 3, (2, COUNT))
LABELS = RNG.choice(list("abc"), (2, COUNT))


def scored(expected: Any, predicted: Any, score: Any = 0.0) -> ScoredRows:
    """As a predictions.csv has them: labels and numbers are text."""
    return ScoredRows(
        np.array([str(label) for label in expected]),
        np.array([str(label) for label in predicted]),
        np.zeros(len(expected), dtype=np.int64),
        np.broadcast_to(np.asarray(score, dtype=np.float64), len(expected)),
    )


BINARY = scored(TRUTH, SAID, SCORE)
REGRESSION = scored(NUMBERS[0].tolist(), NUMBERS[1].tolist())
MULTICLASS = scored(LABELS[0], LABELS[1], np.where(LABELS[0] == LABELS[1], 0.6, 0.2))
# Of the tenth that scores highest; rows that tie at its end count in part, as the mean of them.
ORDER = np.argsort(-SCORE, kind="stable")[: COUNT // 10]
TIED = SCORE[ORDER[-1]] == SCORE
TOP = np.where(SCORE[ORDER] == SCORE[ORDER[-1]], TRUTH[TIED].mean(), TRUTH[ORDER])
GIVEN: Mapping[Task, ScoredRows] = {
    "binary": BINARY,
    "regression": REGRESSION,
    "multiclass": MULTICLASS,
}
PUBLISHED: Mapping[tuple[Task, str], float] = {
    ("binary", "accuracy"): theirs.accuracy_score(TRUTH, SAID),
    ("binary", "log_loss"): theirs.log_loss(TRUTH, SCORE),
    ("binary", "brier"): theirs.brier_score_loss(TRUTH, SCORE),
    ("binary", "auc"): theirs.roc_auc_score(TRUTH, SCORE),
    ("binary", "f1"): theirs.f1_score(TRUTH, SAID),
    ("binary", "false_positive_rate"): (SAID & ~TRUTH.astype(bool)).sum() / (TRUTH == 0).sum(),
    ("binary", "false_negative_rate"): 1 - theirs.recall_score(TRUTH, SAID),
    ("binary", "selection_rate"): SAID.mean(),
    ("binary", "average_precision"): theirs.average_precision_score(TRUTH, SCORE),
    ("binary", "lift_at_10"): TOP.mean() / TRUTH.mean(),
    ("binary", "recall_at_precision_90"): max(
        recall
        for precision, recall, _ in zip(*theirs.precision_recall_curve(TRUTH, SCORE), strict=False)
        if precision >= 0.9
    ),
    ("multiclass", "f1"): theirs.f1_score(*LABELS, average="macro"),
    ("regression", "quantile_loss_10"): theirs.mean_pinball_loss(*NUMBERS, alpha=0.1),
    ("regression", "quantile_loss_90"): theirs.mean_pinball_loss(*NUMBERS, alpha=0.9),
    ("multiclass", "accuracy"): theirs.accuracy_score(*LABELS),
    ("multiclass", "log_loss"): -np.log(MULTICLASS.score).mean(),
    ("regression", "mae"): theirs.mean_absolute_error(*NUMBERS),
    ("regression", "mse"): theirs.mean_squared_error(*NUMBERS),
    ("regression", "rmse"): theirs.root_mean_squared_error(*NUMBERS),
}


def test_every_metric_is_compared() -> None:
    """Those of ranks, of boxes and of forecasts have tests of their own."""
    ours = {(task, name) for task in GIVEN for name in TASKS[task].metrics}
    own_tests = {"ranking", "detection", "forecasting"}
    assert PUBLISHED.keys() == ours and {*GIVEN, *own_tests} == set(TASKS)


@pytest.mark.parametrize(("task", "name"), PUBLISHED)
def test_a_metric_is_scikit_learns(task: Task, name: str) -> None:
    """The value, and an interval around it that narrows with more units."""
    metric, given = TASKS[task].metrics[name], GIVEN[task]
    assert value(metric, given) == pytest.approx(PUBLISHED[task, name], abs=1e-12)
    full, part = estimate(metric, given), estimate(metric, given[:75])
    assert full.low < full.value < full.high and full.count == COUNT
    assert full.high - full.low < part.high - part.low
    assert estimate(metric, given) == full  # seeded


@pytest.mark.parametrize(
    ("name", "score"), [("auc", SCORE), ("f1", SAID), ("average_precision", SCORE), ("rmse", None)]
)
def test_a_draw_counts_a_row_as_often_as_it_was_drawn(
    name: str, score: NDArray[Any] | None
) -> None:
    """As scikit-learn does with weights."""
    task: Task = "regression" if score is None else "binary"
    of_all = TASKS[task].metrics[name].of_all
    assert of_all is not None
    times = np.random.default_rng(1).multinomial(COUNT, [1 / COUNT] * COUNT, 5).astype(float)
    scorers = {
        "auc": theirs.roc_auc_score,
        "f1": theirs.f1_score,
        "average_precision": theirs.average_precision_score,
        "rmse": theirs.root_mean_squared_error,
    }
    pair = NUMBERS if score is None else (TRUTH, score)
    expected = [scorers[name](*pair, sample_weight=weight) for weight in times]
    assert of_all(Draws(GIVEN[task], times)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("task", "name"), PUBLISHED)
def test_groups_are_drawn_whole(task: Task, name: str) -> None:
    """Every row ten times over is no more evidence: the interval is that of the rows."""
    metric, given = TASKS[task].metrics[name], GIVEN[task][:60]
    rows = np.repeat(np.arange(60), 10)
    alone, as_if, grouped = (
        estimate(metric, given),
        estimate(metric, given[rows]),
        estimate(metric, given[rows], groups=[f"g{row:02}" for row in rows]),
    )
    assert grouped.low == pytest.approx(alone.low) and grouped.high == pytest.approx(alone.high)
    assert as_if.high - as_if.low < 0.5 * (grouped.high - grouped.low)
    with pytest.raises(ValueError, match="groups"):
        estimate(metric, given, groups=["a"] * (FEWEST_GROUPS - 1) + ["b"] * (61 - FEWEST_GROUPS))


def test_what_is_not_defined_is_left_out() -> None:
    """The AUC of one label; a metric of nothing."""
    alone = BINARY[TRUTH == 1]
    assert "auc" not in estimates(OF_TWO, alone) and "f1" in estimates(OF_TWO, alone)
    with pytest.raises(ValueError, match="not defined"):
        estimate(TASKS["binary"].metrics["auc"], alone)
    rare = BINARY[np.r_[np.flatnonzero(TRUTH == 0), np.flatnonzero(TRUTH == 1)[:2]]]
    result = estimate(TASKS["binary"].metrics["auc"], rare)  # many draws have no "1"
    assert 0 <= result.low <= result.value <= result.high <= 1
    for task in GIVEN:
        with pytest.raises(ValueError):
            estimates(TASKS[task].metrics, GIVEN[task][:0])


@pytest.mark.parametrize(
    ("task", "row", "said"),
    [
        ("ranking", ("a", "a", 1, 0.5), ""),
        ("ranking", ("a", "b", 1, 0.5), "another"),
        ("ranking", ("a", "b", 0, 0.5), "rank 0"),
        ("binary", ("1", "0", 0, 0.5), ""),
        ("binary", ("1", "0", 2, 0.5), "expected 0 in a task without ranking"),
        ("binary", ("yes", "0", 0, 0.5), "expected 0 or 1"),
        ("binary", ("1", "0", 0, 1.5), "probability"),
        ("binary", ("1", "0", 0, float("nan")), "score nan"),
        ("multiclass", ("cat", "dog", 0, 0.4), ""),
        ("multiclass", ("cat", "dog", 0, 0.9), "'dog' was predicted"),
        ("regression", ("1.5", "-2e3", 0, 0.0), ""),
        ("regression", ("1.5", "nan", 0, 0.0), "finite"),
        ("regression", ("1.5", "much", 0, 0.0), "finite"),
        ("regression", ("1.5", "2", 0, float("inf")), "score inf"),
    ],
)
def test_a_row_is_an_answer_or_none(
    task: Task, row: tuple[str, str, int, float], said: str
) -> None:
    """What the row says of itself has to fit."""
    message = fault(task, *row)
    assert said in message and bool(message) is bool(said)


@pytest.mark.parametrize(
    ("task", "metric", "goal", "said"),
    [
        ("binary", "log_loss", "minimize", ""),
        ("binary", "log_loss", "maximize", "is to minimize"),
        ("binary", "auc", "maximize", ""),
        ("binary", "auk", "maximize", "not one of accuracy, log_loss, brier, auc"),
        ("ranking", "mean_rank", "maximize", "is to minimize"),
        ("regression", "accuracy", "maximize", "mae, mse"),
        ("clustering", "accuracy", "maximize", "not one of ranking"),
    ],
)
def test_the_primary_metric_is_one_of_the_task(
    task: str, metric: str, goal: str, said: str
) -> None:
    """And nobody turns the better way round."""
    message = wrong_primary(task, metric, goal)
    assert said in message and bool(message) is bool(said)


def test_everything_is_measured_at_once() -> None:
    """Splits, slices and how far they lie apart; a unit without a slice is in none."""
    shops = ["" if at < 40 else "ab"[at % 2] for at in range(COUNT)]
    rows = [
        Prediction(f"u{at}", split, {"shop": shop}, str(a), str(b), score=float(s))
        for split in ("validation", "test")
        for at, (shop, a, b, s) in enumerate(zip(shops, TRUTH, SAID, SCORE, strict=True))
    ]
    result = measure(OF_TWO, rows, "test")
    assert result.metrics["test"] == estimates(OF_TWO, BINARY) == result.metrics["validation"]
    own = np.arange(COUNT)
    sides = {name: BINARY[(own >= 40) & (own % 2 == at)] for at, name in enumerate("ab")}
    assert result.slices["shop"] == {name: estimates(OF_TWO, of) for name, of in sides.items()}
    disparity = result.fairness["shop"]["auc"]
    values = {name: value(TASKS["binary"].metrics["auc"], of) for name, of in sides.items()}
    assert disparity.difference == pytest.approx(abs(values["a"] - values["b"]))
    assert values[disparity.highest] > values[disparity.lowest] and disparity.slices == 2
    one_sided = [row if row.slices["shop"] != "a" else replace(row, expected="0") for row in rows]
    assert "auc" not in measure(OF_TWO, one_sided, "test").fairness["shop"]
    # Of a, there are ten groups and more; of b, nine.
    grouped = [
        replace(row, group=f"g{at % (9 if row.slices['shop'] == 'b' else 40)}")
        for at, row in enumerate(rows)
    ]
    assert measure(OF_TWO, grouped, "test").slices["shop"].keys() == {"a"}
