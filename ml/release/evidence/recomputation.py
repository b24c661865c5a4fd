"""Recompute what evidence states, from the hashed predictions and identifiers stored with it.

No logged or stated number is trusted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ml.measures import leakage
from ml.measures.bootstrap import Values, enough_groups
from ml.measures.evaluation import (
    COLUMNS,
    PREDICTIONS,
    PROBABILITY,
    SLICE,
    Prediction,
    custom_columns,
    custom_metrics,
    task_of,
    wrong_primary,
)
from ml.measures.fairness import FEWEST
from ml.measures.leakage import IDENTIFIERS, SHARED, TEST, TRAINING
from ml.measures.metrics import CustomMetric, Draws, Metric, ScoredRows, estimates, value
from ml.measures.schema import Disparity, Estimate, Evaluation
from ml.measures.tasks import TASKS, Task, fault, metrics_of, probabilities_fault
from policies.promotion.evidence import Evidence, Statistic

# Sums of the same numbers in another order differ by less than this.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Predictions:
    """The rows of predictions.csv."""

    rows: Mapping[str, Mapping[str, Prediction]]  # split → unit → row
    sha256: str  # of the file, in hex; "" if the rows were not read from one
    faults: tuple[str, ...]  # why the file cannot be used, () if it can
    task: Task = "ranking"
    custom: Mapping[str, CustomMetric] = field(default_factory=dict)  # by name; rows have values

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that can be computed from the rows, by name."""
        return metrics_of(self.task, self.custom)

    def answers(self, split: str) -> ScoredRows:
        """Return the rows of a split for metrics, in the order of the file."""
        return ScoredRows.from_rows(list(self.rows.get(split, {}).values()))

    def probabilities(self, split: str) -> Mapping[str, Values]:
        """Return the probability of each class for each unit of the split; {} if there are none."""
        rows = list(self.rows.get(split, {}).values())
        return {
            name: np.array([row.probabilities[name] for row in rows])
            for name in (rows[0].probabilities if rows else ())
        }

    def group_labels(self, split: str) -> list[str] | None:
        """Return the bootstrap group of each unit of the split; None if there are no groups."""
        labels = [row.group for row in self.rows.get(split, {}).values()]
        return labels if any(labels) else None

    def outcomes(self, metric: str) -> Mapping[str, Mapping[str, float]]:
        """Return split → unit → value of the metric; NaN if it is defined only for a split."""
        definition = self.metrics.get(metric)
        if definition is None:
            return {}
        if definition.of_units is None:
            return {split: dict.fromkeys(rows, math.nan) for split, rows in self.rows.items()}
        return {
            split: dict(zip(rows, definition.of_units(self.answers(split)).tolist(), strict=True))
            for split, rows in self.rows.items()
        }

    def every_outcome(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Return metric → split → unit → value, for the metrics that are defined per unit."""
        return {
            name: self.outcomes(name)
            for name, definition in self.metrics.items()
            if definition.of_units is not None
        }

    def statistics(self, metric: str) -> Mapping[str, Statistic]:
        """Return split → a function that computes the metric on bootstrap draws of its units.

        {} unless the metric is defined only for a whole split.
        """
        definition = self.metrics.get(metric)
        if definition is None or definition.of_all is None:
            return {}
        return {split: self._statistic(split, definition.of_all) for split in self.rows}

    def _statistic(self, split: str, of_all: Callable[[Draws], Values]) -> Statistic:
        answers = self.answers(split)
        row_numbers = {unit: number for number, unit in enumerate(self.rows[split])}

        def statistic(units: Sequence[str]) -> Callable[[Values], Values]:
            of_units = answers[[row_numbers[unit] for unit in units]]
            return lambda times: of_all(Draws(of_units, times))

        return statistic

    def groups(self) -> Mapping[str, Mapping[str, str]]:
        """Return split → unit → bootstrap group, for the splits that have groups."""
        return {
            split: {unit: row.group for unit, row in rows.items()}
            for split, rows in self.rows.items()
            if self.group_labels(split)
        }

    def members(self) -> Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]]:
        """Return split → dimension → slice → the units in it."""
        members: dict[str, dict[str, dict[str, list[str]]]] = {}
        for split, rows in self.rows.items():
            for unit, row in rows.items():
                for dimension, name in row.slices.items():
                    if name:
                        slices = members.setdefault(split, {}).setdefault(dimension, {})
                        slices.setdefault(name, []).append(unit)
        return {
            split: {
                dimension: {name: tuple(units) for name, units in slices.items()}
                for dimension, slices in dimensions.items()
            }
            for split, dimensions in members.items()
        }

    def undefined(self, split: str) -> Mapping[str, Mapping[str, str]]:
        """Return `DIMENSION SLICE` → metric that is undefined on the slice → a sentence why."""
        answers = self.answers(split)
        row_numbers = {unit: number for number, unit in enumerate(self.rows.get(split, {}))}
        lacking: dict[str, dict[str, str]] = {}
        for dimension, slices in self.members().get(split, {}).items():
            for name, units in slices.items():
                of_slice = answers[[row_numbers[unit] for unit in units]]
                words = _lacking(self.task, of_slice)
                for metric, definition in metrics_of(self.task).items():
                    try:
                        value(definition, of_slice)
                    except ValueError:
                        lacking.setdefault(f"{dimension} {name}", {})[metric] = words
        return lacking


def _lacking(task: Task, rows: ScoredRows) -> str:
    """Return a sentence on what the rows may lack if a metric is undefined on them."""
    if task == "detection":
        return f"its {len(rows)} images have no object"
    if task == "forecasting":
        return f"in its {len(rows)} forecasts the values or the errors of seasonal naive are all 0"
    labels = Counter(rows.expected.tolist())
    counts = ", ".join(f"{labels[label]} of {label}" for label in ("0", "1"))
    return f"of its {len(rows)} rows {counts}, at least 1 of each is needed"


def sha256(path: Path) -> str:
    """Return the file's sha256, in hex; raise OSError when it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_predictions(path: Path, evaluation: Evaluation) -> Predictions:
    """Parse predictions.csv of an evaluation, which states the task and its custom metrics.

    Invalid rows are left out and described in `faults`. Raises OSError if the file cannot be read.
    """
    splits: dict[str, dict[str, Prediction]] = {}
    faults = []
    task: Task = "ranking"
    custom: Mapping[str, CustomMetric] = {}
    try:
        task, stated = task_of(evaluation), custom_metrics(evaluation.custom_metrics)
        metrics_of(task, stated)
        custom = stated
    except ValueError as error:
        faults.append(str(error))
    # Read once, so that the rows come from the hashed bytes even if the file changes meanwhile.
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    with io.StringIO(content.decode(errors="replace"), newline="") as stream:
        rows = csv.DictReader(stream)
        names = tuple(rows.fieldnames or ())
        slices, classes = (
            [name for name in names[len(COLUMNS) :] if name.startswith(prefix)]
            for prefix in (SLICE, PROBABILITY)
        )
        expected = (*COLUMNS, *slices, *classes, *custom_columns(custom))
        if names != expected or len(set(names)) != len(names):
            problem = (
                f"{PREDICTIONS} does not have the columns {COLUMNS}, of slices, of classes and of "
                "custom metrics"
            )
            return Predictions({}, digest, (*faults, problem), task)
        for line, row in enumerate(rows, start=2):
            units = splits.setdefault(row["split"], {})
            if None in row or None in row.values():
                wrong = f"{len(names)} columns are expected"
            else:
                wrong = _row_fault(row, task, classes, custom)
                if not wrong and row["unit"] in units:
                    wrong = f"{row['unit']} twice in {row['split']}"
            if wrong:
                faults.append(f"{PREDICTIONS}:{line}: {wrong}")
                continue
            units[row["unit"]] = Prediction(
                unit=row["unit"],
                split=row["split"],
                expected=row["expected"],
                predicted=row["predicted"],
                rank=int(row["rank"]),
                score=float(row["score"]),
                group=row["group"],
                slices={name.removeprefix(SLICE): row[name] for name in slices},
                probabilities={
                    name.removeprefix(PROBABILITY): float(row[name]) for name in classes
                },
                custom={
                    name: tuple(float(row[column]) for column in custom_columns({name: metric}))
                    for name, metric in custom.items()
                },
            )
    return Predictions(splits, digest, tuple(faults), task, custom)


def with_predictions(evidence: Evidence, rows: Predictions) -> Evidence:
    """Return the evidence with each unit's primary metric, label, group and slices."""
    evaluation = evidence.evaluation
    metric = evaluation.primary_metric or ""
    framework = TASKS[rows.task].metrics.get(metric)
    return replace(
        evidence,
        outcomes=rows.outcomes(metric),
        labels={
            split: {unit: row.expected for unit, row in units.items()}
            for split, units in rows.rows.items()
        },
        statistics=rows.statistics(metric),
        groups=rows.groups(),
        members=rows.members(),
        range=framework.range if framework else None,
        undefined=rows.undefined(evaluation.slice_split or ""),
    )


def _row_fault(
    row: Mapping[str, str], task: Task, classes: Sequence[str], custom: Mapping[str, CustomMetric]
) -> str:
    if not row["rank"].isdecimal():
        return f"rank {row['rank']!r}"
    numbers = {}
    for name in ("score", *classes, *custom_columns(custom)):
        try:
            numbers[name] = float(row[name])
        except ValueError:
            return f"{name} {row[name]!r}"
    score = numbers["score"]
    expected, predicted = row["expected"], row["predicted"]
    if wrong := fault(task, expected, predicted, int(row["rank"]), score):
        return wrong
    for name, metric in custom.items():
        if wrong := metric.fault([numbers[column] for column in custom_columns({name: metric})]):
            return f"the metric {name} gives {wrong}"
    if not classes:
        return ""
    probabilities = {name.removeprefix(PROBABILITY): numbers[name] for name in classes}
    return probabilities_fault(task, expected, predicted, score, probabilities)


def mismatches(evaluation: Evaluation, predictions: Predictions) -> tuple[str, ...]:
    """Return a sentence for each statement that does not follow from the predictions."""
    wrong = list(predictions.faults)
    if predictions.sha256 != evaluation.predictions.sha256:
        wrong.append(f"{PREDICTIONS} is not the file whose sha256 the evidence states")
    if not evaluation.metrics:
        wrong.append("the evidence states no metric")
    if (evaluation.resampled != evaluation.unit) is not bool(predictions.groups()):
        wrong.append(f"{PREDICTIONS} does not group {evaluation.unit}s as the evidence states")
    for split, metrics in evaluation.metrics.items():
        answers, labels = predictions.answers(split), predictions.group_labels(split)
        wrong += _metric_mismatches(split, metrics, predictions, answers, labels)
    primary = (predictions.task, evaluation.primary_metric, evaluation.goal, predictions.custom)
    if problem := wrong_primary(*primary):
        wrong.append(problem)
    return (*wrong, *_slice_mismatches(evaluation, predictions))


def _slice_mismatches(evaluation: Evaluation, predictions: Predictions) -> Iterator[str]:
    split = evaluation.slice_split or ""
    members = predictions.members().get(split, {})
    answers, groups = predictions.answers(split), predictions.group_labels(split)
    row_of = {unit: number for number, unit in enumerate(predictions.rows.get(split, {}))}
    for dimension, slices in evaluation.slices.items():
        # The evaluation leaves out a slice with too few groups.
        units = {
            name: slice_units
            for name, slice_units in members.get(dimension, {}).items()
            if name in slices
            or not groups
            or enough_groups([groups[row_of[unit]] for unit in slice_units])
        }
        for name in sorted(units.keys() ^ slices.keys()):
            yield (
                f"{split}: the evidence and {PREDICTIONS} do not both have the slice "
                f"{dimension} {name}"
            )
        for name in units.keys() & slices.keys():
            rows = [row_of[unit] for unit in units[name]]
            labels = [groups[row] for row in rows] if groups else None
            yield from _metric_mismatches(
                f"{dimension} {name}", slices[name], predictions, answers[rows], labels
            )
    for dimension, metrics in evaluation.fairness.items():
        for metric, stated in metrics.items():
            slices = evaluation.slices.get(dimension, {})
            yield from _disparity_mismatches(dimension, metric, stated, split, slices)


def _disparity_mismatches(
    dimension: str,
    metric: str,
    stated: Disparity,
    split: str,
    slices: Mapping[str, Mapping[str, Estimate]],
) -> Iterator[str]:
    """Yield a mismatch if a stated fairness difference does not follow from the slices' metrics."""
    name = f"{dimension}.{metric}"
    values = {
        slice_name: value
        for slice_name, metrics in slices.items()
        if metric in metrics
        and (metrics[metric].count or 0) >= FEWEST
        and (value := metrics[metric].value) is not None
    }
    if stated.split != split or len(values) < 2:
        yield f"the difference {name} does not follow from the slices of {split or 'no split'}"
        return
    lowest, highest = min(values.values()), max(values.values())
    if not (
        _close(stated.difference, highest - lowest)
        and stated.slices == len(values)
        and _close(values.get(stated.lowest or ""), lowest)
        and _close(values.get(stated.highest or ""), highest)
    ):
        yield f"the difference {name} states {stated.difference}, recomputed {highest - lowest:.6g}"


def _metric_mismatches(
    place: str,
    metrics: Mapping[str, Estimate],
    predictions: Predictions,
    answers: ScoredRows,
    groups: Sequence[str] | None,
) -> Iterator[str]:
    task, defined = predictions.task, predictions.metrics
    again: Mapping[str, Estimate] = {}
    why = "it is not defined on these units"
    try:
        # In the order of the file, so that the seeded bootstrap draws the same samples.
        stated_metrics = {name: defined[name] for name in metrics if name in defined}
        again = estimates(stated_metrics, answers, groups=groups)
    except ValueError as error:
        why = str(error)
    for metric, stated in metrics.items():
        name = f"{place}.{metric}"
        if metric not in defined:
            yield f"{name} is not a metric of the task {task}: {', '.join(defined)}"
        elif not len(answers):
            yield f"{name} has no predictions"
        elif metric not in again:
            yield f"{name} cannot be recomputed: {why}"
        else:
            yield from _estimate_mismatches(name, stated, again[metric])


def _estimate_mismatches(name: str, stated: Estimate, again: Estimate) -> Iterator[str]:
    """Yield a sentence for each stated value, interval end or count that differs from `again`."""
    pairs = {
        "": (stated.value, again.value),
        ".low": (stated.low, again.low),
        ".high": (stated.high, again.high),
        ".count": (stated.count, again.count),
    }
    for part, (claimed, recomputed) in pairs.items():
        if not _close(claimed, recomputed):
            yield f"{name}{part} states {claimed}, recomputed {recomputed:.6g}"


def _close(claimed: float | None, recomputed: float | None) -> bool:
    if claimed is None or recomputed is None:
        return False
    return math.isclose(claimed, recomputed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def overlap_mismatches(evaluation: Evaluation, folder: Path) -> tuple[str, ...]:
    """Return a sentence for each stated overlap of training and test that is wrong.

    The overlaps are recomputed from the identifiers in the folder. () if all are right, and for
    evidence without identifiers, which the gate `leakage` rejects.
    """
    if evaluation.identifiers is None:
        return ()
    try:
        content = (folder / IDENTIFIERS).read_bytes()
    except OSError as error:
        return (str(error),)
    if hashlib.sha256(content).hexdigest() != evaluation.identifiers:
        return (f"{IDENTIFIERS} is not the file whose sha256 the evidence states",)
    return tuple(_overlaps(evaluation, content.decode(errors="replace")))


def _overlaps(evaluation: Evaluation, text: str) -> Iterator[str]:
    rows = csv.reader(io.StringIO(text))
    if tuple(next(rows, ())) != leakage.COLUMNS:
        yield f"{IDENTIFIERS} does not have the columns {leakage.COLUMNS}"
        return
    training: dict[str, set[str]] = {}
    test: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=2):
        match row:
            case [name, str(part), hashed] if part == TRAINING:
                training.setdefault(name, set()).add(hashed)
            case [name, str(part), hashed] if part == TEST:
                test.setdefault(name, []).append(hashed)
            case _:
                yield f"{IDENTIFIERS}:{number}: {row} is not an identifier"
    if evaluation.out_of_fold:
        counted = Counter(hashed for identifiers in test.values() for hashed in {*identifiers})
        if twice := sum(times > 1 for times in counted.values()):
            yield f"{IDENTIFIERS}: {twice} rows are in the test of two folds"
    for check in evaluation.leakage:
        if check.check != SHARED:
            continue
        name = check.of or ""
        trained, tested = training.get(name, set()), test.get(name, [])
        both = sum(hashed in trained for hashed in tested)
        if not trained or not tested:
            yield f"{SHARED} {name}: {IDENTIFIERS} lacks those of training or of the test"
        elif (check.value, check.units) != (both, len(tested)):
            stated = f"{check.value} of {check.units}"
            yield f"{SHARED} {name} states {stated}, recomputed {both} of {len(tested)}"
