"""The registry of tasks: their predictions and metrics.

Evaluation, gates, tables with a target, `ml new` and `ml check` read `TASKS`. A new task is an
entry here, and its metrics in `ml.measures.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.measures import detection, forecasting
from ml.measures.bootstrap import Values
from ml.measures.metrics import (
    BINARY,
    DETECTION,
    FORECASTING,
    MULTICLASS,
    QUANTILES,
    RANKING,
    REGRESSION,
    CustomMetric,
    Metric,
    custom_metric_fault,
)
from ml.measures.ranking import ranks

Task = str
# With more classes, predictions.csv has only the probability of the true class.
MOST_CLASSES = 20
# Tolerance of class probabilities, which are written with four digits.
_ROUNDED = 1e-4


class PredictionColumns(NamedTuple):
    """Columns of predictions.csv, one value per unit."""

    expected: Sequence[str]
    predicted: Sequence[str]
    rank: Sequence[int]
    score: Sequence[float]
    probabilities: Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class TargetColumn:
    """The properties of the target column, for tasks that predict a column of a table."""

    types: tuple[str, ...]  # allowed types of the column; () for any
    labels: Callable[[Sequence[Any], str], NDArray[Any]]  # (values, positive value) → labels
    # (labels, classes) → numbers for a model.
    numbers: Callable[[NDArray[Any], Sequence[str]], NDArray[Any]]
    # (labels, primary metric, classes) → the best constant prediction.
    constant: Callable[[NDArray[Any], str, Sequence[str]], NDArray[Any]]
    # (number of distinct values, whether they are numbers) → whether it can be a target.
    fits: Callable[[int, bool], bool]
    has_positive: bool = False  # one value is the positive class
    has_classes: bool = False  # each distinct value is a class


@dataclass(frozen=True)
class TaskDefinition:
    """The definition of one task."""

    answer: str  # description of a prediction
    unit: str  # noun for the subject of a prediction; the bootstrap draws units or groups of them
    primary: str  # the default primary metric
    metrics: Mapping[str, Metric]
    # (labels, scores, classes) → columns of predictions.csv.
    to_predictions: Callable[[Sequence[Any], Values, Sequence[str]], PredictionColumns]
    # (expected, predicted, rank, score) → why a row is invalid, or "".
    fault: Callable[[str, str, int, float], str]
    prediction_type: Literal["numeric", "categorical"]  # how `ml watch` compares predictions
    prediction: Callable[[Any], Any]  # row of predictions.csv → the value that `ml watch` compares
    loss: Callable[[Any], float]  # row of predictions.csv → its loss
    # None: no column of a table is predicted, so there is no constant prediction and no leakage
    # check of columns.
    target: TargetColumn | None = None
    has_probabilities: bool = False  # predictions.csv may have a probability per class


def metrics_of(task: Task, custom: Mapping[str, CustomMetric] | None = None) -> dict[str, Metric]:
    """Return the built-in metrics of a task, followed by the custom ones, by name.

    Raises ValueError for an invalid name of a custom metric.
    """
    for name in custom or ():
        if wrong := custom_metric_fault(name, EVERY_METRIC):
            raise ValueError(wrong)
    return {
        **TASKS[task].metrics,
        **{name: metric.from_stored_values(name) for name, metric in (custom or {}).items()},
    }


def fault(task: Task, expected: str, predicted: str, rank: int, score: float) -> str:
    """Return why a row of predictions.csv is invalid for the task, or ""."""
    if not math.isfinite(score):
        return f"score {score}"
    return TASKS[task].fault(expected, predicted, rank, score)


def probabilities_fault(
    task: Task, expected: str, predicted: str, score: float, probabilities: Mapping[str, float]
) -> str:
    """Return why a row's (rounded) class probabilities are invalid, or ""."""
    if not TASKS[task].has_probabilities:
        return f"probabilities of classes, where the task is {task}"
    if not all(0 <= probability <= 1 for probability in probabilities.values()):
        return "a probability is not between 0 and 1"
    if abs(sum(probabilities.values()) - 1) > _ROUNDED * len(probabilities):
        return f"probabilities that sum to {sum(probabilities.values()):.6g}"
    if abs(probabilities.get(expected, 0.0) - score) > _ROUNDED:
        return f"score {score}, where the probability of {expected!r} is another"
    if probabilities.get(predicted, 0.0) < max(probabilities.values()) - _ROUNDED:
        return f"{predicted!r} was predicted, and another class is more probable"
    return ""


def _ranked(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    """Build the predictions of a ranking.

    A label outside `classes` has the last rank. Ties rank before the right class: if one other
    class has the same top score, the rank is 2.
    """
    position = _positions(labels, classes)
    rank = [
        len(classes) + 1 if column < 0 else n
        for column, n in zip(position, ranks(scores, np.asarray(position)).tolist(), strict=True)
    ]
    predicted = [classes[column] for column in scores.argmax(axis=1)]
    nothing: list[Mapping[str, float]] = [{}] * len(labels)
    return PredictionColumns(
        list(map(str, labels)), predicted, rank, scores.max(axis=1).tolist(), nothing
    )


def _of_two(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    count = len(labels)
    predicted = np.where(scores > 0.5, "1", "0").tolist()
    expected = [str(int(label)) for label in labels]
    return PredictionColumns(expected, predicted, [0] * count, scores.tolist(), [{}] * count)


def _of_classes(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    """Build the predictions of a multiclass task; labels outside `classes` have probability 0."""
    count, probabilities = len(labels), [dict[str, float]()] * len(labels)
    score = [
        float(row[column]) if column >= 0 else 0.0
        for row, column in zip(scores, _positions(labels, classes), strict=True)
    ]
    if len(classes) <= MOST_CLASSES:
        probabilities = [dict(zip(classes, row, strict=True)) for row in scores.tolist()]
    predicted = [classes[column] for column in scores.argmax(axis=1)]
    return PredictionColumns(list(map(str, labels)), predicted, [0] * count, score, probabilities)


def _of_numbers(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    count = len(labels)
    expected = [repr(float(label)) for label in labels]
    predicted = [repr(score) for score in scores.tolist()]
    return PredictionColumns(expected, predicted, [0] * count, [0.0] * count, [{}] * count)


def _of_boxes(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    """Build the predictions of detection; `scores` are (images, boxes, 5), padded with NaN.

    The score of an image is the sum of its boxes' scores, the expected number of objects.
    """
    count = len(labels)
    expected = [detection.written(boxes) for boxes in labels]
    predicted = [detection.written(boxes) for boxes in scores]
    together = np.nansum(scores[:, :, 4], axis=1).tolist()
    return PredictionColumns(expected, predicted, [0] * count, together, [{}] * count)


def _of_series(labels: Sequence[Any], scores: Values, classes: Sequence[str]) -> PredictionColumns:
    """Build the predictions of forecasting; labels are `forecasting.Actuals`.

    `scores` are (units, horizon, 3), padded with NaN. The score of a unit is the sum of its values.
    """
    count = len(labels)
    steps = [forecast[~np.isnan(forecast).any(axis=1)] for forecast in scores]
    expected = list(map(forecasting.written_actuals, labels))
    predicted = list(map(forecasting.written, steps))
    sums = [float(forecast[:, 0].sum()) for forecast in steps]
    return PredictionColumns(expected, predicted, [0] * count, sums, [{}] * count)


def _positions(labels: Sequence[Any], classes: Sequence[str]) -> list[int]:
    positions = {name: number for number, name in enumerate(classes)}
    return [positions.get(str(label), -1) for label in labels]


def _ranking_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    if rank < 1:
        return f"rank {rank}"
    right = rank > 1 or expected == predicted
    return "" if right else "rank 1, but another entry was predicted"


def _number_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    sound = all(_is_number(text) for text in (expected, predicted))
    wrong = "" if sound else f"{expected!r} and {predicted!r} are not two finite numbers"
    return _unranked(rank) or wrong


def _binary_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    if wrong := _unranked(rank) or _no_probability(score):
        return wrong
    if {expected, predicted} <= {"0", "1"}:
        return ""
    return f"label {expected!r} and prediction {predicted!r}, expected 0 or 1"


def _boxes_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    try:
        detection.read(expected, 4)
        total = float(detection.read(predicted, 5)[:, 4].sum())
    except ValueError as error:
        return str(error)
    wrong = "" if math.isclose(total, score, abs_tol=1e-4) else f"score {score}, not {total:.6g}"
    return _unranked(rank) or wrong


def _series_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    return _unranked(rank) or forecasting.fault(expected, predicted, score)


def _class_fault(expected: str, predicted: str, rank: int, score: float) -> str:
    if wrong := _unranked(rank) or _no_probability(score):
        return wrong
    if score > 0.5 and expected != predicted:
        return f"{predicted!r} was predicted, with probability {score} on {expected!r}"
    return ""


def _unranked(rank: int) -> str:
    return f"rank {rank}, expected 0 in a task without ranking" if rank else ""


def _no_probability(score: float) -> str:
    return "" if 0 <= score <= 1 else f"score {score}, expected a probability from 0 to 1"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _label(row: Any) -> str:
    return str(row.predicted)


def _is_wrong(row: Any) -> float:
    return float(row.predicted != row.expected)


def _scaled_error(row: Any) -> float:
    return float(np.nanmean(forecasting.forecasts([row.expected], [row.predicted]).scaled_errors))


def _mean(labels: NDArray[Any], primary: str, classes: Sequence[str]) -> NDArray[Any]:
    return np.array(np.mean(labels.astype(np.float64)))


def _middle(labels: NDArray[Any], primary: str, classes: Sequence[str]) -> NDArray[Any]:
    """Return the best constant: the median for mae, the quantile for its loss, else the mean."""
    if primary != "mae" and primary not in QUANTILES:
        return _mean(labels, primary, classes)
    return np.array(np.quantile(labels.astype(np.float64), QUANTILES.get(primary, 0.5)))


# Maximum number of classes; a numeric column with more distinct values is a regression target.
_MOST_LABELS = 200
TASKS: Mapping[Task, TaskDefinition] = {
    "ranking": TaskDefinition(
        answer="A score for each entry",
        unit="question",
        primary="gain_at_1",
        metrics=RANKING,
        to_predictions=_ranked,
        fault=_ranking_fault,
        prediction_type="categorical",
        prediction=_label,
        loss=_is_wrong,
    ),
    "binary": TaskDefinition(
        answer="The probability of 1",
        unit="row",
        primary="auc",
        metrics=BINARY,
        to_predictions=_of_two,
        fault=_binary_fault,
        prediction_type="numeric",
        prediction=lambda row: row.score,
        loss=lambda row: abs(row.score - int(row.expected)),
        target=TargetColumn(
            types=(),
            labels=lambda values, positive: np.array(
                [str(value) == positive for value in values], dtype=np.int64
            ),
            numbers=lambda labels, classes: labels,
            constant=_mean,
            fits=lambda count, numeric: count == 2,
            has_positive=True,
        ),
    ),
    "multiclass": TaskDefinition(
        answer="The probability of each class",
        unit="row",
        primary="log_loss",
        metrics=MULTICLASS,
        to_predictions=_of_classes,
        fault=_class_fault,
        prediction_type="categorical",
        prediction=_label,
        loss=_is_wrong,
        target=TargetColumn(
            types=(),
            labels=lambda values, positive: np.array([str(value) for value in values]),
            numbers=lambda labels, classes: np.searchsorted(np.array(classes), labels),
            constant=lambda labels, primary, classes: np.array(
                [np.mean(labels.astype(str) == name) for name in classes]
            ),
            fits=lambda count, numeric: 2 < count <= _MOST_LABELS,
            has_classes=True,
        ),
        has_probabilities=True,
    ),
    "regression": TaskDefinition(
        answer="A number",
        unit="row",
        primary="mae",
        metrics=REGRESSION,
        to_predictions=_of_numbers,
        fault=_number_fault,
        prediction_type="numeric",
        prediction=lambda row: float(row.predicted),
        loss=lambda row: abs(float(row.predicted) - float(row.expected)),
        target=TargetColumn(
            types=("float", "integer"),
            labels=lambda values, positive: np.array(values, dtype=np.float64),
            numbers=lambda labels, classes: labels,
            constant=_middle,
            fits=lambda count, numeric: numeric and count > 2,
        ),
    ),
    "detection": TaskDefinition(
        answer="Boxes with scores",
        unit="image",
        primary="map_50",
        metrics=DETECTION,
        to_predictions=_of_boxes,
        fault=_boxes_fault,
        prediction_type="numeric",
        prediction=lambda row: row.score,
        loss=lambda row: abs(
            detection.certain(row.predicted) - len(detection.read(row.expected, 4))
        ),
    ),
    "forecasting": TaskDefinition(
        answer="A value and an interval for each step",
        unit="forecast",
        primary="mase",
        metrics=FORECASTING,
        to_predictions=_of_series,
        fault=_series_fault,
        prediction_type="numeric",
        prediction=lambda row: row.score,
        loss=_scaled_error,
    ),
}
# The built-in metrics of all tasks. Custom metrics must not have these names, since gates.yml has
# bounds for them.
EVERY_METRIC: Mapping[str, Metric] = {
    name: metric for kind in TASKS.values() for name, metric in kind.metrics.items()
}
