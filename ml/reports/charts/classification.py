"""Chart a classifier's predictions: ROC, precision and recall, calibration, confusion matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import altair as alt
import numpy as np
from markupsafe import Markup

from ml.measures.bootstrap import Values
from ml.measures.metrics import BINARY, Draws, ScoredRows, value
from ml.reports.charts import svg
from ml.reports.charts.scales import axis, short_names
from ml.reports.formatting import count, number

# Maximum points of a curve.
POINTS = 200
# Number of bins of equal width for the predicted probability.
BINS = 10
# A bin with fewer predictions is not drawn: its share of label 1 is mostly noise.
FEWEST = 10
# Maximum classes with their own curves: page.css has as many colours.
CURVES = 6
# Maximum classes in the confusion matrix, and maximum custom metrics in its cells.
CONFUSED, SUMS = 12, 2
_DIAGONAL = [(0.0, 0.0), (1.0, 1.0)]
_ROC = "ROC", "false positive rate", "true positive rate"
_PRECISION = "Precision and recall", "recall", "precision"
_CALIBRATION = "Calibration", "mean predicted probability", "fraction of positives"
_BINS = f"Predictions in {BINS} bins of equal width; bins with fewer than {FEWEST} are omitted."
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """A curve in one colour."""

    colour: str  # a colour variable of page.css, such as `ours`
    points: Points
    tooltips: Sequence[str] = ()  # one per point; points with a tooltip are drawn as dots
    is_line: bool = True  # False: dots only
    meaning: str = ""  # text in the legend; "" for no entry


@dataclass(frozen=True)
class Thresholds:
    """Rates of binary predictions at each distinct score as the threshold, highest score first."""

    recall: Values
    false_rate: Values  # false positive rate
    precision: Values
    share: Values  # share of rows predicted "1"


def thresholds(scored: ScoredRows) -> Thresholds:
    """Return the rates at every threshold; both labels must occur."""
    ((ones,), (every,)) = Draws(scored, np.ones((1, len(scored)))).from_the_top
    zeros = every - ones
    return Thresholds(ones / ones[-1], zeros / zeros[-1], ones / every, every / every[-1])


def classifier_charts(scored: ScoredRows) -> list[Markup]:
    """Return the charts of a binary classifier; [] if only one label occurs."""
    if len({*scored.expected.tolist()}) < 2:
        return []
    rates, share = thresholds(scored), float(scored.ones.mean())
    auc, precision, lift = (
        number(value(BINARY[name], scored)) for name in ("auc", "average_precision", "lift_at_10")
    )
    lifts, best = rates.precision / share, "share of rows, highest score first"
    return [
        _chart(
            *_ROC,
            [Series("ours", _points(rates.false_rate, rates.recall, start=True))],
            _DIAGONAL,
            f"AUC: {auc}. Grey: chance level.",
        ),
        _chart(
            *_PRECISION,
            [Series("ours", _points(rates.recall, rates.precision))],
            [(0.0, share), (1.0, share)],
            f"Average precision: {precision}. Grey: chance level, {share:.1%} positives.",
        ),
        _chart(
            *_CALIBRATION,
            [_calibration_series("ours", scored)],
            _DIAGONAL,
            f"{_BINS} Grey: perfect calibration.",
        ),
        _chart(
            "Gain",
            best,
            "recall",
            [Series("ours", _points(rates.share, rates.recall, start=True))],
            _DIAGONAL,
            "Grey: chance level.",
        ),
        _chart(
            "Lift",
            best,
            "lift",
            [Series("ours", _points(rates.share, lifts))],
            [(0.0, 1.0), (1.0, 1.0)],
            f"Lift in the top decile: {lift}. Grey: chance level.",
            most=float(lifts.max()),
        ),
        confusion(scored, _threshold(scored)),
    ]


def class_charts(scored: ScoredRows, probabilities: Mapping[str, Values]) -> list[Markup]:
    """Return the one-vs-rest charts and the confusion matrix of a multiclass classifier.

    `probabilities` maps classes to the rows' probabilities. With them, the charts have curves of
    the most frequent classes, else one dot per class. Returns [] if only one label occurs.
    """
    if len({*scored.expected.tolist()}) < 2:
        return []
    counts = Counter(label for label in scored.expected.tolist() if label in probabilities)
    if len(counts) < 2:
        return [*_class_dots(scored), confusion(scored)]
    note = f"One-vs-rest for {len(counts)} classes."
    if len(counts) > CURVES:
        note = f"One-vs-rest for the {CURVES} most frequent of {len(counts)} classes."
    roc, precisions, calibrations = [], [], []
    for place, (label, rows) in enumerate(counts.most_common(CURVES), 1):
        expected = np.where(scored.expected == label, "1", "0")
        against_rest = replace(scored, expected=expected, score=probabilities[label])
        rates, colour = thresholds(against_rest), f"class{place}"
        auc, precision = (
            number(value(BINARY[name], against_rest)) for name in ("auc", "average_precision")
        )
        curve = _points(rates.false_rate, rates.recall, start=True)
        roc.append(Series(colour, curve, meaning=f"{label}: AUC {auc}"))
        meaning = f"{label}: average precision {precision}"
        precisions.append(Series(colour, _points(rates.recall, rates.precision), meaning=meaning))
        calibrations.append(_calibration_series(colour, against_rest, f"{label}: {rows:,} rows"))
    axes = "Calibration", "mean predicted probability", "fraction of the class"
    return [
        _chart(*_ROC, roc, _DIAGONAL, f"{note} Grey: chance level."),
        _chart(*_PRECISION, precisions, [], note),
        _chart(*axes, calibrations, _DIAGONAL, f"{note} {_BINS} Grey: perfect calibration."),
        confusion(scored),
    ]


def _class_dots(scored: ScoredRows) -> list[Markup]:
    from sklearn.metrics import multilabel_confusion_matrix

    labels = np.unique(scored.expected)
    tables = multilabel_confusion_matrix(scored.expected, scored.predicted, labels=labels)
    right_no, false, missed, hits = tables.reshape(-1, 4).T
    false_rate, recall = false / (false + right_no), hits / (hits + missed)
    # A class that is never predicted gets precision 0 instead of a division by zero.
    precision = hits / np.maximum(1, hits + false)
    words = [
        f"{label}: recall {number(its)}, precision {number(exact)}, false positive rate "
        f"{number(wrong)}"
        for label, its, exact, wrong in zip(labels, recall, precision, false_rate, strict=True)
    ]
    note = f"One-vs-rest: a dot for each of {len(labels)} classes, at the predicted labels."
    roc = Series("ours", _points(false_rate, recall), words, is_line=False)
    dots = Series("ours", _points(recall, precision), words, is_line=False)
    return [
        _chart(*_ROC, [roc], _DIAGONAL, f"{note} Grey: chance level."),
        _chart(*_PRECISION, [dots], [], note),
    ]


def confusion(scored: ScoredRows, note: str = "") -> Markup:
    """Draw the confusion matrix; cells also show the sums of custom metrics, such as a cost."""
    every = Counter([*scored.expected.tolist(), *scored.predicted.tolist()])
    labels = sorted(label for label, _ in every.most_common(CONFUSED))
    sums = [name for name, values in scored.custom.items() if values.shape[1] == 1][:SUMS]
    names = short_names(labels, 12)
    cells = []
    for (up, label), (across, taken) in product(enumerate(labels), repeat=2):
        of_label = scored.expected == label
        inside = of_label & (scored.predicted == taken)
        rows, costs = (
            int(inside.sum()),
            [f"{name} {number(float(scored.custom[name][inside].sum()))}" for name in sums],
        )
        share = rows / max(1, int(of_label.sum()))
        words = [f"{label} predicted as {taken}: {count(rows, 'row')}", f"{share:.1%} of {label}"]
        cells.append(
            {
                "x": names[across],
                "y": names[up],
                "share": share,
                "text": [f"{rows:,}", *costs],
                "words": ", ".join([*words, *costs]),
            }
        )
    table_of = svg.rows(cells).encode(
        alt.X("x:N", title="predicted", sort=names, axis=alt.Axis(labelAngle=0)),
        alt.Y("y:N", title="actual", sort=names),
    )
    squares = table_of.mark_rect(color="var(--accent)", stroke="var(--line)").encode(
        alt.Opacity("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0, 0.6])),
    )
    chart = alt.layer(
        svg.pointed(squares), table_of.mark_text(color="var(--ink)").encode(text="text:N")
    )
    caption = "Rows by actual and predicted label."
    if len(every) > len(labels):
        caption += f" The {len(labels)} most frequent of {len(every)} classes."
    return svg.figure("Confusion matrix", chart, 450, 380, f"{caption} {note}".rstrip())


def _threshold(scored: ScoredRows) -> str:
    """Return a sentence that states the lowest score predicted as label 1."""
    ones = scored.predicted == "1"
    lowest = scored.score[ones].min(initial=np.inf)
    if scored.score[~ones].max(initial=-np.inf) >= lowest:
        return "No single decision threshold gives these labels."
    return f"The lowest score that is predicted positive is {number(float(lowest))}."


def _points(x: Values, y: Values, start: bool = False) -> Points:
    """Return the points of a curve, downsampled to POINTS; with `start`, (0, 0) comes first."""
    chosen = svg.evenly(range(len(x)), POINTS - start)
    return [*_DIAGONAL[:start], *zip(x[chosen].tolist(), y[chosen].tolist(), strict=True)]


def calibration(scored: ScoredRows) -> list[tuple[float, float, int]]:
    """Return (mean probability, share of label 1, number of predictions) of each non-empty bin."""
    of_bin = np.minimum((scored.score * BINS).astype(int), BINS - 1)
    return [
        (float(scored.score[rows].mean()), float(scored.ones[rows].mean()), int(rows.sum()))
        for rows in (of_bin == place for place in np.unique(of_bin))
    ]


def _calibration_series(colour: str, scored: ScoredRows, meaning: str = "") -> Series:
    bins = [group for group in calibration(scored) if group[2] >= FEWEST]
    words = [f"{number(observed)} of {rows:,} predictions" for _, observed, rows in bins]
    points = [(predicted, observed) for predicted, observed, _ in bins]
    return Series(colour, points, words, meaning=meaning)


def _chart(
    title: str,
    across: str,
    up: str,
    series: Sequence[Series],
    reference: Points,
    caption: str,
    most: float = 1.0,
) -> Markup:
    """Draw the series and a grey reference line; x is from 0 to 1, y from 0 to `most`.

    `across` and `up` are the titles of the x and the y axis.
    """
    x = alt.X("x:Q", title=across, **axis(0, 1))
    y = alt.Y("y:Q", title=up, **axis(0, most))
    layers = [_line(reference, "baseline").encode(x, y)]
    for curve in series:
        if curve.is_line:
            layers.append(_line(curve.points, curve.colour).encode(x, y))
        dots = svg.rows(
            {"x": x, "y": y, "words": words}
            for (x, y), words in zip(curve.points, curve.tooltips, strict=False)
        )
        marks = dots.mark_point(size=50, color=f"var(--{curve.colour})")
        layers.append(svg.pointed(marks.encode(x, y)))
    meanings = {curve.colour: (curve.colour, curve.meaning) for curve in series if curve.meaning}
    return svg.figure(title, alt.layer(*layers), 450, 380, caption, meanings)


def _line(points: Points, colour: str) -> alt.Chart:
    # Connect the points in the order of the thresholds, not by x, so that steps stay vertical.
    rows = svg.rows({"x": x, "y": y, "at": index} for index, (x, y) in enumerate(points))
    return rows.mark_line(color=f"var(--{colour})").encode(order="at:Q")
