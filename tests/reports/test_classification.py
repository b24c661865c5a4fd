"""ROC, precision-recall and calibration of a classifier, against scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    confusion_matrix,
    precision_recall_curve,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from ml.measures.metrics import ScoredRows
from ml.release.promotion.propose import propose
from ml.reports.charts.classification import (
    POINTS,
    calibration,
    class_charts,
    classifier_charts,
    thresholds,
)
from ml.reports.formatting import number
from ml.reports.pages import report
from tests.local import BACKEND
from tests.release import tiny_classes
from tests.reports.html_page import Page

RANDOM = np.random.default_rng(3)
ONES = RANDOM.random(400) < 0.3
# Rounded, so that scores tie.
SCORES = np.round(np.clip(RANDOM.normal(0.35 + 0.3 * ONES, 0.2), 0, 1), 2)


def scored(ones: np.ndarray, scores: np.ndarray) -> ScoredRows:
    labels = np.where(ones, "1", "0")
    return ScoredRows(labels, labels, np.zeros(len(ones), dtype=np.int64), scores)


def test_the_curves_are_those_of_scikit_learn() -> None:
    """At every threshold, ties together."""
    at = thresholds(scored(ONES, SCORES))
    false_rate, recall, _ = roc_curve(ONES, SCORES, drop_intermediate=False)
    # scikit-learn begins at a threshold that nothing reaches.
    assert np.allclose(at.false_rate, false_rate[1:]) and np.allclose(at.recall, recall[1:])
    precision, recall, _ = precision_recall_curve(ONES, SCORES)
    # Here it has the lowest threshold first, and a last point without a threshold.
    assert np.allclose(at.precision, precision[-2::-1]) and np.allclose(at.recall, recall[-2::-1])
    assert at.share[-1] == 1 and np.all(np.diff(at.share) > 0)


def test_the_calibration_is_that_of_scikit_learn() -> None:
    """Ranges without a prediction are left out, and a probability of 1 is in the last."""
    # No score lies on a boundary, where the two put it in different ranges.
    scores = np.where(ONES, 0.913, 0.137) + RANDOM.random(400) / 50
    bins = calibration(scored(ONES, scores))
    observed, predicted = calibration_curve(ONES, scores, n_bins=10)
    assert np.allclose([row[:2] for row in bins], np.stack([predicted, observed], axis=1))
    assert sum(rows for *_, rows in bins) == 400
    assert calibration(scored(np.array([True]), np.array([1.0]))) == [(1.0, 1.0, 1)]


def test_the_charts_of_a_binary_classifier() -> None:
    """Their areas are in the captions; a long curve is thinned."""
    page = Page("".join(classifier_charts(scored(ONES, RANDOM.random(400)))))
    assert page.problems == []
    words = ("ROC", "AUC: 0.", "Average precision: 0.", "Calibration", "Gain")
    for title in (*words, "Lift in the top decile", "Confusion matrix"):
        assert title in page.text
    ours = [of for _, of in page.elements if "var(--ours)" in (of.get("fill"), of.get("stroke"))]
    assert len([of for of in ours if "r" in of]) == 10
    # The calibration has a dot on each of its points.
    lines = [1 + (of.get("d") or "").count("L") for of in ours if "d" in of]
    assert lines == [POINTS, POINTS, 10, POINTS, POINTS]


def test_what_was_taken_for_what() -> None:
    """Rows and the sums of a custom metric in each cell; the threshold in words."""
    taken = SCORES > 0.5
    labels, predicted = (np.where(of, "1", "0") for of in (ONES, taken))
    cost = np.where(ONES & ~taken, 250.0, np.where(taken & ~ONES, 5.0, 0.0))[:, None]
    own = {"cost": cost, "per_case": np.ones((400, 2))}
    given = ScoredRows(labels, predicted, np.zeros(400, dtype=np.int64), SCORES, own)
    page = Page("".join(classifier_charts(given)))
    table = confusion_matrix(ONES, taken)
    missed, wrong = int(table[1, 0]), int(table[0, 1])
    assert f"1 predicted as 0: {missed} rows, {missed / ONES.sum():.1%} of 1, cost" in page.text
    assert f"cost {number(250.0 * missed)}" in page.text
    assert f"cost {number(5.0 * wrong)}" in page.text and "per_case" not in page.text
    assert f"lowest score that is predicted positive is {number(SCORES[taken].min())}" in page.text
    turned = replace(given, predicted=np.where(taken, "0", "1"))
    assert "No single decision threshold" in Page("".join(classifier_charts(turned))).text


@pytest.mark.parametrize("ones", [[True, True], [False, False], []])
def test_a_single_label_has_no_curve(ones: list[bool]) -> None:
    """Neither rate is defined."""
    given = np.array(ones, dtype=bool)
    assert classifier_charts(scored(given, np.full(len(ones), 0.5))) == []


def test_each_class_against_the_rest() -> None:
    """The rates of scikit-learn at the predicted labels, and a dot a class in both charts."""
    expected, predicted = RANDOM.choice(["a", "b", "<c>"], (2, 300))
    predicted[predicted == "b"] = "a"  # one class is never predicted
    given = ScoredRows(expected, predicted, np.zeros(300, dtype=np.int64), np.full(300, 0.4))
    precision, recall, *_ = precision_recall_fscore_support(expected, predicted, zero_division=0)
    page = Page("".join(class_charts(given, {})))
    assert page.problems == []
    # A dot in both charts, and no line.
    assert len(page.trials("ours")) == 6
    for label, its, exact in zip(("<c>", "a", "b"), recall, precision, strict=True):
        wrong = 1 - recall_score(expected != label, predicted != label)
        words = f"{label}: recall {number(its)}, precision {number(exact)}, false positive rate"
        assert page.text.count(f"{words} {number(wrong)}") == 2
    assert "<c> predicted as a: " in page.text
    assert class_charts(given[expected == "a"], {}) == []


def test_the_curves_of_each_class_against_the_rest() -> None:
    """Of the most frequent classes; their areas are scikit-learn's."""
    labels = [*"abcdefg", "<h>"]
    expected = RANDOM.choice(labels, 400, p=[0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])
    table = RANDOM.dirichlet(np.ones(8), 400) + 0.3 * (expected[:, None] == labels)
    table /= table.sum(axis=1, keepdims=True)
    probabilities = dict(zip(labels, table.T, strict=True))
    given = ScoredRows(expected, expected, np.zeros(400, dtype=np.int64), table.max(axis=1))
    page = Page("".join(class_charts(given, probabilities)))
    assert page.problems == []
    assert page.text.count("the 6 most frequent of 8 classes") == 3
    area = roc_auc_score(expected == "a", table[:, 0])
    assert f"a: AUC {area:.4f}" in page.text
    assert f"a: {(expected == 'a').sum()} rows" in page.text
    # Three lines, and the dots of the calibration.
    assert [len(page.trials(f"class{at}")) > 3 for at in (1, 6, 7)] == [True, True, False]
    two = {label: probabilities[label] for label in ("a", "<h>")}
    page = Page("".join(class_charts(given, two)))
    assert "One-vs-rest for 2 classes." in page.text and "<h>: AUC" in page.text


@pytest.mark.slow
def test_the_page_of_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The charts of the split that took no part in training, and its distance to the baseline."""
    project = tiny_classes.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = project.train(0.8)
    propose(BACKEND, "tiny", run.name)
    html = report(run, BACKEND).html
    page = Page(html)
    assert page.problems == []
    assert "Classification on test ROC" in page.text
    assert "standard deviation of log_loss over 2 seeds" in page.text
    assert "times that standard deviation" not in page.text
    assert "log_loss lower is better" in page.text
