"""The problem that all trials of a search solve: its rows, who fits them, who judges, by what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import encoding, metrics, tables, validation
from ml.automl.ensembles import Answers
from ml.automl.families import Numbers
from ml.automl.tables import Choices, Table, stop
from ml.automl.validation import Rows
from ml.measures.measurement import Rows as Measured
from ml.measures.measurement import metric_values
from ml.measures.tasks import Task

# Tags of a job that name the column by which its rows are divided: Azure ML's schema has no field.
GROUP, TIME = "group_column_name", "time_column_name"


@dataclass(frozen=True)
class Job:
    """What the spec says about the data and the judging; see `ml.automl.lowering`."""

    settings: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Of the folds and the fits."""
        return int(self.settings["seed"])

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return bool(self.settings["task"] == "regression")

    @property
    def metric(self) -> str:
        """The metric of the search."""
        return str(self.settings["metric"])

    @property
    def seconds(self) -> float:
        """What the search may take in all."""
        return float(self.settings.get("seconds") or math.inf)

    @property
    def featurizes(self) -> bool:
        """Whether missing numbers, scales and categories are taken care of."""
        return (self.settings.get("featurization") or {}).get("mode") != "off"

    @property
    def choices(self) -> Choices:
        """What the spec says of columns."""
        settings, tags = self.settings, self.settings.get("tags") or {}
        featurization = settings.get("featurization") or {}
        fills = {
            str(name): transformer.get("parameters") or {}
            for transformer in (featurization.get("transformer_params") or {}).get("imputer") or ()
            for name in transformer.get("fields") or ()
        }
        return Choices(
            settings.get("weight_column_name") or "",
            settings.get("cv_split_column_names") or (),
            featurization.get("column_name_and_types") or {},
            frozenset(featurization.get("blocked_transformers") or ()),
            fills,
            str(tags.get(GROUP) or ""),
            str(tags.get(TIME) or ""),
        )


@dataclass(frozen=True)
class Problem:
    """The rows of a search as every trial has them: which it fits, which judge, which are for the
    end. `classes` are in the order of the scores; `shuffled`: rows that judge are drawn at random.
    """

    job: Job
    table: Table
    task: Task
    labels: NDArray[Any]
    classes: Sequence[str]
    fitted: Rows
    folds: Sequence[validation.Fold]
    test: Rows
    sentence: str
    shuffled: bool
    divided: validation.Divided

    @property
    def positive(self) -> str:
        """The class whose probability is the answer, of two."""
        return self.classes[1] if self.task == "binary" else ""

    @property
    def spread(self) -> float:
        """The distance between the smallest and the largest value of a number."""
        return float(np.ptp(self.labels)) if self.task == "regression" else 1.0

    def encoding(self, rows: Rows) -> dict[str, Any]:
        """The document of `columns.json` as these rows fill it."""
        classes = self.classes if self.task == "multiclass" else ()
        return encoding.fit(self.table, self.labels, rows, classes, self.job.choices)

    def numbers(
        self, document: Mapping[str, Any], rows: Rows, *, are_fitted: bool = True
    ) -> Numbers:
        """The rows as a family takes them; the document was fitted to those that `are_fitted`."""
        tables.give_back()
        return Numbers(
            encoding.matrix(self.table, document, rows, self.labels if are_fitted else None),
            self.labels[rows],
            self.table.weights[rows] if self.table.weights is not None else None,
            self.task,
            len(self.classes),
            encoding.categorical(document),
            self.job.featurizes,
        )

    def aside(self, rows: Rows) -> validation.Fold:
        """Of rows of training those that are fitted, and those that watch: later ones where folds
        are, and of other groups; none where rows, groups or times are too few.
        """
        return self.divided.aside(rows)

    def sample(self, rows: Rows, count: int) -> Rows:
        """So many of these rows, of a classification with its share of each class."""
        labels = self.labels if self.classes else None
        of = validation.Divided(labels, len(self.labels), self.job.seed)
        return of.hold_out(rows, count / len(rows))[1]

    def matrix(self, document: Mapping[str, Any], rows: Rows) -> NDArray[np.float32]:
        """The rows as a model answers them."""
        return encoding.matrix(self.table, document, rows)

    def labels_of(self, rows: Rows) -> NDArray[Any]:
        """0 and 1 (binary), the classes (multiclass) or numbers, as datasets have them."""
        return self.table.labels[rows] if self.task == "multiclass" else self.labels[rows]

    def measured(self, rows: Rows, answers: NDArray[np.float64]) -> tuple[Any, ...]:
        """What the functions of `ml.automl.metrics` take."""
        return self.task, self.labels[rows], answers, len(self.classes), self.spread

    def score(self, rows: Rows, answers: NDArray[np.float64]) -> dict[str, float]:
        """Azure ML's metrics of answers to these rows, then those of the template."""
        of = metrics.values(*self.measured(rows, answers))
        measured = Measured([str(row) for row in rows], self.labels_of(rows), answers)
        own = metric_values(self.task, measured, self.classes)
        return {**{name: value for name, value in own.items() if name not in of}, **of}

    def value(self, answers: Answers) -> float:
        """The mean of the search's metric over the folds, higher for better answers."""
        folds = zip(answers.rows, answers.values, strict=True)
        metric = self.job.metric
        of_folds = [metrics.value(metric, *self.measured(*fold)) for fold in folds]
        return (-1.0 if metric.startswith("normalized_") else 1.0) * float(np.mean(of_folds))


def prepare(job: Job, training: Path, validated: Path | None, tested: Path | None) -> Problem:
    """The rows of the search, in the order training, validation, test."""
    settings, choices, is_class = job.settings, job.choices, not job.is_regression
    target = str(settings["target"])
    tables.give_back()
    parts = [
        tables.read(of, target, is_class=is_class) for of in (training, validated, tested) if of
    ]
    for part in parts[1:]:
        if {*part.columns} != {*parts[0].columns}:
            other = sorted(map(str, {*part.columns} ^ {*parts[0].columns}))[0]
            stop("other-columns", f"`{other}` is not in all tables", "the same columns in each")
    lengths = [int(part[target].notna().sum()) if target in part else len(part) for part in parts]
    table = tables.as_table(
        tables.together([{str(name): of for name, of in part.items()} for part in parts]),
        choices,
        target=target,
        regression=job.is_regression,
    )
    del parts
    if not job.featurizes and (
        texts := [of.name for of in table.columns if of.kind == "text" and of.used]
    ):
        stop("not-numbers", f"`{texts[0]}` is a text, and featurization is off", "numbers alone")
    classes = _classes(table, settings.get("positive_label")) if is_class else []
    labels = table.labels
    if classes:
        number = {name: at for at, name in enumerate(classes)}
        labels = np.fromiter((number[of] for of in table.labels), np.int16, len(table))
    task: Task = "regression" if not is_class else "binary" if len(classes) == 2 else "multiclass"
    starts = np.cumsum([0, *lengths])
    if len(classes) <= 2:  # the texts are needed of several classes alone
        table = replace(table, labels=labels)
    ranges = [np.arange(low, high, dtype=np.int32) for low, high in pairwise(starts)]
    fitted = ranges.pop(0)
    judged = ranges.pop(0) if validated else None
    test = ranges.pop(0) if tested else np.arange(0)
    divided = validation.divided(table, labels if is_class else None, choices, job.seed)
    if not tested and settings.get("test_data_size"):
        fitted, test = divided.hold_out(fitted, float(settings["test_data_size"]))
    if judged is not None:
        folds: Sequence[validation.Fold] = [(fitted, judged)]
        sentence = f"{len(judged)} rows of validation_data"
    else:
        folds, sentence = validation.folds(divided, table.splits, fitted, settings)
    for train, _ in folds:
        if classes and len(np.unique(labels[train])) < 2:
            stop("one-class", "a fold is fitted on rows of one class", "two in each")
    shuffled = judged is None and not table.splits and not choices.time
    tables.give_back()
    return Problem(
        job, table, task, labels, classes, fitted, folds, test, sentence, shuffled, divided
    )


def _classes(table: Table, label: object) -> list[str]:
    names, positive = sorted({*table.labels}), str(label)
    if label is None:
        return names
    if positive not in names:
        stop("no-such-value", f"`positive_label: {positive}`", f"one of {', '.join(names[:12])}")
    return [name for name in names if name != positive] + [positive] if len(names) == 2 else names
