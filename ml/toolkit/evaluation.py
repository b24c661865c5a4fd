"""evaluation.json: the metrics of a project's model, with the predictions that they follow from.

`predictions.csv` has one row a unit (a question, say) of a split; every metric, by slices too, can
be computed again from it, and its sha256 stands in evaluation.json. Nothing that is missing, NaN or
infinite is written or read.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ml.toolkit.bootstrap import Estimate
from ml.toolkit.leakage import IDENTIFIERS, Check, identifiers
from ml.toolkit.metrics import METRICS, TASKS, Task, fault, probabilities_fault

SCHEMA_VERSION = 2
EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.csv"
COLUMNS = ("unit", "split", "group", "expected", "predicted", "rank", "score")
# Behind them one column a dimension that slices the units, such as `slice:topic`, and one a class
# of a multiclass model, such as `probability:setosa`.
SLICE, PROBABILITY = "slice:", "probability:"
Metrics = Mapping[str, Mapping[str, Estimate]]


class EvaluationRefused(ValueError):
    """An evaluation has a field that cannot be relied on; the message names the field."""


@dataclass(frozen=True)
class Prediction:
    """The first answer to one unit, as the task has it (`ml.toolkit.metrics.Answers`): where the
    right one came in a ranking, what was given for what in the others.

    `unit` names a row across splits: one of the test that is in validation too is a leak. `slices`
    says where the unit belongs by each dimension ("" for nowhere). `group` is what the bootstrap
    draws with it (an entity, a block of time); "" when units are drawn one by one. `probabilities`
    has every class of a multiclass model, or nothing where there are many.
    """

    unit: str
    split: str
    slices: Mapping[str, str]
    expected: str
    predicted: str
    rank: int = 0
    score: float = 0.0
    group: str = ""
    probabilities: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The content of evaluation.json; `predictions` (file, sha256, rows) is filled by `write`.

    `unit` is what one prediction is about, `resampled` what the intervals draw: the unit, or what
    its `group` is. `slices` and `fairness` are of the split `slice_split`. `leakage` lists what
    was looked for, whether it was found or not; the gate of that name refuses a model of which
    nothing is listed. `identifiers`, the sha256 of those that were compared, is filled by `write`.
    `baseline_from` says how the baseline was made.
    """

    project: str
    model: str
    primary_metric: str
    goal: Literal["maximize", "minimize"]
    unit: str
    resampled: str
    data: Mapping[str, Mapping[str, Any]]
    feature_set_hash: str
    seed: int
    hyperparameters: Mapping[str, str | int | float | bool]
    metrics: Metrics
    baseline: Metrics
    slice_split: str
    slices: Mapping[str, Metrics]
    fairness: Mapping[str, Mapping[str, Mapping[str, Any]]]
    contributions: Sequence[Mapping[str, str | float]]
    explanation: Mapping[str, str | float]
    stability: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, float | int]
    predictions: Mapping[str, str | int] = field(default_factory=dict)
    task: Task = "ranking"
    leakage: Sequence[Check] = ()
    identifiers: str = ""
    baseline_from: str = ""

    def values(self, of: str = "metrics") -> dict[str, float]:
        """The metrics, or those of the `baseline`, as `SPLIT_METRIC`, for a tracker."""
        return {
            f"{split}_{name}": estimate.value
            for split, metrics in getattr(self, of).items()
            for name, estimate in metrics.items()
        }

    def text(self) -> str:
        """A table of the metrics beside the baseline's, with intervals, for a person to read."""
        lines = [f"{'':13}{'metric':22}{'this model':>33}{'baseline':>33}"]
        for split, metrics in self.metrics.items():
            for number, (name, ours) in enumerate(metrics.items()):
                theirs = self.baseline.get(split, {}).get(name)
                first = "" if number else split
                line = f"{first:13}{name:22}{ours!s:>33}{theirs or ''!s:>33}"
                lines.append(line.rstrip())
        return "\n".join(lines)


def write_evaluation(
    folder: Path, evaluation: Evaluation, predictions: Sequence[Prediction]
) -> None:
    """Write the files; EvaluationRefused, and nothing is written, when a number is not finite,
    when a unit lacks a dimension, or when groups and `resampled` do not fit.
    """
    dimensions = tuple(predictions[0].slices) if predictions else ()
    classes = tuple(predictions[0].probabilities) if predictions else ()
    grouped = evaluation.resampled != evaluation.unit
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    of_classes = [PROBABILITY + name for name in classes]
    writer.writerow([*COLUMNS, *(SLICE + name for name in dimensions), *of_classes])
    for row in predictions:
        if wrong := fault(evaluation.task, row.expected, row.predicted, row.rank, row.score):
            raise EvaluationRefused(f"{row.unit}: {wrong}")
        if classes and (
            wrong := probabilities_fault(row.expected, row.predicted, row.score, row.probabilities)
        ):
            raise EvaluationRefused(f"{row.unit}: {wrong}")
        if tuple(row.slices) != dimensions:
            raise EvaluationRefused(f"{row.unit}: slices {tuple(row.slices)}, not {dimensions}")
        if bool(row.group) is not grouped:
            rule = f"{evaluation.resampled}s are drawn, each a group of {evaluation.unit}s"
            raise EvaluationRefused(f"{row.unit}: group {row.group!r}, where {rule}")
        values = [getattr(row, name) for name in COLUMNS]
        probabilities = [f"{row.probabilities[name]:.4g}" for name in classes]
        writer.writerow([*values, *row.slices.values(), *probabilities])
    content = table.getvalue().encode()
    document = {"schema_version": SCHEMA_VERSION, **asdict(evaluation)}
    document["predictions"] = {
        "file": PREDICTIONS,
        "sha256": sha256(content).hexdigest(),
        "rows": len(predictions),
    }
    document["leakage"] = [item.as_json() for item in evaluation.leakage]
    compared = identifiers(evaluation.leakage).encode()
    document["identifiers"] = sha256(compared).hexdigest() if compared else ""
    check(document)
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PREDICTIONS).write_bytes(content)
    if compared:
        (folder / IDENTIFIERS).write_bytes(compared)
    (folder / EVALUATION).write_text(text, encoding="utf-8")


def read_evaluation(folder: Path) -> dict[str, Any]:
    """evaluation.json as written; EvaluationRefused when it or its predictions were changed."""
    try:
        document = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
        content = (folder / PREDICTIONS).read_bytes()
    except (OSError, ValueError) as error:
        raise EvaluationRefused(f"{folder / EVALUATION}: {error}") from None
    check(document)
    if sha256(content).hexdigest() != document["predictions"]["sha256"]:
        raise EvaluationRefused(f"{folder / PREDICTIONS} is not what {EVALUATION} was made from")
    return dict(document)


def check(document: object) -> None:
    """EvaluationRefused unless the document has every field of the schema, all numbers finite."""
    if not isinstance(document, dict):
        raise EvaluationRefused("not a JSON object")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise EvaluationRefused(f"schema_version is not {SCHEMA_VERSION}")
    expected = {"schema_version", *Evaluation.__dataclass_fields__}
    # Earlier evaluations have not all of these.
    if odd := (document.keys() ^ expected) - {"leakage", "identifiers", "baseline_from"}:
        raise EvaluationRefused(f"missing or unknown fields: {', '.join(sorted(odd))}")
    _finite(document, "")
    if wrong := wrong_primary(document["task"], document["primary_metric"], document["goal"]):
        raise EvaluationRefused(wrong)
    tables = {"metrics": document["metrics"], "baseline": document["baseline"]}
    tables |= {f"slices.{name}": of for name, of in document["slices"].items()}
    for place, table in tables.items():
        for name, metrics in table.items():
            for metric, estimate in metrics.items():
                _estimate(estimate, f"{place}.{name}.{metric}")
    if not any(document["primary_metric"] in of for of in document["metrics"].values()):
        raise EvaluationRefused(f"no split has the metric {document['primary_metric']}")


def wrong_primary(task: object, metric: object, goal: object) -> str:
    """Why versions of a model of that task cannot be compared by the metric, or ""."""
    if task not in TASKS:
        return f"task is {task!r}, not one of {', '.join(TASKS)}"
    if metric not in METRICS[task]:
        return f"primary_metric is {metric!r}, not one of {', '.join(METRICS[task])}"
    required = METRICS[task][str(metric)].goal
    return "" if goal == required else f"goal is {goal!r}, which for {metric} is to {required}"


def _estimate(estimate: Mapping[str, float], place: str) -> None:
    if estimate.keys() != {"value", "low", "high", "count"}:
        raise EvaluationRefused(f"{place} is not value, low, high and count")
    if not estimate["low"] <= estimate["value"] <= estimate["high"] or estimate["count"] < 1:
        raise EvaluationRefused(f"{place}: {dict(estimate)} is not an interval")


def _finite(value: object, place: str) -> None:
    """Walk the whole document: no None, NaN, infinity or empty key anywhere."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _finite(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            _finite(inner, f"{place}[{at}]")
    elif value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise EvaluationRefused(f"{place} is {value}")
