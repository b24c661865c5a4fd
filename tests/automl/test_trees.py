"""The number of boosted trees: chosen by rows that neither fit them nor score them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.automl.models import families, trees
from ml.automl.models.estimators import Numbers
from tests.automl.conftest import people, write

Fit = Callable[..., tuple[Path, dict[str, float]]]
BOOSTED = ["light_gbm", "xg_boost_classifier"]


@dataclass
class Curve:
    """A fold whose rows like this number of trees best."""

    best: int
    trees: int = 0

    def add(self) -> float:
        self.trees += 1
        return -abs(self.trees - self.best)

    def cut(self, trees: int) -> int:
        return trees


def test_the_rows_of_a_fold_do_not_count_its_trees() -> None:
    """Whatever they say, the number is that of the others; all of them count for all rows."""
    for own in (1, 40, 70, 400):
        (count, *_), _ = trees.grow([Curve(own), Curve(40), Curve(60)], 500, 30)
        assert 40 <= count <= 60
    counts, of_all = trees.grow([Curve(30), Curve(40), Curve(50)], 500, 30)
    assert of_all == 40 and all(30 <= of <= 50 for of in counts)
    (alone,), of_all = trees.grow([Curve(25)], 500, 30)
    assert alone == of_all == 25


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_fold_that_is_judged_by_chance_gains_nothing(noise: float) -> None:
    """By its own rows the best of so many numbers would look better than it is."""
    draw = np.random.default_rng(0)
    gained = []

    class Chance:
        def __init__(self) -> None:
            self.values: list[float] = []

        def add(self) -> float:
            self.values.append(float(noise * draw.normal()))
            return self.values[-1]

        def cut(self, trees: int) -> None: ...

    for _ in range(200):
        folds = [Chance(), Chance(), Chance()]
        counts, _ = trees.grow(folds, 30, 10)
        gained += [of.values[count - 1] for of, count in zip(folds, counts, strict=True)]
    assert abs(np.mean(gained)) < 0.15


def test_trees_end_with_the_time_and_at_the_most() -> None:
    curve = Curve(10_000)
    assert trees.grow([curve], 50, 10) == ([50], 50)
    assert trees.grow([Curve(10_000)], 10_000, 10, seconds=0.0) == ([1], 1)


def test_trees_say_most_of_what_they_could() -> None:
    """One that is best after the first tree has more of them, and none beyond the time."""
    assert trees.grow([Curve(1), Curve(1)], 200, 10, fewest=20) == ([20, 20], 20)
    assert trees.grow([Curve(50), Curve(50)], 200, 10, fewest=20) == ([50, 50], 50)
    assert trees.grow([Curve(1)], 200, 10, seconds=0.0, fewest=20) == ([1], 1)
    assert (trees.fewest(0.1), trees.fewest(0.3)) == (20, 7)


def test_a_fold_without_an_answer_counts_as_the_worst_of_none() -> None:
    """A metric that is not defined on the rows of one fold leaves the choice to the others."""

    class Undefined(Curve):
        def add(self) -> float:
            return float("nan")

    counts, of_all = trees.grow([Undefined(1), Curve(20), Curve(20)], 100, 10)
    assert counts[0] == of_all == 20


@pytest.mark.parametrize("name", BOOSTED)
@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("binary", "AUC_weighted"),
        ("binary", "average_precision_score_weighted"),
        ("binary", "accuracy"),
        ("multiclass", "AUC_weighted"),
        ("regression", "normalized_mean_absolute_error"),
        ("regression", "r2_score"),
    ],
)
def test_a_number_that_was_chosen_is_what_a_fit_of_it_gives(
    name: str, task: Any, metric: str
) -> None:
    """Cut after some trees a grown model answers as one fitted with that many."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(300, 4)).astype(np.float32)
    table[:, 3] = draw.integers(0, 5, 300)
    labels = table[:, 0] + draw.normal(size=300)
    if task != "regression":
        labels = np.digitize(labels, [0.0] if task == "binary" else [-0.5, 0.5])
    classes = 0 if task == "regression" else len({*labels})
    numbers = Numbers(table[:200], labels[:200], None, task, classes, [3])
    early_stopping = replace(numbers, table=table[200:], labels=labels[200:])
    named = "xg_boost_regressor" if task == "regression" and name.startswith("xg") else name
    family = families.of_task("regression" if task == "regression" else "classification")[named]
    settings = {"learning_rate": 0.3, "subsample": 0.8}
    assert family.grow is not None
    growing = family.grow(numbers, early_stopping, metric, settings, 0)
    (count,), _ = trees.grow([growing], 80, 20)
    assert count < 80
    grown = growing.cut(count).predict(table)
    fitted = family.fit(numbers, {**settings, "n_estimators": count}, 0).predict(table)
    np.testing.assert_allclose(grown, fitted, rtol=1e-6)


@pytest.mark.parametrize("name", BOOSTED)
@pytest.mark.parametrize(
    "job",
    [{"n_cross_validations": 3}, {"validation_data_size": 0.25}],
    ids=["folds", "one set of rows"],
)
def test_trees_are_added_while_they_help(
    tmp_path: Path, fit: Fit, name: str, job: dict[str, Any]
) -> None:
    """By the loss, where the metric is one of steps: a slow rate takes more than a fast one."""
    table = write(tmp_path / "table", people(400))
    counts = []
    for rate in (0.3, 0.02):
        folder, metrics = fit(table, name, {"learning_rate": rate}, metric="accuracy", **job)
        assert metrics["AUC_weighted"] > 0.75
        facts = json.loads((folder / "settings.json").read_text())["automl"]
        counts.append(facts["notes"]["trees"])
    fast, slow = (int(of.split()[0]) for of in counts)
    assert 0 < fast < slow <= trees.MOST


def test_rare_classes_that_were_made_count_as_much_among_the_rows_that_watch() -> None:
    labels = np.array([0] * 60 + [1] * 40)
    made = Numbers(np.zeros((100, 1), np.float32), labels, None, "binary", 2)
    early_stopping = replace(made, table=made.table[:50], labels=np.array([0] * 45 + [1] * 5))
    weights = early_stopping.weights_like(made)
    assert weights is not None
    sums = [weights[early_stopping.labels == of].sum() for of in (0, 1)]
    assert sums == pytest.approx([60, 40])
