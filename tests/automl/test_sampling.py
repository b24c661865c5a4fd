"""Rare classes: rows and weights of training, and probabilities that are as often right as said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml.automl import calibration
from ml.automl.ensembles import OutOfFoldPredictions
from ml.automl.models import sampling
from ml.automl.models.estimators import Numbers
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.members import Members, calibrated
from tests.automl.conftest import people, write
from tests.automl.test_trial import of_family

Fit = Callable[..., tuple[Path, dict[str, float]]]


def numbers(rare: int = 60, weights: Any = None) -> Numbers:
    """600 rows of a number, one with missing values, and a category."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(600, 3)).astype(np.float32)
    table[:, 2] = draw.integers(0, 4, 600)
    table[::7, 1] = np.nan
    table[::11, 2] = np.nan
    labels = (np.arange(600) < rare).astype(np.int64)
    return Numbers(table, labels, weights, "binary", 2, (2,))


def test_rows_of_a_frequent_class_are_left_out() -> None:
    """Their weights too; the others stay as they were."""
    before = numbers(weights=np.arange(600.0))
    after = sampling.balanced(before, "under", 0)
    assert np.bincount(after.labels).tolist() == [201, 60]
    assert after.weights is not None and after.weights[after.labels == 1].tolist() == [*range(60)]
    np.testing.assert_array_equal(after.table[after.labels == 1], before.table[:60])
    assert sampling.balanced(numbers(300), "under", 0).labels.sum() == 300


def test_rows_of_a_rare_class_are_made() -> None:
    """Between neighbours of their class, below the others; a category is one of theirs."""
    before = numbers()
    after = sampling.balanced(before, "smote", 0)
    np.testing.assert_array_equal(after.table[:600], before.table)
    made = after.table[600:]
    assert len(made) == int(540 * sampling.MADE) - 60 and after.labels[600:].all()
    rare = before.table[:60]
    assert made[:, 0].min() >= rare[:, 0].min() and made[:, 0].max() <= rare[:, 0].max()
    assert {*made[~np.isnan(made[:, 2]), 2]} <= {0, 1, 2, 3}


@pytest.mark.parametrize("balance", ["none", "under", "smote", "classes"])
def test_what_nothing_is_made_of(balance: str) -> None:
    """A class of too few rows for neighbours, or as many as the others, stays as it is."""
    for before in (numbers(4), numbers(300)):
        after = sampling.balanced(before, balance, 0)
        if balance != "under":
            assert len(after.labels) == 600
        assert after.labels.sum() == before.labels.sum()


@pytest.mark.parametrize("balance", ["under", "smote", "classes"])
@pytest.mark.parametrize("name", ["light_gbm", "logistic_regression", "xg_boost_classifier"])
def test_probabilities_are_calibrated_again(
    tmp_path: Path, fit: Fit, balance: str, name: str
) -> None:
    """Of rows that were weighed or drawn otherwise a model says too much: the mean probability is
    the share of the class again, and what serves says the same.
    """
    rows = people(4000)
    draw = np.random.default_rng(0)
    rows = [row for row in rows if row["churn"] == "No" or draw.uniform() < 0.08]
    table = write(tmp_path / "table", rows)
    settings = of_family(name, "classification") | {"n_estimators": 40, "balance": balance}
    if name == "logistic_regression":
        settings.pop("n_estimators")
    folder, _ = fit(table, name, settings, n_cross_validations=3)
    document = json.loads((folder / "members.json").read_text())
    assert document["members"][0]["calibration"]["kind"] in ("sigmoid", "isotonic")
    facts = json.loads((folder / "settings.json").read_text())["automl"]
    assert "log loss" in facts["notes"]["calibration"]
    columns = Columns.load(folder, lambda row: row)
    stated = [[row[name] or None for name in columns.columns] for row in rows]
    answers = Members(folder).predict(columns.matrix(columns.read([*columns.columns], stated)))
    share = float(np.mean([row["churn"] == "Yes" for row in rows]))
    assert abs(answers.mean() - share) < 0.04
    # The answers that ensembles and metrics are made of are corrected by those of other folds.
    with np.load(folder.parent / "predictions" / "out_of_fold.npz") as saved:
        held_out = np.concatenate([saved[of] for of in saved.files if of.startswith("values")])
    assert abs(held_out.mean() - share) < 0.04


@pytest.mark.parametrize(("count", "kind"), [(900, "sigmoid"), (300, "")])
@pytest.mark.parametrize("balance", ["under", "classes"])
def test_few_rows_have_their_share_of_a_rare_class(
    tmp_path: Path, fit: Fit, count: int, kind: str, balance: str
) -> None:
    """Of a tenth of 900 rows by ten folds; where too few are rare nothing is balanced, and the
    leaderboard says so.
    """
    draw = np.random.default_rng(0)
    rows = [
        {"x": round(float(draw.normal(at % 10 == 0)), 3), "churn": "No" if at % 10 else "Yes"}
        for at in range(count)
    ]
    settings = of_family("logistic_regression", "classification") | {"balance": balance}
    folder, _ = fit(write(tmp_path / "table", rows), "logistic_regression", settings)
    columns = Columns.load(folder, lambda row: row)
    values = columns.read(["x"], [[row["x"]] for row in rows])
    assert abs(Members(folder).predict(columns.matrix(values)).mean() - 0.1) < 0.02
    document = json.loads((folder / "members.json").read_text())
    assert document["members"][0].get("calibration", {"kind": ""})["kind"] == kind
    notes = json.loads((folder / "settings.json").read_text())["automl"]["notes"]
    expected = f"`{balance}` not applied: calibration needs"
    assert notes.get("balance", "").startswith("" if kind else expected)
    assert ("balance" in notes) == (not kind)


def test_several_classes_are_calibrated_as_they_are_served(tmp_path: Path, fit: Fit) -> None:
    """Where rare ones were weighted each has its share again, and what serves says the same."""
    draw = np.random.default_rng(0)
    rows = [
        row
        for row in people(3000, classes=("a", "b", "c"))
        if row["churn"] != "c" or draw.uniform() < 0.2
    ]
    table = write(tmp_path / "table", rows)
    settings = of_family("logistic_regression", "classification") | {"balance": "classes"}
    folder, _ = fit(
        table, "logistic_regression", settings, n_cross_validations=3, metric="accuracy"
    )
    document = json.loads((folder / "members.json").read_text())
    found = document["members"][0]["calibration"]
    assert found["kind"] == "sigmoid" and len(found["slope"]) == len(found["intercept"]) == 3
    columns = Columns.load(folder, lambda row: row)
    stated = [[row[name] or None for name in columns.columns] for row in rows]
    numbers_of = columns.matrix(columns.read([*columns.columns], stated))
    answers = Members(folder).predict(numbers_of)
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-12)
    shares = [float(np.mean([row["churn"] == of for row in rows])) for of in columns.classes]
    np.testing.assert_allclose(answers.mean(axis=0), shares, atol=0.02)
    del document["members"][0]["calibration"]
    (folder / "members.json").write_text(json.dumps(document))
    plain = Members(folder).predict(numbers_of)
    assert abs(plain.mean(axis=0) - shares).max() > 0.05
    np.testing.assert_array_equal(calibrated(found, plain), answers)


def answers_of(power: float, count: int = 3000) -> OutOfFoldPredictions:
    """Of three folds: true probabilities, their odds raised to a power."""
    draw = np.random.default_rng(0)
    truth = draw.uniform(0.02, 0.98, count)
    labels = (draw.uniform(size=count) < truth).astype(np.int64)
    odds = (truth / (1 - truth)) ** power
    rows = [np.arange(of, count, 3) for of in range(3)]
    return OutOfFoldPredictions(rows, [(odds / (1 + odds))[of] for of in rows], labels)


def test_a_calibration_is_taken_where_it_helps() -> None:
    """Of answers that say too much; not of those that are right, nor of few rows."""
    found, corrected, sentence = calibration.calibrate(answers_of(3.0), lambda of: 1.0, 0)
    assert found is not None and "before" in sentence
    (scores, labels) = corrected.all
    assert abs(scores[labels == 1].mean() - answers_of(1.0).all[0][labels == 1].mean()) < 0.02
    assert calibration.calibrate(answers_of(1.0), lambda of: 1.0, 0)[0] is None
    assert calibration.calibrate(answers_of(3.0, 60), lambda of: 1.0, 0)[0] is None
    values = iter([1.0, 0.9, 0.9])
    assert calibration.calibrate(answers_of(3.0), lambda of: next(values), 0)[0] is None


def test_rows_are_calibrated_by_their_weights(tmp_path: Path, fit: Fit) -> None:
    """Of a table with `weight_column_name` the mean probability is the share by weight."""
    draw = np.random.default_rng(0)
    rows = []
    for at in range(1500):
        is_yes = at % 2 == 0
        x = round(float(draw.normal(0.8 * is_yes)), 3)
        weight = 0.05 if is_yes else 1.0
        rows.append({"x": x, "w": weight, "churn": "Yes" if is_yes else "No"})
    weights = np.array([row["w"] for row in rows])
    share = float(weights[::2].sum() / weights.sum())
    job = {"weight_column_name": "w", "n_cross_validations": 3}
    for balance in ("none", "classes"):
        settings = {**of_family("light_gbm", "classification"), "balance": balance}
        folder, _ = fit(write(tmp_path / balance, rows), "light_gbm", settings, **job)
        columns = Columns.load(folder, lambda row: row)
        values = columns.read([*columns.columns], [[row["x"]] for row in rows])
        answers = Members(folder).predict(columns.matrix(values))
        assert abs(np.average(answers, weights=weights) - share) < 0.01


@pytest.mark.parametrize("power", [1.0, 3.0])
def test_a_weight_counts_as_that_many_rows(power: float) -> None:
    """Rows without weight do not count at all, not even as the rows of a class."""
    of = answers_of(power, 1200)
    times = np.arange(1200) % 3
    weighed = calibration.calibrate(of, lambda _: 1.0, 0, times.astype(np.float64))
    rows = [np.repeat(rows, times[rows]) for rows in of.rows]
    values = [np.repeat(at, times[rows]) for at, rows in zip(of.values, of.rows, strict=True)]
    repeated = calibration.calibrate(
        OutOfFoldPredictions(rows, values, of.labels), lambda _: 1.0, 0
    )
    assert (weighed[0] is None) == (repeated[0] is None) == (power == 1.0)
    if weighed[0] and repeated[0]:
        grid = np.linspace(0.02, 0.98, 50)
        np.testing.assert_allclose(
            calibrated(weighed[0], grid), calibrated(repeated[0], grid), atol=1e-3
        )
    nothing = np.where(of.labels == 1, 0.0, 1.0)
    assert calibration.calibrate(of, lambda _: 1.0, 0, nothing)[0] is None


def test_answers_by_other_seeds_are_no_more_rows() -> None:
    """Neither of the rarest class nor of those that a curve needs."""

    def three_times(count: int) -> OutOfFoldPredictions:
        of = answers_of(3.0, count)
        scores, labels = of.all
        place = np.argsort(np.concatenate(of.rows))
        return OutOfFoldPredictions([np.arange(count)] * 3, [scores[place]] * 3, labels[place])

    few = three_times(80)
    assert 3 * min(np.bincount(few.labels)) > calibration.FEWEST > min(np.bincount(few.labels))
    assert calibration.calibrate(few, lambda of: 1.0, 0)[0] is None
    asked = []
    calibration.calibrate(three_times(500), lambda of: asked.append(of) or 1.0, 0)
    assert len(asked) == 2  # before, and of the sigmoid alone
    calibration.calibrate(three_times(1200), lambda of: asked.append(of) or 1.0, 0)
    assert len(asked) > 3


def test_what_is_saved_is_scikit_learns() -> None:
    """The numbers of the two kinds answer as the objects of the library do."""
    from sklearn.isotonic import IsotonicRegression

    scores, labels = answers_of(3.0).all
    weights = np.ones(len(labels))
    ours = calibrated(calibration.isotonic(scores, labels, weights), np.linspace(0, 1, 500))
    theirs = IsotonicRegression(y_min=1e-4, y_max=1 - 1e-4, out_of_bounds="clip")
    expected = theirs.fit(scores, labels).predict(np.linspace(0, 1, 500))
    np.testing.assert_allclose(ours, expected, atol=1e-9)
    found = calibration.sigmoid(scores, labels, weights)
    assert found["slope"] == [pytest.approx(1 / 3, abs=0.03)]
    with pytest.raises(ValueError, match="kind other"):
        calibrated({"kind": "other"}, scores)
