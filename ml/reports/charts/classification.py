"""Charts of a classifier, from its predictions: ROC, precision and recall, calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from markupsafe import Markup

from ml.reports.charts import svg
from ml.reports.charts.scales import Linear
from ml.reports.formatting import number
from ml.toolkit.bootstrap import Values
from ml.toolkit.metrics import METRICS, Answers, value

# A square chart, and the most points of a curve.
LEFT, RIGHT, TOP, BOTTOM, HEIGHT, POINTS = 50.0, 430.0, 34.0, 334.0, 380.0, 200
# Predictions are grouped into so many ranges of probability of equal width.
BINS = 10
# The share of "1" among fewer predictions is chance.
FEWEST = 10
# The most classes with curves of their own: page.css has as many colours.
CURVES = 6
Points = Sequence[tuple[float, float]]
_ROC = ("ROC", ("false positive rate", "true positive rate"))
_PRECISION_RECALL = ("Precision and recall", ("recall", "precision"))
_DIAGONAL = [(0.0, 0.0), (1.0, 1.0)]
_BINS = f"Predictions in {BINS} ranges of equal width; those with fewer than {FEWEST} are left out."


@dataclass(frozen=True)
class Series:
    """Points from 0 to 1 on both axes in the colour of their class of marks: a line, with a dot for
    each of the `tooltips`.
    """

    kind: str
    points: Points
    tooltips: Sequence[str] = ()
    is_line: bool = True


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
    return [
        _chart(
            *_ROC,
            [Series("ours", roc)],
            _DIAGONAL,
            f"Area under the curve: {auc}. Grey: a random order.",
        ),
        _chart(
            *_PRECISION_RECALL,
            [Series("ours", precision_recall)],
            [(0.0, share), (1.0, share)],
            f"Average precision: {precision}. Grey: a random order, {share:.1%} of label 1.",
        ),
        _chart(
            "Calibration",
            ("mean predicted probability", "share of label 1"),
            [_calibration_series("ours", ones, answers.score)],
            _DIAGONAL,
            f"{_BINS} Grey: perfect calibration.",
        ),
    ]


def class_charts(answers: Answers, probabilities: Mapping[str, Values]) -> list[Markup]:
    """Each class of multiclass answers against the rest: curves of the most frequent classes where
    predictions.csv has the probability of each, else a dot a class at the predicted labels. None
    where only one label occurs.
    """
    rates = class_rates(answers)
    if not rates:
        return []
    counts = Counter(label for label in answers.expected.tolist() if label in probabilities)
    if len(counts) < 2:
        return _class_dots(rates)
    meanings: tuple[dict[str, str], ...] = ({}, {}, {})
    curves: tuple[list[Series], ...] = ([], [], [])
    for at, (label, count) in enumerate(counts.most_common(CURVES), 1):
        ones, score, kind = answers.expected == label, probabilities[label], f"class{at}"
        against_rest = replace(answers, expected=np.where(ones, "1", "0"), score=score)
        auc, precision = (
            number(value(METRICS["binary"][name], against_rest))
            for name in ("auc", "average_precision")
        )
        meanings[0][kind] = f"{label}: area {auc}"
        meanings[1][kind] = f"{label}: average precision {precision}"
        meanings[2][kind] = f"{label}: {count:,} rows"
        roc, precision_recall = threshold_curves(ones, score)
        curves[0].append(Series(kind, roc))
        curves[1].append(Series(kind, precision_recall))
        curves[2].append(_calibration_series(kind, ones, score))
    note = f"Each of {len(counts)} classes against the rest."
    if len(counts) > CURVES:
        note = f"The {CURVES} most frequent of {len(counts)} classes, each against the rest."
    return [
        _chart(*_ROC, curves[0], _DIAGONAL, f"{note} Grey: a random order.", meanings[0]),
        _chart(*_PRECISION_RECALL, curves[1], None, note, meanings[1]),
        _chart(
            "Calibration",
            ("mean predicted probability", "share of the class"),
            curves[2],
            _DIAGONAL,
            f"{note} {_BINS} Grey: perfect calibration.",
            meanings[2],
        ),
    ]


def _class_dots(rates: Sequence[tuple[str, float, float, float]]) -> list[Markup]:
    words = [
        f"{label}: recall {number(recall)}, precision {number(precision)}, false positive rate "
        f"{number(false_rate)}"
        for label, false_rate, recall, precision in rates
    ]
    note = f"A dot for each of {len(rates)} classes against the rest, at the predicted labels."
    roc = [(false_rate, recall) for _, false_rate, recall, _ in rates]
    precision_recall = [(recall, precision) for _, _, recall, precision in rates]
    return [
        _chart(
            *_ROC,
            [Series("ours", roc, words, is_line=False)],
            _DIAGONAL,
            f"{note} Grey: a random order.",
        ),
        _chart(
            *_PRECISION_RECALL, [Series("ours", precision_recall, words, is_line=False)], None, note
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
    hits = np.cumsum(ones[order])[last_of_score]
    recall = hits / ones.sum()
    false_rate = (last_of_score + 1 - hits) / (len(ones) - ones.sum())
    roc = [(0.0, 0.0), *zip(false_rate.tolist(), recall.tolist(), strict=True)]
    precision = hits / (last_of_score + 1)
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


def _calibration_series(kind: str, ones: Values, score: Values) -> Series:
    bins = [each for each in calibration(ones, score) if each[2] >= FEWEST]
    words = [f"{number(observed)} of {rows:,} predictions" for _, observed, rows in bins]
    return Series(kind, [(predicted, observed) for predicted, observed, _ in bins], words)


def _chart(
    title: str,
    axes: tuple[str, str],
    series: Sequence[Series],
    reference: Points | None,
    caption: str,
    meanings: Mapping[str, str] = MappingProxyType({}),
) -> Markup:
    """The series, from 0 to 1 on both axes; `meanings` of their classes of marks are the legend."""
    x, y = Linear(0.0, 1.0, LEFT, RIGHT), Linear(0.0, 1.0, BOTTOM, TOP)
    lines = [(reference, "span baseline")] if reference else []
    for each in series:
        if each.is_line:
            thinned = [each.points[at] for at in svg.evenly(range(len(each.points)), POINTS)]
            lines.append((thinned, f"line {each.kind}"))
    marks = [
        svg.left_axis(y, LEFT, RIGHT, axes[1], TOP),
        svg.bottom_axis(x, BOTTOM, axes[0], RIGHT),
        *(svg.polyline([(x(across), y(up)) for across, up in of], kind) for of, kind in lines),
        *(
            svg.tag(
                "circle",
                svg.tooltip(words),
                cx=x(across),
                cy=y(up),
                r=4.0,
                class_=f"dot {each.kind}",
            )
            for each in series
            for (across, up), words in zip(each.points, each.tooltips, strict=False)
        ),
    ]
    return svg.figure(title, RIGHT + 20, HEIGHT, marks, caption, meanings, meanings)
