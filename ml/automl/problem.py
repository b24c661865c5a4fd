"""Prepare the data that all trials of a search share: rows, splits and metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ml.automl import encoding, metrics, tables, validation
from ml.automl.cache import Cache
from ml.automl.ensembles import OutOfFoldPredictions
from ml.automl.models.estimators import Numbers
from ml.automl.tables import Choices, Table
from ml.automl.validation import Rows
from ml.measures.measurement import Rows as Measured
from ml.measures.measurement import metric_values
from ml.measures.tasks import Task
from ml.toolkit.automl import reading
from ml.toolkit.automl.cells import stop

Value = TypeVar("Value")
NO_CACHE = Cache()
# Tags of a job with the group or time column that splits its rows; Azure ML's schema has no field.
GROUP, TIME = "group_column_name", "time_column_name"
# The tag with the number of repetitions of cross-validation; Azure ML has none.
REPEATS = "cross_validation_repeats"
_MOST_REPEATS = 20


class Job:
    """The spec's settings for data and validation, from `ml.backends.local.automl_sweep`.

    `seed` is for folds and fits; `seconds` is the search's time limit. `featurizes` is false if the
    spec turns featurization off.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.task, self.target = str(settings["task"]), str(settings["target"])
        self.metric, self.seed = str(settings["metric"]), int(settings["seed"])
        self.seconds = float(settings.get("seconds") or math.inf)
        featurization, tags = settings.get("featurization") or {}, settings.get("tags") or {}
        self.featurizes = featurization.get("mode") != "off"
        repeats = str(tags.get(REPEATS) or 1)
        if not repeats.isdecimal() or not 1 <= int(repeats) <= _MOST_REPEATS:
            expected = f"a whole number from 1 to {_MOST_REPEATS}"
            stop("bad-repeats", f"`tags: {{{REPEATS}: {repeats}}}`", expected, "for example 3")
        self.repeats = int(repeats)
        fills = {
            str(name): transformer.get("parameters") or {}
            for transformer in (featurization.get("transformer_params") or {}).get("imputer") or ()
            for name in transformer.get("fields") or ()
        }
        self.choices = Choices(
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
    """The rows of a search, the same for every trial: training, validation and test."""

    job: Job
    table: Table
    task: Task
    labels: NDArray[Any]  # class number or regression target of each row of `table`
    classes: Sequence[str]  # names, in the column order of the scores; empty for a regression
    fitted: Rows  # training rows of the final fit
    folds: Sequence[validation.Fold]  # (training rows, validation rows) of each fold
    test: Rows  # test rows; empty without test data
    sentence: str  # a description of the validation
    shuffled: bool  # whether validation rows are drawn at random
    divided: validation.Divided
    source: str = ""  # cache key
    cache: Cache = NO_CACHE

    @property
    def positive(self) -> str:
        """Return the positive class of a binary task; "" for other tasks."""
        return self.classes[1] if self.task == "binary" else ""

    @property
    def target_range(self) -> float:
        """Return the range of a regression's target in all rows; 1 for a classification."""
        return float(np.ptp(self.labels)) if self.task == "regression" else 1.0

    @property
    def target(self) -> dict[str, float] | None:
        """Return mean and standard deviation of a regression's training target; else None.

        The target is standardized with them, since the libraries have absolute thresholds and
        penalties, and use single precision.
        """
        if self.task != "regression":
            return None
        values = self.labels[self.fitted].astype(np.float64)
        return {"mean": float(values.mean()), "deviation": float(values.std()) or 1.0}

    def standardized(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return target values in standardized units; class numbers are unchanged."""
        target = self.target
        return values if target is None else (values - target["mean"]) / target["deviation"]

    def in_units(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert predictions of the standardized target to its original units."""
        target = self.target
        return answers if target is None else answers * target["deviation"] + target["mean"]

    @property
    def prediction_fields(self) -> dict[str, Any]:
        """Return the fields of members.json that describe the predictions."""
        target = self.target
        about: dict[str, Any] = {"task": self.task, "positive": self.positive}
        return about if target is None else about | {"target": target}

    def encoding(self, rows: Rows) -> dict[str, Any]:
        """Return the content of columns.json, with encodings fitted to these rows; cached."""
        classes = self.classes if self.task == "multiclass" else ()
        args = (self.table, self.standardized(self.labels), rows, classes, self.job.choices)
        return self.cached(lambda: encoding.fit(*args), "encoding", rows)

    def numbers(
        self, document: Mapping[str, Any], rows: Rows, *, are_fitted: bool = True
    ) -> Numbers:
        """Return the rows as the input of a fit; `are_fitted`: the document was fitted to them."""
        columns = encoding.columns(document)
        return Numbers(
            columns.fill(self.matrix(document, rows, are_fitted=are_fitted)),
            self.standardized(self.labels[rows]),
            self.table.weights[rows] if self.table.weights is not None else None,
            self.task,
            len(self.classes),
            columns.categorical,
            self.job.featurizes,
        )

    def sample(self, rows: Rows, count: int) -> Rows:
        """Draw about `count` of these rows at random; stratified by class in a classification."""
        labels = self.labels if self.classes else None
        divided = validation.Divided(labels, len(self.labels), self.job.seed)
        return divided.hold_out(rows, count / len(rows))[1]

    def matrix(
        self, document: Mapping[str, Any], rows: Rows, *, are_fitted: bool = False
    ) -> NDArray[np.float32]:
        """Return the encoded rows (rows, features); cached.

        With `are_fitted`, target encodings are cross-fitted, as training needs.
        """
        labels = self.standardized(self.labels) if are_fitted else None
        args = (self.table, document, rows, labels)
        name = f"{'fitted' if are_fitted else 'answered'} {json.dumps(document)}"
        return self.cached(lambda: encoding.matrix(*args), name, rows)

    def cached(self, compute: Callable[[], Value], name: str, rows: Rows) -> Value:
        """Return the result of `compute`, cached for all trials under `name` and these rows."""
        return self.cache.get_or_compute(compute, self.source, name, rows.tobytes())

    def labels_of(self, rows: Rows) -> NDArray[Any]:
        """Return the rows' labels: 0 and 1 (binary), class names (multiclass) or numbers."""
        return self.table.labels[rows] if self.task == "multiclass" else self.labels[rows]

    def metrics(self, rows: Rows, answers: NDArray[np.float64]) -> metrics.Defined:
        """Return Azure ML's metrics of the rows' predictions: name → function that computes it."""
        labels, classes = self.labels[rows], len(self.classes)
        return metrics.defined(self.task, labels, answers, classes, self.target_range)

    def score(self, rows: Rows, answers: NDArray[np.float64]) -> dict[str, float]:
        """Return the template's and Azure ML's metrics of the rows' predictions, by name."""
        measured = Measured([str(row) for row in rows], self.labels_of(rows), answers)
        scores = metric_values(self.task, measured, self.classes)
        functions = self.metrics(rows, answers)
        return scores | {name: float(compute()) for name, compute in functions.items()}

    def value(self, out_of_fold: OutOfFoldPredictions) -> float:
        """Return the mean of the search's metric over the folds; the sign of errors is reversed.

        Returns NaN if the metric is undefined on a fold.
        """
        name, folds = self.job.metric, zip(out_of_fold.rows, out_of_fold.values, strict=True)
        computed = [self.metrics(*fold).get(name, lambda: math.nan)() for fold in folds]
        return float(np.mean(computed)) * (-1 if name.startswith("normalized_") else 1)


def prepare(
    job: Job,
    training: Path,
    validated: Path | None,
    tested: Path | None,
    cache: Cache = NO_CACHE,
) -> Problem:
    """Read the data of a search, fix its splits, and return the problem.

    The table has the training rows first, then validation, then test rows. Ends the program for
    data that no trial can use.
    """
    sources = (training, validated, tested)
    files = sorted(file for source in sources if source for file in source.rglob("*"))
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    source = json.dumps([job.settings, list(map(str, sources)), states])
    problem = cache.get_or_compute(lambda: _prepare(job, *sources), source)
    return replace(problem, source=source, cache=cache)


def _prepare(job: Job, training: Path, validated: Path | None, tested: Path | None) -> Problem:
    settings, choices, is_class = job.settings, job.choices, job.task != "regression"
    files = [folder for folder in (training, validated, tested) if folder]
    parts = reading.read_all(files, job.target, choices.texts, is_class=is_class)
    if tested:  # test data need no weight and fold columns
        given_there = [name for name in choices.of_fits if name in parts[0]]
        parts[-1] = parts[-1].assign(**dict.fromkeys(given_there, 0))
    for part in parts[1:]:
        if {*part.columns} != {*parts[0].columns}:
            name = sorted(map(str, {*part.columns} ^ {*parts[0].columns}))[0]
            hint = f"add `{name}` to each table, or drop it with `drop_columns` of the MLTable"
            stop("column-mismatch", f"`{name}` is not in all tables", "the same columns", hint)
    lengths = [
        int(frame[job.target].notna().sum()) if job.target in frame else len(frame)
        for frame in parts
    ]
    sources = ["training_data", *(["validation_data"] if validated else []), "test_data"]
    for source, length in [*zip(sources, lengths, strict=False)][1:]:
        if not length:
            actual, hint = f"no row of {source} has a `{job.target}`", f"fill in `{job.target}`"
            stop("no-label", actual, "labelled rows to compute the metrics on", hint)
    table = tables.as_table(
        reading.concatenate([{str(name): value for name, value in part.items()} for part in parts]),
        choices,
        target=job.target,
        regression=not is_class,
    )
    required = reading.required(training)
    columns = [replace(column, required=column.name in required) for column in table.columns]
    table = replace(table, columns=columns)
    del parts
    texts = [column.name for column in table.columns if column.kind == "text" and column.used]
    if texts and not job.featurizes:
        actual = f"`{texts[0]}` is text, and featurization is off"
        stop("not-numbers", actual, "numeric columns", "featurization: {mode: auto}")
    classes, labels = list[str](), table.labels
    if is_class:
        _demand_seen(labels, lengths, sources)
        classes = _classes(labels[: lengths[0]], settings.get("positive_label"))
        number = {name: index for index, name in enumerate(classes)}
        labels = np.fromiter((number[label] for label in table.labels), np.int16, len(table))
    task: Task = "regression" if not is_class else "binary" if len(classes) == 2 else "multiclass"
    if task != "multiclass":  # only multiclass metrics need the class names
        table = replace(table, labels=labels)
    starts = np.cumsum([0, *lengths])
    ranges = [np.arange(low, high, dtype=np.int32) for low, high in pairwise(starts)]
    fitted = ranges.pop(0)
    validation_rows = ranges.pop(0) if validated else None
    test = ranges.pop(0) if tested else np.arange(0)
    divided = validation.divided(table, labels if is_class else None, choices, job.seed)
    if not tested and settings.get("test_data_size"):
        fitted, test = divided.hold_out(fitted, float(settings["test_data_size"]))
    if validation_rows is not None:
        folds: Sequence[validation.Fold] = [(fitted, validation_rows)]
        sentence = f"{len(validation_rows)} rows of validation_data"
    else:
        folds, sentence = validation.folds(divided, table.splits, fitted, settings, job.repeats)
    counts = np.ones(len(table)) if table.weights is None else table.weights
    if classes and any(len(np.unique(labels[train[counts[train] > 0]])) < 2 for train, _ in folds):
        weighed = "" if table.weights is None else ", without those whose weight is 0"
        actual = f"the training rows of a fold have one class{weighed}"
        stop("single-class", actual, "two classes in each", "lower n_cross_validations")
    shuffled = validation_rows is None and not table.splits and not choices.time
    return Problem(
        job, table, task, labels, classes, fitted, folds, test, sentence, shuffled, divided
    )


def _demand_seen(labels: NDArray[Any], lengths: Sequence[int], sources: Sequence[str]) -> None:
    """End the program if validation or test rows have a class without training rows."""
    seen = {*labels[: lengths[0]]}
    for source, high, length in zip(sources, np.cumsum(lengths), lengths, strict=False):
        if unseen := sorted({*labels[high - length : high]} - seen):
            what, hint = (
                f"{source} has the class `{unseen[0]}`",
                "add rows of this class to training_data",
            )
            stop("unknown-class", what, f"those of training: {', '.join(sorted(seen)[:12])}", hint)


def _classes(labels: NDArray[Any], label: object) -> list[str]:
    """Return the names of the classes in the training labels, in the column order of the scores."""
    names, positive = sorted({*labels}), str(label)
    if label is None:
        return names
    if positive not in names:
        expected = f"one of {', '.join(names[:12])}"
        stop("no-such-value", f"`{positive}` is no class", expected, f"positive_label: {names[-1]}")
    return [name for name in names if name != positive] + [positive] if len(names) == 2 else names
