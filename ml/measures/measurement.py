"""Evaluate a model in one call, from identifiers, labels and scores to the evaluation's files.

`evaluate` writes evaluation.json, predictions.csv and identifiers.csv; if the rows have requests,
also requests.jsonl; if `inputs` are given, also reference.json.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.bootstrap import enough_groups
from ml.measures.contributions import Contributions
from ml.measures.evaluation import Prediction, Request, write_evaluation
from ml.measures.fairness import differences
from ml.measures.leakage import features as leaking_features
from ml.measures.leakage import joint_checks, shared, warning
from ml.measures.leakage import model as of_model
from ml.measures.metrics import CustomMetric, Metric, ScoredRows, estimates, values
from ml.measures.reference import Columns, write_reference
from ml.measures.schema import (
    Check,
    Disparity,
    Evaluation,
    Explanation,
    Fit,
    Metrics,
    Stability,
    TrainingSet,
)
from ml.measures.tasks import TASKS, PredictionColumns, Task
from ml.measures.tasks import metrics_of as metrics_of_task

VALIDATION = "validation"
NO_METRICS: Mapping[str, CustomMetric] = MappingProxyType({})
# Column name of a table model's prediction in reference.json and `ml watch`.
PREDICTION = "prediction"


@dataclass(frozen=True)
class Rows:
    """The rows of one split; each field has one entry per row.

    `labels`: 0 and 1 (binary), labels (multiclass, ranking), numbers (regression), boxes
    (detection) or `Actuals` (forecasting).
    `scores`: the predictions: probability of 1 (binary), a column per class (multiclass:
    probabilities; ranking: any score), numbers (regression), or padded arrays (others).
    `slices`: dimension → the slice of each row, "" for none.
    `groups`: the bootstrap draws all rows of a group together.
    `identifiers`: find test rows among the training rows; by default the `ids`.
    `columns`: the columns of the table, for custom metrics.
    `folds`: fold numbers of rows with out-of-fold predictions.
    `requests`: the endpoint's request for each row; the response must match the score (gate
    `serving`).
    `threshold`: a binary row with a higher score is predicted as "1".
    """

    ids: Sequence[str]
    labels: Sequence[Any] | NDArray[Any]
    scores: NDArray[Any] | Sequence[Any] = ()
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    groups: Sequence[str] = ()
    identifiers: Sequence[str] = ()
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    folds: Sequence[int] = ()
    requests: Sequence[Mapping[str, object]] = ()
    threshold: float = 0.5

    @property
    def recognised_by(self) -> Sequence[str]:
        """The identifiers, by default the ids."""
        return self.identifiers or self.ids


@dataclass(frozen=True)
class Training:
    """Facts about the training of the model.

    `rows`: the training rows; a constant prediction of their labels is the default baseline.
    `refits`: the primary metric on validation of two or more trainings that differ only in `over`
    (seeds, folds, epochs).
    `seconds`: the duration of the training.
    """

    rows: Rows
    hyperparameters: Mapping[str, str | int | float | bool]
    refits: Sequence[float]
    seconds: float
    seed: int = 0
    over: str = "seeds"
    threads: int = 1
    feature_set_hash: str = ""
    training_set: TrainingSet | None = None


@dataclass(frozen=True)
class Features:
    """The model's numeric inputs `table` (rows, features) for the first test split.

    In a ranking, the rows are those of the right answers. `categorical` has the indices of columns
    with category codes. `inputs` are the same rows with one column per feature instead of one-hot
    columns, for the leakage checks.
    """

    names: Sequence[str]
    table: NDArray[Any]
    categorical: Collection[int] = ()
    inputs: Features | None = None


@dataclass(frozen=True)
class Measurement:
    """The metrics of a model."""

    metrics: Metrics  # by split
    slices: dict[str, Metrics]  # by dimension, then slice; measured on one split
    fairness: dict[str, dict[str, Disparity]]  # by dimension, then metric; of the same split


def evaluate(
    folder: Path,
    splits: Mapping[str, Rows],
    training: Training,
    features: Features,
    contributions: Contributions | str,
    *,
    task: Task,
    primary_metric: str,
    model: str,
    digest: str,
    unit: str = "",
    resampled: str = "",
    classes: Sequence[str] = (),
    identified_by: str = "id",
    baseline: Metrics | None = None,
    baseline_from: str = "",
    leakage: Sequence[Check] = (),
    inputs: Columns | None = None,
    joined: Mapping[str, Columns] = MappingProxyType({}),
    custom_metrics: Mapping[str, CustomMetric] = NO_METRICS,
    linear: Mapping[str, float] = MappingProxyType({}),
) -> Evaluation:
    """Measure the model on `splits`, write the files to `folder`, and return the evaluation.

    `splits`: `validation` and the test splits. Slices, contributions and leakage checks of features
    use the first test split.
    `contributions`: or the reason why there are none, which the gate accepts only for a model
    without features.
    `model`, `digest`: the endpoint's name, and the digest of the model folder from `verify`.
    `unit`, `resampled`: nouns for a row (default: the task's) and for a group of `Rows.groups`.
    `classes`: names of the columns of the scores (multiclass, ranking).
    `identified_by`: noun for `Rows.identifiers`.
    `baseline`, `baseline_from`: metrics that a first version must beat, and a description of their
    model; by default a constant prediction. A weaker baseline gives a warning.
    `leakage`: additional checks, such as `not_later`. A leak gives a warning and fails the gate.
    `inputs`, `joined`: request columns, and values of each feature set, for reference.json.
    `custom_metrics`: the project's metrics.
    `linear`: metrics of a linear model on the first test split, for reports only.

    Raises EvaluationRefused if the evaluation would be invalid, ValueError if lengths differ.
    """
    kind, metrics = TASKS[task], metrics_of_task(task, custom_metrics)
    predictions = [
        row
        for name, rows in splits.items()
        for row in predict(task, name, rows, classes, custom_metrics)
    ]
    tests = {name: rows for name, rows in splits.items() if name != VALIDATION}
    first = next(iter(tests))
    measurement = measure(metrics, predictions, sliced=first)
    checks = [*_overlaps(training.rows, tests, identified_by), *leakage]
    if kind.target is not None and features.names:
        taken = features.inputs or features
        checks += feature_and_model_checks(taken, tests[first], first, classes)
        checks += joint_checks(taken.table, tests[first].labels, list(taken.names))
    warn(checks)
    if baseline is None:
        baseline = _constant(task, primary_metric, training.rows, splits, classes, custom_metrics)
        baseline_from = "a constant prediction from the training labels"
    elif kind.target is not None:
        one_split = {first: splits[first]}
        constant = _constant(
            task, primary_metric, training.rows, one_split, classes, custom_metrics
        )
        goal = metrics[primary_metric].goal
        if weakness := _weakness(goal, primary_metric, baseline, constant):
            print(f"warning[weak-baseline]: the baseline is {weakness}", file=sys.stderr)
            baseline_from = "; ".join(filter(None, [baseline_from, weakness]))
    names = "\n".join(features.names)
    evaluation = Evaluation(
        model=model,
        task=task,
        primary_metric=primary_metric,
        goal=metrics[primary_metric].goal,
        unit=unit or kind.unit,
        resampled=resampled or unit or kind.unit,
        feature_set_hash=training.feature_set_hash or hashlib.sha256(names.encode()).hexdigest(),
        seed=training.seed,
        hyperparameters=training.hyperparameters,
        metrics=measurement.metrics,
        baseline=baseline,
        baseline_from=baseline_from,
        slice_split=first,
        slices=measurement.slices,
        fairness=measurement.fairness,
        **_explained(contributions, features.names),
        stability={
            primary_metric: Stability(
                training.over, tuple(training.refits), float(np.std(training.refits, ddof=1))
            )
        },
        training=Fit(training.seconds, training.threads),
        leakage=tuple(checks),
        custom_metrics={name: metric.stated() for name, metric in custom_metrics.items()},
        out_of_fold={name: len({*rows.folds}) for name, rows in tests.items() if rows.folds},
        linear=linear,
        threshold=tests[first].threshold if task == "binary" else None,
        training_set=training.training_set,
    )
    # The served model does not give out-of-fold predictions, so their requests cannot be verified.
    # If all tests are out of fold, use all splits with requests, which then is validation.
    answering = {name: rows for name, rows in tests.items() if not rows.folds} or splits
    requests = [
        Request(name, unit, body)
        for name, rows in answering.items()
        for unit, body in zip(rows.ids, rows.requests, strict=bool(rows.requests))
    ]
    write_evaluation(folder, evaluation, predictions, requests)
    if inputs is not None:
        answered = {
            PREDICTION: (kind.prediction_type, [kind.prediction(row) for row in predictions])
        }
        losses = {PREDICTION: [kind.loss(row) for row in predictions]}
        sets = evaluation.training_set.sets if evaluation.training_set else {}
        of_sets = {
            name: (str(feature_set.version), str(feature_set.definition), joined.get(name, {}))
            for name, feature_set in sets.items()
        }
        write_reference(folder, digest, inputs, answered, losses, of_sets)
    return evaluation


def feature_and_model_checks(
    features: Features, rows: Rows, split: str, classes: Sequence[str]
) -> list[Check]:
    """Return the leakage checks of each feature alone and of the model, on the rows of a split."""
    checks = leaking_features(
        features.table, rows.labels, list(features.names), features.categorical
    )
    return [*checks, of_model(rows.scores, rows.labels, split, classes)]


def warn(checks: Sequence[Check]) -> None:
    """Print a line on stderr for each check that leaks or warns."""
    for line in filter(None, map(warning, checks)):
        print(line, file=sys.stderr)


def _overlaps(training: Rows, tests: Mapping[str, Rows], identified_by: str) -> Iterator[Check]:
    """Yield checks for training rows among the test rows, per fold for out-of-fold rows."""
    plain = [rows.recognised_by for rows in tests.values() if not rows.folds]
    if plain:
        yield shared(training.recognised_by, [name for ids in plain for name in ids], identified_by)
    for rows in tests.values():
        for fold in sorted({*rows.folds}):
            trained = zip(training.recognised_by, training.folds, strict=True)
            answered = zip(rows.recognised_by, rows.folds, strict=True)
            yield shared(
                [name for name, number in trained if number != fold],
                [name for name, number in answered if number == fold],
                f"{identified_by}, fold {fold + 1}",
            )


def _explained(contributions: Contributions | str, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields `contributions` and `explanation` of an evaluation."""
    if isinstance(contributions, str):
        return {"explanation": Explanation(reason=contributions)}
    explanation = Explanation(contributions.method, contributions.rows, contributions.error)
    return {
        "contributions": contributions.shares(contributions.names or names),
        "explanation": explanation,
    }


def _weakness(goal: str, primary_metric: str, baseline: Metrics, constant: Metrics) -> str:
    """Return a note if the baseline is weaker than a constant prediction, else ""."""
    sign = 1 if goal == "maximize" else -1
    for split, metrics in constant.items():
        theirs = baseline.get(split, {}).get(primary_metric)
        same = metrics.get(primary_metric)
        if theirs and same and sign * theirs.value < sign * same.value:
            return f"weaker than a constant prediction, which has {same.value:.4g}"
    return ""


def predict(
    task: Task,
    split: str,
    rows: Rows,
    classes: Sequence[str] = (),
    custom_metrics: Mapping[str, CustomMetric] = NO_METRICS,
) -> list[Prediction]:
    """Return the rows of predictions.csv for a split.

    Raises ValueError if lengths differ or a custom metric returns invalid values.
    """
    count = len(rows.ids)
    scores = np.asarray(rows.scores, dtype=np.float64)
    answered = TASKS[task].to_predictions(list(rows.labels), scores, classes)
    if task == "binary":
        answered = answered._replace(predicted=np.where(scores > rows.threshold, "1", "0").tolist())
    custom = _custom_values(task, answered, rows, custom_metrics)
    dimensions = zip(*rows.slices.values(), strict=True) if rows.slices else [()] * count
    groups = rows.groups or [""] * count
    *answer, probabilities = answered
    fields = (rows.ids, dimensions, *answer, groups, probabilities, custom)
    return [
        Prediction(name, split, dict(zip(rows.slices, slice_values, strict=True)), *values)
        for name, slice_values, *values in zip(*fields, strict=True)
    ]


def _custom_values(
    task: Task, answered: PredictionColumns, rows: Rows, custom_metrics: Mapping[str, CustomMetric]
) -> list[dict[str, list[float]]]:
    """Return the values of the custom metrics for each row.

    In numeric tasks the metrics get numbers instead of texts, because numpy comparisons of texts
    with numbers are silently False.
    """
    if not custom_metrics:
        return [{} for _ in rows.ids]
    expected, predicted, rank, score, _ = answered
    kind = np.float64 if TASKS[task].prediction_type == "numeric" else np.str_
    scored = ScoredRows(
        np.array(expected).astype(kind),
        np.array(predicted).astype(kind),
        np.array(rank, dtype=np.int64),
        np.array(score, dtype=np.float64),
    )
    columns = {name: np.array(column) for name, column in rows.columns.items()}
    of_metric = {
        name: metric.values(name, scored, columns).tolist()
        for name, metric in custom_metrics.items()
    }
    return [{name: column[row] for name, column in of_metric.items()} for row in range(len(scored))]


def metric_values(
    task: Task,
    rows: Rows,
    classes: Sequence[str] = (),
    custom_metrics: Mapping[str, CustomMetric] = NO_METRICS,
) -> dict[str, float]:
    """Return metric → value on these rows, without intervals; undefined metrics are omitted."""
    scored = ScoredRows.from_rows(predict(task, "", rows, classes, custom_metrics))
    return values(metrics_of_task(task, custom_metrics), scored)


def constant_answer(
    task: Task,
    primary_metric: str,
    labels: Sequence[Any] | NDArray[Any],
    count: int,
    classes: Sequence[str] = (),
) -> NDArray[np.float64]:
    """Return a constant prediction for `count` rows, fitted to `labels`.

    Raises ValueError if the task has none.
    """
    target = TASKS[task].target
    if target is None:
        raise ValueError(f"a {task} has no constant prediction: set `baseline`")
    answer = target.constant(np.asarray(labels), primary_metric, classes)
    return np.broadcast_to(answer, (count, *answer.shape))


def _constant(
    task: Task,
    primary_metric: str,
    train: Rows,
    splits: Mapping[str, Rows],
    classes: Sequence[str],
    custom_metrics: Mapping[str, CustomMetric],
) -> Metrics:
    """Return the metrics of a constant prediction fitted to the training labels."""
    same = []
    for name, rows in splits.items():
        scores = constant_answer(task, primary_metric, train.labels, len(rows.ids), classes)
        same += predict(task, name, replace(rows, scores=scores), classes, custom_metrics)
    return metrics_of(metrics_of_task(task, custom_metrics), same)


def measure(
    metrics: Mapping[str, Metric], predictions: Sequence[Prediction], sliced: str
) -> Measurement:
    """Return all metrics with intervals, and slices and fairness of the split `sliced`.

    If predictions have groups, intervals resample groups, and slices with fewer than ten groups are
    omitted. Raises ValueError if a whole split has fewer.
    """
    of_split = [row for row in predictions if row.split == sliced]
    slices: dict[str, Metrics] = {}
    fairness: dict[str, dict[str, Disparity]] = {}
    for dimension in of_split[0].slices if of_split else ():
        by_name: dict[str, list[Prediction]] = {}
        for row in of_split:
            if row.slices[dimension]:
                by_name.setdefault(row.slices[dimension], []).append(row)
        enough = {
            name: rows
            for name, rows in sorted(by_name.items())
            if enough_groups([row.group for row in rows])
        }
        slices[dimension] = {name: _estimates(metrics, rows) for name, rows in enough.items()}
        labels = [name for name, rows in enough.items() for _ in rows]
        rows = [row for rows in enough.values() for row in rows]
        fairness[dimension] = differences(metrics, ScoredRows.from_rows(rows), labels, sliced)
    return Measurement(metrics_of(metrics, predictions), slices, fairness)


def metrics_of(metrics: Mapping[str, Metric], predictions: Sequence[Prediction]) -> Metrics:
    """Return all metrics with their intervals, by split."""
    return {
        name: _estimates(metrics, [row for row in predictions if row.split == name])
        for name in dict.fromkeys(row.split for row in predictions)
    }


def _estimates(metrics: Mapping[str, Metric], rows: Sequence[Prediction]) -> Any:
    grouped = [row.group for row in rows] if any(row.group for row in rows) else None
    return estimates(metrics, ScoredRows.from_rows(rows), groups=grouped)
