"""The evaluation of a model in one call: from identifiers, labels and scores to the files that a
release reads.

`evaluate` writes evaluation.json, predictions.csv, identifiers.csv and, when it is given the inputs
of the requests, reference.json.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.toolkit.bootstrap import enough_groups
from ml.toolkit.evaluation import Evaluation, Metrics, Prediction, write_evaluation
from ml.toolkit.explain import contributions
from ml.toolkit.fairness import differences
from ml.toolkit.leakage import Check, shared
from ml.toolkit.leakage import features as leaking_features
from ml.toolkit.metrics import METRICS, QUANTILES, Answers, Task, estimates, value
from ml.toolkit.ranking import ranks
from ml.toolkit.reference import Columns, write_reference

VALIDATION = "validation"
# What a model says of a row of a table, as `ml watch` calls it.
PREDICTION = "prediction"
# TreeSHAP takes time for each row; the shares of so many rows hardly change with more.
EXPLAINED = 500
# With more classes, predictions.csv has the probability of the right one alone.
MOST_CLASSES = 20


@dataclass(frozen=True)
class Rows:
    """The rows of one split: one of each field a row.

    `labels` are the right answers: 0 and 1 (binary), labels (multiclass, ranking), numbers
    (regression). `scores` are the model's answers: the probability of 1 (binary), one column a
    class (multiclass: probabilities; ranking: any score), numbers (regression). `slices` says
    where each row belongs by each dimension ("" for nowhere), `groups` what is drawn with it.
    `identifiers` are what a row is recognised by among the rows of training, `ids` by default.
    """

    ids: Sequence[str]
    labels: Sequence[Any] | NDArray[Any]
    scores: NDArray[Any] | Sequence[Any] = ()
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    groups: Sequence[str] = ()
    identifiers: Sequence[str] = ()

    @property
    def recognised_by(self) -> Sequence[str]:
        """`identifiers`, or the ids."""
        return self.identifiers or self.ids


@dataclass(frozen=True)
class Training:
    """How the model was trained: on which rows, with what, in how many seconds.

    `refits` are values of the primary metric on validation, of two or more trainings that differ in
    `over` alone (seeds, folds). Where `rows` have labels, a constant learnt from them is the
    baseline that a first model has to beat.
    """

    rows: Rows
    hyperparameters: Mapping[str, str | int | float | bool]
    refits: Sequence[float]
    seconds: float
    seed: int = 0
    over: str = "seeds"
    threads: int = 1
    feature_set_hash: str = ""


@dataclass(frozen=True)
class Explainer:
    """A LightGBM booster with the rows to explain it on (rows × features) and their names.

    The rows are those of the first split that is not `validation`; in a ranking, of its right
    answers.
    """

    booster: Any
    table: NDArray[Any]
    features: Sequence[str]


@dataclass(frozen=True)
class Measurement:
    """`metrics` by split; `slices` and `fairness` by dimension, of one split, as Evaluation has
    them.
    """

    metrics: Metrics
    slices: dict[str, Metrics]
    fairness: dict[str, dict[str, dict[str, Any]]]


def evaluate(
    folder: Path,
    splits: Mapping[str, Rows],
    training: Training,
    explainer: Explainer,
    *,
    task: Task,
    primary_metric: str,
    model: str,
    digest: str,
    project: str = "",
    unit: str = "row",
    resampled: str = "",
    classes: Sequence[str] = (),
    identified_by: str = "id",
    baseline: Metrics | None = None,
    baseline_from: str = "",
    data: Mapping[str, Mapping[str, Any]] | None = None,
    leakage: Sequence[Check] = (),
    inputs: Columns | None = None,
) -> Evaluation:
    """Measure the model on `splits`, write the files to `folder`, and return the evaluation.

    `splits` has `validation` and the splits that the project is promoted on; slices, contributions
    and leaking features are of the first of those. `model` is the endpoint's name, `digest` what
    `verify` returned of the model folder. `classes` name the columns of the scores (multiclass,
    ranking). `resampled` names what `Rows.groups` are, where rows are drawn by groups.
    `leakage` are checks beside those made here, such as `not_later` of a split by time; one that
    finds a leak is told on stderr, and refused by a gate. `baseline` are the metrics of a model
    that a first one has to beat, by default one answer to every row, and `baseline_from` says how
    it was made; one that is worse than that default is told on stderr and by the gate. `inputs` are
    the columns of the requests, for reference.json. Raises EvaluationRefused for what cannot be
    relied on, ValueError where lengths do not fit.
    """
    predictions = [
        row for name, rows in splits.items() for row in predict(task, name, rows, classes)
    ]
    tests = {name: rows for name, rows in splits.items() if name != VALIDATION}
    first = next(iter(tests))
    measurement = measure(task, predictions, sliced=first)
    explanation = contributions(
        explainer.booster, explainer.table[:EXPLAINED], list(explainer.features)
    )
    checks = [
        shared(
            training.rows.recognised_by,
            [identifier for rows in tests.values() for identifier in rows.recognised_by],
            identified_by,
        ),
        *leakage,
    ]
    if task != "ranking":
        checks += leaking_features(explainer.table, tests[first].labels, list(explainer.features))
    for check in checks:
        if check.leaks:
            print(f"warning[leak]: {check.found}: the metrics are too good", file=sys.stderr)
    if baseline is None:
        baseline = _constant(task, primary_metric, training.rows, splits, classes)
        baseline_from = "one answer to every row, learnt from the labels of training"
    elif task != "ranking":
        one_split = {first: splits[first]}
        constant = _constant(task, primary_metric, training.rows, one_split, classes)
        if weakness := _weakness(task, primary_metric, baseline, constant):
            print(f"warning[weak-baseline]: the baseline is {weakness}", file=sys.stderr)
            baseline_from = "; ".join(filter(None, [baseline_from, weakness]))
    names = "\n".join(explainer.features)
    evaluation = Evaluation(
        project=project or model.replace("-", "_"),
        model=model,
        task=task,
        primary_metric=primary_metric,
        goal=METRICS[task][primary_metric].goal,
        unit=unit,
        resampled=resampled or unit,
        data=data or {},
        feature_set_hash=training.feature_set_hash or hashlib.sha256(names.encode()).hexdigest(),
        seed=training.seed,
        hyperparameters=training.hyperparameters,
        metrics=measurement.metrics,
        baseline=baseline,
        baseline_from=baseline_from,
        slice_split=first,
        slices=measurement.slices,
        fairness=measurement.fairness,
        contributions=explanation.contributions(),
        explanation=explanation.explanation(),
        stability={
            primary_metric: {
                "over": training.over,
                "values": list(training.refits),
                "std": float(np.std(training.refits, ddof=1)),
            }
        },
        training={"seconds": training.seconds, "threads": training.threads},
        leakage=checks,
    )
    write_evaluation(folder, evaluation, predictions)
    if inputs is not None:
        write_reference(folder, digest, inputs, *_answers(task, predictions))
    return evaluation


def _weakness(task: Task, primary_metric: str, baseline: Metrics, constant: Metrics) -> str:
    """What to say of a baseline that is worse than a constant answer, "" of any other.

    `constant` is of one split.
    """
    sign = 1 if METRICS[task][primary_metric].goal == "maximize" else -1
    for split, metrics in constant.items():
        theirs = baseline.get(split, {}).get(primary_metric)
        same = metrics.get(primary_metric)
        if theirs and same and sign * theirs.value < sign * same.value:
            return f"weaker than one answer to every row, which has {same.value:.4g}"
    return ""


def predict(task: Task, split: str, rows: Rows, classes: Sequence[str] = ()) -> list[Prediction]:
    """The rows of a split as predictions.csv has them; ValueError where lengths do not fit.

    A label that is not among `classes` has the probability 0, and the last rank of a ranking. A tie
    is no answer: with the right class only as good as another, its rank is 2.
    """
    count = len(rows.ids)
    expected = [str(label) for label in rows.labels]
    scores = np.asarray(rows.scores, dtype=np.float64)
    position, rank = [0] * count, [0] * count
    probabilities: list[dict[str, float]] = [{}] * count
    if task == "binary":
        expected = [str(int(label)) for label in rows.labels]
        predicted, score = np.where(scores > 0.5, "1", "0").tolist(), scores.tolist()
    elif task == "regression":
        expected = [repr(float(label)) for label in rows.labels]
        predicted, score = [repr(of) for of in scores.tolist()], [0.0] * count
    else:
        at = {name: number for number, name in enumerate(classes)}
        position = [at.get(label, -1) for label in expected]
        best = scores.argmax(axis=1)
        predicted = [classes[column] for column in best]
        if task == "ranking":
            rank = [
                len(classes) + 1 if column < 0 else position_of
                for column, position_of in zip(
                    position, ranks(scores, np.asarray(position)).tolist(), strict=True
                )
            ]
            score = scores.max(axis=1).tolist()
        else:
            score = [
                float(row[column]) if column >= 0 else 0.0
                for row, column in zip(scores, position, strict=True)
            ]
            if len(classes) <= MOST_CLASSES:
                probabilities = [dict(zip(classes, row, strict=True)) for row in scores.tolist()]
    dimensions = zip(*rows.slices.values(), strict=True) if rows.slices else [()] * count
    groups = rows.groups or [""] * count
    fields = (rows.ids, dimensions, expected, predicted, rank, score, groups, probabilities)
    return [
        Prediction(name, split, dict(zip(rows.slices, of, strict=True)), *answer)
        for name, of, *answer in zip(*fields, strict=True)
    ]


def metric_values(task: Task, rows: Rows, classes: Sequence[str] = ()) -> dict[str, float]:
    """Every metric of the task on these rows, without intervals; those that are not defined on them
    are left out.
    """
    answers = Answers.of(predict(task, "", rows, classes))
    values = {}
    for name, metric in METRICS[task].items():
        try:
            values[name] = value(metric, answers)
        except ValueError:
            continue
    return values


def constant_answer(
    task: Task,
    primary_metric: str,
    labels: Sequence[Any] | NDArray[Any],
    count: int,
    classes: Sequence[str] = (),
) -> NDArray[np.float64]:
    """The same answer to `count` rows, learnt from labels: the share of each class, the median for
    the absolute error, a quantile for its loss, the mean for other errors.
    """
    right = np.asarray(labels)
    if task == "multiclass":
        answer = np.array([np.mean(right.astype(str) == name) for name in classes])
    elif primary_metric == "mae" or primary_metric in QUANTILES:
        level = QUANTILES.get(primary_metric, 0.5)
        answer = np.array(np.quantile(right.astype(np.float64), level))
    else:
        answer = np.array(np.mean(right.astype(np.float64)))
    return np.broadcast_to(answer, (count, *answer.shape))


def _constant(
    task: Task,
    primary_metric: str,
    train: Rows,
    splits: Mapping[str, Rows],
    classes: Sequence[str],
) -> Metrics:
    """The metrics of the constant that is learnt from the labels of training."""
    same = []
    for name, rows in splits.items():
        scores = constant_answer(task, primary_metric, train.labels, len(rows.ids), classes)
        same += predict(task, name, replace(rows, scores=scores), classes)
    return metrics_of(task, same)


def measure(task: Task, predictions: Sequence[Prediction], sliced: str) -> Measurement:
    """Every metric of the task; `sliced` is the split whose slices are measured.

    Intervals draw groups where predictions have them, and slices of fewer than ten groups are left
    out. Raises ValueError when a whole split has no more.
    """
    of_split = [row for row in predictions if row.split == sliced]
    slices: dict[str, Metrics] = {}
    fairness: dict[str, dict[str, dict[str, Any]]] = {}
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
        slices[dimension] = {name: _estimates(task, rows) for name, rows in enough.items()}
        labels = [name for name, rows in enough.items() for _ in rows]
        rows = [row for rows in enough.values() for row in rows]
        fairness[dimension] = differences(task, Answers.of(rows), labels, sliced)
    return Measurement(metrics_of(task, predictions), slices, fairness)


def metrics_of(task: Task, predictions: Sequence[Prediction]) -> Metrics:
    """Every metric of the task with its interval, by split."""
    return {
        name: _estimates(task, [row for row in predictions if row.split == name])
        for name in dict.fromkeys(row.split for row in predictions)
    }


def _estimates(task: Task, rows: Sequence[Prediction]) -> Any:
    grouped = [row.group for row in rows] if any(row.group for row in rows) else None
    return estimates(task, Answers.of(rows), groups=grouped)


def _answers(
    task: Task, predictions: Sequence[Prediction]
) -> tuple[Columns, Mapping[str, Sequence[float]]]:
    """The answers to all rows and their losses, as `write_reference` takes them."""
    if task == "binary":
        numbers = [row.score for row in predictions]
        losses = [abs(row.score - int(row.expected)) for row in predictions]
        return {PREDICTION: ("numeric", numbers)}, {PREDICTION: losses}
    if task == "regression":
        numbers = [float(row.predicted) for row in predictions]
        losses = [abs(float(row.predicted) - float(row.expected)) for row in predictions]
        return {PREDICTION: ("numeric", numbers)}, {PREDICTION: losses}
    names = [row.predicted for row in predictions]
    losses = [float(row.predicted != row.expected) for row in predictions]
    return {PREDICTION: ("categorical", names)}, {PREDICTION: losses}
