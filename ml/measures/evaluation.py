"""Read and write evaluation.json: the metrics of a model, and the predictions behind them.

`predictions.csv` has one row per unit (such as a question) of a split. All metrics, also those of
slices, can be recomputed from it; evaluation.json has its sha256. Missing, NaN and infinite values
are rejected on writing and reading.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from ml.measures.leakage import IDENTIFIERS, identifiers
from ml.measures.metrics import CustomMetric, Metric
from ml.measures.schema import (
    SCHEMA_VERSION,
    Estimate,
    Evaluation,
    KeptPredictions,
    StatedMetric,
    read,
    stated,
    stated_fields,
)
from ml.measures.tasks import TASKS, Task, fault, metrics_of, probabilities_fault

REQUESTS = "requests.jsonl"
# Maximum number of requests that are written.
MOST = 10_000
# Keys for the smallest and the largest value of a numeric field.
_LEAST, _GREATEST = "least", "greatest"


class RequestsRefused(ValueError):
    """Raised if the file of requests is unreadable or differs from its recorded sha256."""


@dataclass(frozen=True)
class Request:
    """The endpoint request that predicts one unit of a split."""

    split: str
    unit: str
    request: Mapping[str, object]


def covering(requests: Sequence[Request], most: int = MOST) -> list[Request]:
    """Return up to `most` requests, ordered so that the first ones cover the most values.

    First come requests that cover every text, every missing value, and the smallest and largest
    number of each field, fields with few values first. Then come the others.
    """
    holders: dict[str, dict[object, int]] = {}
    extremes: dict[str, dict[str, tuple[float, int]]] = {}
    for number, request in enumerate(requests):
        for place, value in _leaves(request.request, ""):
            if isinstance(value, bool) or not isinstance(value, int | float):
                holders.setdefault(place, {}).setdefault(value, number)
                continue
            ends = extremes.setdefault(place, {_LEAST: (value, number), _GREATEST: (value, number)})
            if value < ends[_LEAST][0]:
                ends[_LEAST] = (value, number)
            if value > ends[_GREATEST][0]:
                ends[_GREATEST] = (value, number)
    for place, ends in extremes.items():
        holders.setdefault(place, {}).update({end: number for end, (_, number) in ends.items()})
    places = sorted(holders.values(), key=len)
    order = dict.fromkeys(number for place in places for number in place.values())
    order |= dict.fromkeys(range(len(requests)))
    return [requests[number] for number in order][:most]


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Yield every text, number and missing value of a request, with its JSON path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{place}/{index}")
    else:
        yield place, value


def content(requests: Sequence[Request]) -> bytes:
    """Return the content of requests.jsonl; raise ValueError for NaN or infinity."""
    lines = (json.dumps(asdict(row), allow_nan=False, ensure_ascii=False) for row in requests)
    return "".join(f"{line}\n" for line in lines).encode()


def read_requests(path: Path, digest: str) -> list[Request]:
    """Read the requests of a file; raise RequestsRefused unless it has that sha256 (hex)."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RequestsRefused(f"{path.name}: {error.strerror}") from None
    if sha256(text).hexdigest() != digest:
        raise RequestsRefused(f"{path.name} is not the file whose sha256 the evidence states")
    try:
        # splitlines() would also split at Unicode separators within texts.
        requests = [Request(**json.loads(line)) for line in text.decode().split("\n") if line]
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestsRefused(f"{path.name}: {error}") from None
    if not all(isinstance(request.request, dict) for request in requests):
        raise RequestsRefused(f"{path.name}: a request is not a JSON object")
    return requests


EVALUATION = "evaluation.json"
PREDICTIONS = "predictions.csv"
COLUMNS = ("unit", "split", "group", "expected", "predicted", "rank", "score")
# Prefixes of the further columns: one per slice dimension (`slice:topic`), one per class of a
# multiclass model (`probability:setosa`), one per custom metric (`metric:cost`) and, if it is a
# ratio of sums, its weight (`weight:cost`).
SLICE, PROBABILITY, METRIC, WEIGHT = "slice:", "probability:", "metric:", "weight:"


class EvaluationRefused(ValueError):
    """Raised if an evaluation is invalid; the message names the field."""


@dataclass(frozen=True)
class Prediction:
    """A row of predictions.csv: the prediction for one unit, with the fields of `ScoredRows`."""

    unit: str  # an id; a unit in both validation and a test split is a leak
    split: str
    slices: Mapping[str, str]  # dimension → the unit's slice; "" for none
    expected: str
    predicted: str
    rank: int = 0
    score: float = 0.0
    # The bootstrap draws all units of a group (an entity, a time block) together; "" for none.
    group: str = ""
    # Multiclass: class → probability; empty if there are many classes.
    probabilities: Mapping[str, float] = field(default_factory=dict)
    # Custom metric → [value], or [value, weight] for a ratio of sums.
    custom: Mapping[str, Sequence[float]] = field(default_factory=dict)


def write_evaluation(
    folder: Path,
    evaluation: Evaluation,
    predictions: Sequence[Prediction],
    requests: Sequence[Request] = (),
) -> None:
    """Write evaluation.json, predictions.csv and, if there are any, requests and identifiers.

    Raises EvaluationRefused, and writes nothing, if a number is not finite, a prediction is invalid
    for the task, a unit lacks a dimension, groups contradict `resampled`, or a request's unit has
    no prediction.
    """
    dimensions = tuple(predictions[0].slices) if predictions else ()
    classes = tuple(predictions[0].probabilities) if predictions else ()
    grouped = evaluation.resampled != evaluation.unit
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    of_classes = [PROBABILITY + name for name in classes]
    task, custom = task_of(evaluation), custom_metrics(evaluation.custom_metrics)
    writer.writerow(
        [*COLUMNS, *(SLICE + name for name in dimensions), *of_classes, *custom_columns(custom)]
    )
    for row in predictions:
        if wrong := fault(task, row.expected, row.predicted, row.rank, row.score):
            raise EvaluationRefused(f"{row.unit}: {wrong}")
        if classes and (
            wrong := probabilities_fault(
                task, row.expected, row.predicted, row.score, row.probabilities
            )
        ):
            raise EvaluationRefused(f"{row.unit}: {wrong}")
        if tuple(row.slices) != dimensions:
            raise EvaluationRefused(f"{row.unit}: slices {tuple(row.slices)}, not {dimensions}")
        if bool(row.group) is not grouped:
            rule = f"{evaluation.resampled}s are drawn, each a group of {evaluation.unit}s"
            raise EvaluationRefused(f"{row.unit}: group {row.group!r}, where {rule}")
        if row.custom.keys() != custom.keys():
            raise EvaluationRefused(f"{row.unit}: metrics {tuple(row.custom)}, not {tuple(custom)}")
        for name, metric in custom.items():
            if wrong := metric.fault(row.custom[name]):
                raise EvaluationRefused(f"{row.unit}: the metric {name} gives {wrong}")
        values = [getattr(row, name) for name in COLUMNS]
        probabilities = [f"{row.probabilities[name]:.4g}" for name in classes]
        custom_values = [repr(float(value)) for name in custom for value in row.custom[name]]
        writer.writerow([*values, *row.slices.values(), *probabilities, *custom_values])
    predicted = {(row.split, row.unit) for row in predictions}
    if unknown := [row.unit for row in requests if (row.split, row.unit) not in predicted]:
        raise EvaluationRefused(f"{unknown[0]}: a request of a unit without a prediction")
    files = {PREDICTIONS: table.getvalue().encode()}
    try:
        lines = content(covering(requests))
    except (ValueError, TypeError) as error:
        raise EvaluationRefused(f"a request is not JSON: {error}") from None
    compared = identifiers(evaluation.leakage).encode()
    files |= {name: data for name, data in ((REQUESTS, lines), (IDENTIFIERS, compared)) if data}
    hashed = {name: sha256(data).hexdigest() for name, data in files.items()}
    document = stated(
        replace(
            evaluation,
            schema_version=SCHEMA_VERSION,
            predictions=KeptPredictions(PREDICTIONS, hashed[PREDICTIONS], len(predictions)),
            requests=hashed.get(REQUESTS),
            identifiers=hashed.get(IDENTIFIERS),
        )
    )
    check(document)
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / EVALUATION).write_text(text, encoding="utf-8")


def read_evaluation(folder: Path) -> Evaluation:
    """Read evaluation.json; raise EvaluationRefused if it is invalid or predictions.csv changed."""
    try:
        document = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
        content = (folder / PREDICTIONS).read_bytes()
    except (OSError, ValueError) as error:
        raise EvaluationRefused(f"{folder / EVALUATION}: {error}") from None
    evaluation = check(document)
    if sha256(content).hexdigest() != evaluation.predictions.sha256:
        raise EvaluationRefused(f"{folder / PREDICTIONS} does not match the sha256 in {EVALUATION}")
    return evaluation


def check(document: object) -> Evaluation:
    """Parse an evaluation; raise EvaluationRefused unless it is complete and finite."""
    if not isinstance(document, dict):
        raise EvaluationRefused("not a JSON object")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise EvaluationRefused(f"schema_version is not {SCHEMA_VERSION}")
    schema = {entry.name: "optional" not in entry.metadata for entry in stated_fields(Evaluation)}
    absent = [name for name, is_required in schema.items() if is_required and name not in document]
    if odd := {*absent, *document.keys() - schema.keys()}:
        raise EvaluationRefused(f"missing or unknown fields: {', '.join(sorted(odd))}")
    _finite(document, "")
    evaluation = read(Evaluation, document)
    primary = evaluation.primary_metric
    if wrong := wrong_primary(
        evaluation.task, primary, evaluation.goal, custom_metrics(evaluation.custom_metrics)
    ):
        raise EvaluationRefused(wrong)
    tables = {"metrics": evaluation.metrics, "baseline": evaluation.baseline}
    tables |= {f"slices.{name}": splits for name, splits in evaluation.slices.items()}
    for place, table in tables.items():
        for name, metrics in table.items():
            for metric, estimate in metrics.items():
                _check_estimate(estimate, f"{place}.{name}.{metric}")
    if not any(primary in metrics for metrics in evaluation.metrics.values()):
        raise EvaluationRefused(f"no split has the metric {primary}")
    return evaluation


def task_of(evaluation: Evaluation) -> Task:
    """Return the evaluation's task (default: ranking); raise EvaluationRefused if unknown."""
    task: Task | None = next(
        (kind for kind in TASKS if kind == (evaluation.task or "ranking")), None
    )
    if task is None:
        raise EvaluationRefused(f"the task {evaluation.task!r} is not one of {', '.join(TASKS)}")
    return task


def custom_metrics(stated: Mapping[str, StatedMetric]) -> Mapping[str, CustomMetric]:
    """Return the custom metrics declared in an evaluation, sorted by name.

    Raises EvaluationRefused if a declaration is invalid.
    """
    try:
        return {name: CustomMetric.of_statement(metric) for name, metric in sorted(stated.items())}
    except ValueError as error:
        raise EvaluationRefused(f"custom_metrics: {error}") from None


def custom_columns(custom: Mapping[str, CustomMetric]) -> list[str]:
    """Return the columns of predictions.csv for these custom metrics."""
    return [
        column
        for name, metric in custom.items()
        for column in (METRIC + name, *([WEIGHT + name] if metric.ratio else []))
    ]


def wrong_primary(
    task: object, metric: object, goal: object, custom: Mapping[str, CustomMetric] | None = None
) -> str:
    """Return why `metric` with `goal` cannot be the primary metric of the task, or ""."""
    if not isinstance(task, str) or task not in TASKS:
        return f"task is {task!r}, not one of {', '.join(TASKS)}"
    try:
        metrics: Mapping[str, Metric] = metrics_of(task, custom)
    except ValueError as error:
        return str(error)
    if metric not in metrics:
        return f"primary_metric is {metric!r}, not one of {', '.join(metrics)}"
    required = metrics[str(metric)].goal
    return "" if goal == required else f"goal is {goal!r}, which for {metric} is to {required}"


def _check_estimate(estimate: Estimate, place: str) -> None:
    if not estimate.low <= estimate.value <= estimate.high or not estimate.count >= 1:
        raise EvaluationRefused(
            f"{place}: {estimate} of {estimate.count:g} units is not an interval"
        )


def _finite(value: object, place: str) -> None:
    """Raise EvaluationRefused if the document has None, NaN or infinity anywhere."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _finite(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _finite(inner, f"{place}[{index}]")
    elif value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise EvaluationRefused(f"{place} is {value}")
