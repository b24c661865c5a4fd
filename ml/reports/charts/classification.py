"""Charts of a classifier, from its predictions: ROC, precision and recall, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.charts.scales import Linear
from ml.reports.formatting import number
from ml.toolkit.metrics import Values
from ml.toolkit.tasks import METRICS, Answers, value

# A square chart, and the most points of a curve.
LEFT, RIGHT, TOP, BOTTOM, HEIGHT, POINTS = 50.0, 430.0, 34.0, 334.0, 380.0, 200
# Predictions are grouped into so many ranges of probability of equal width.
BINS = 10
Points = Sequence[tuple[float, float]]


def classifier_charts(answers: Answers) -> list[Markup]:
    """The charts of binary answers; none where only one label occurs."""
    ones = answers.expected == "1"
    if not 0 < ones.sum() < len(ones):
        return []
    share = float(ones.mean())
    auc, precision = (
        number(value(METRICS["binary"][name], answers)) for name in ("auc", "average_precision")
    )
    roc, precision_recall = threshold_curves(ones, answers.score)
    bins = calibration(ones, answers.score)
    return [
        _chart(
            "ROC",
            ("false positive rate", "true positive rate"),
            roc,
            [(0.0, 0.0), (1.0, 1.0)],
            f"Area under the curve: {auc}. Grey: a random order.",
        ),
        _chart(
            "Precision and recall",
            ("recall", "precision"),
            precision_recall,
            [(0.0, share), (1.0, share)],
            f"Average precision: {precision}. Grey: a random order, {share:.1%} of label 1.",
        ),
        _chart(
            "Calibration",
            ("mean predicted probability", "share of label 1"),
            [(predicted, observed) for predicted, observed, _ in bins],
            [(0.0, 0.0), (1.0, 1.0)],
            f"Predictions in {BINS} ranges of equal width; empty ranges are left out. "
            "Grey: perfect calibration.",
            [f"{number(observed)} of {rows:,} predictions" for _, observed, rows in bins],
        ),
    ]


def class_charts(answers: Answers) -> list[Markup]:
    """Each class of multiclass answers against the rest, as a dot at the predicted labels.

    predictions.csv has the probability of the right label only: there is no other threshold.
    """
    rates = class_rates(answers)
    if not rates:
        return []
    words = [
        f"{label}: recall {number(recall)}, precision {number(precision)}, false positive rate "
        f"{number(false_rate)}"
        for label, false_rate, recall, precision in rates
    ]
    note = f"A dot for each of {len(rates)} classes against the rest, at the predicted labels."
    return [
        _chart(
            "ROC",
            ("false positive rate", "true positive rate"),
            [(false_rate, recall) for _, false_rate, recall, _ in rates],
            [(0.0, 0.0), (1.0, 1.0)],
            f"{note} Grey: a random order.",
            words,
            is_curve=False,
        ),
        _chart(
            "Precision and recall",
            ("recall", "precision"),
            [(recall, precision) for _, _, recall, precision in rates],
            None,
            note,
            words,
            is_curve=False,
        ),
    ]


def class_rates(answers: Answers) -> list[tuple[str, float, float, float]]:
    """(class, false positive rate, recall, precision) of each class that some units have; the
    precision of a class that is never predicted is 0.
    """
    rates = []
    labels = [str(label) for label in np.unique(answers.expected)]
    for label in labels if len(labels) > 1 else []:
        right, predicted = answers.expected == label, answers.predicted == label
        hits = float((right & predicted).sum())
        false_rate = float((predicted & ~right).sum() / (~right).sum())
        precision = hits / max(1.0, float(predicted.sum()))
        rates.append((label, false_rate, hits / float(right.sum()), precision))
    return rates


def threshold_curves(ones: Values, score: Values) -> tuple[Points, Points]:
    """(false positive rate, recall) and (recall, precision) at each distinct score, the highest
    first. Both labels must occur.
    """
    order = np.argsort(-score, kind="stable")
    last_of_score = np.flatnonzero(np.diff(score[order], append=-1.0))
    found = np.cumsum(ones[order])[last_of_score]
    recall = found / ones.sum()
    false_rate = (last_of_score + 1 - found) / (len(ones) - ones.sum())
    roc = [(0.0, 0.0), *zip(false_rate.tolist(), recall.tolist(), strict=True)]
    precision = found / (last_of_score + 1)
    return roc, list(zip(recall.tolist(), precision.tolist(), strict=True))


def calibration(ones: Values, score: Values) -> list[tuple[float, float, int]]:
    """(mean predicted probability, share of label 1, predictions) of each range that has some."""
    of_bin = np.minimum((score * BINS).astype(int), BINS - 1)
    inside = [of_bin == number_of_bin for number_of_bin in range(BINS)]
    return [
        (float(score[rows].mean()), float(ones[rows].mean()), int(rows.sum()))
        for rows in inside
        if rows.any()
    ]


def _chart(
    title: str,
    axes: tuple[str, str],
    points: Points,
    reference: Points | None,
    caption: str,
    tooltips: Sequence[str] = (),
    is_curve: bool = True,
) -> Markup:
    """Points from 0 to 1 on both axes, connected if they are a curve, a dot for each tooltip."""
    x, y = Linear(0.0, 1.0, LEFT, RIGHT), Linear(0.0, 1.0, BOTTOM, TOP)
    lines = [(reference, "span baseline")] if reference else []
    if is_curve:
        lines.append(([points[at] for at in svg.evenly(range(len(points)), POINTS)], "line"))
    marks = [
        svg.left_axis(y, LEFT, RIGHT, axes[1], TOP),
        svg.bottom_axis(x, BOTTOM, axes[0], RIGHT),
        *(svg.polyline([(x(across), y(up)) for across, up in of], kind) for of, kind in lines),
        *(
            svg.tag("circle", svg.tooltip(words), cx=x(across), cy=y(up), r=4.0, class_="dot ours")
            for (across, up), words in zip(points, tooltips, strict=False)
        ),
    ]
    return svg.figure(title, RIGHT + 20, HEIGHT, marks, caption)
