"""ROC, precision-recall and calibration of a classifier, against scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    precision_recall_curve,
    precision_recall_fscore_support,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from ml.release.promotion.propose import propose
from ml.reports.charts.classification import (
    POINTS,
    calibration,
    class_charts,
    class_rates,
    classifier_charts,
    threshold_curves,
)
from ml.reports.pages import report
from ml.toolkit.metrics import Answers
from tests.local import BACKEND
from tests.release import tiny_classes
from tests.reports.html_page import Page

RANDOM = np.random.default_rng(3)
ONES = RANDOM.random(400) < 0.3
# Rounded, so that scores tie.
SCORES = np.round(np.clip(RANDOM.normal(0.35 + 0.3 * ONES, 0.2), 0, 1), 2)


def answers(ones: np.ndarray, scores: np.ndarray) -> Answers:
    labels = np.where(ones, "1", "0")
    return Answers(labels, labels, np.zeros(len(ones), dtype=np.int64), scores)


def test_the_curves_are_those_of_scikit_learn() -> None:
    """At every threshold, ties together."""
    roc, precision_recall = threshold_curves(ONES, SCORES)
    false_rate, recall, _ = roc_curve(ONES, SCORES, drop_intermediate=False)
    assert np.allclose(roc, np.stack([false_rate, recall], axis=1))
    precision, recall, _ = precision_recall_curve(ONES, SCORES)
    # scikit-learn has the lowest threshold first, and a last point without a threshold.
    expected = np.stack([recall, precision], axis=1)[:-1][::-1]
    assert np.allclose(precision_recall, expected)


def test_the_calibration_is_that_of_scikit_learn() -> None:
    """Ranges without a prediction are left out, and a probability of 1 is in the last."""
    # No score lies on a boundary, where the two put it in different ranges.
    scores = np.where(ONES, 0.913, 0.137) + RANDOM.random(400) / 50
    bins = calibration(ONES, scores)
    observed, predicted = calibration_curve(ONES, scores, n_bins=10)
    assert np.allclose([row[:2] for row in bins], np.stack([predicted, observed], axis=1))
    assert sum(rows for *_, rows in bins) == 400
    assert calibration(np.array([True]), np.array([1.0])) == [(1.0, 1.0, 1)]


def test_three_charts() -> None:
    """Their areas are in the captions; a long curve is thinned."""
    page = Page("".join(classifier_charts(answers(ONES, RANDOM.random(400)))))
    assert page.problems == []
    for words in ("ROC", "Area under the curve: 0.", "Average precision: 0.", "Calibration"):
        assert words in page.text
    assert page.count("circle", "ours") == 10
    lines = [of["points"] for name, of in page.elements if of.get("class") == "line ours"]
    assert [len((line or "").split()) for line in lines] == [POINTS, POINTS, 10]


@pytest.mark.parametrize("ones", [[True, True], [False, False], []])
def test_a_single_label_has_no_curve(ones: list[bool]) -> None:
    """Neither rate is defined."""
    given = np.array(ones, dtype=bool)
    assert classifier_charts(answers(given, np.full(len(ones), 0.5))) == []


def test_each_class_against_the_rest() -> None:
    """The rates of scikit-learn at the predicted labels, and a dot a class in both charts."""
    expected, predicted = RANDOM.choice(["a", "b", "<c>"], (2, 300))
    predicted[predicted == "b"] = "a"  # one class is never predicted
    given = Answers(expected, predicted, np.zeros(300, dtype=np.int64), np.full(300, 0.4))
    precision, recall, *_ = precision_recall_fscore_support(expected, predicted, zero_division=0)
    rates = class_rates(given)
    assert [row[0] for row in rates] == ["<c>", "a", "b"]
    assert np.allclose([row[2] for row in rates], recall)
    assert np.allclose([row[3] for row in rates], precision)
    false_rates = [1 - recall_score(expected != row[0], predicted != row[0]) for row in rates]
    assert np.allclose([row[1] for row in rates], false_rates)
    page = Page("".join(class_charts(given, {})))
    assert page.problems == []
    assert page.count("circle", "ours") == 6
    assert page.count("polyline", "line") == 0
    assert class_charts(given[expected == "a"], {}) == []


def test_the_curves_of_each_class_against_the_rest() -> None:
    """Of the most frequent classes; their areas are scikit-learn's."""
    labels = [*"abcdefg", "<h>"]
    expected = RANDOM.choice(labels, 400, p=[0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])
    table = RANDOM.dirichlet(np.ones(8), 400) + 0.3 * (expected[:, None] == labels)
    table /= table.sum(axis=1, keepdims=True)
    probabilities = dict(zip(labels, table.T, strict=True))
    given = Answers(expected, expected, np.zeros(400, dtype=np.int64), table.max(axis=1))
    page = Page("".join(class_charts(given, probabilities)))
    assert page.problems == []
    assert page.text.count("The 6 most frequent of 8 classes") == 3
    area = roc_auc_score(expected == "a", table[:, 0])
    assert f"a: area {area:.4f}" in page.text
    assert f"a: {(expected == 'a').sum()} rows" in page.text
    assert [page.count("polyline", f"class{at}") for at in (1, 6, 7)] == [3, 3, 0]
    assert page.count("circle", "class1") > 2
    two = {label: probabilities[label] for label in ("a", "<h>")}
    page = Page("".join(class_charts(given, two)))
    assert "Each of 2 classes against the rest." in page.text and "<h>: area" in page.text


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
    assert "times that standard deviation" in page.text
