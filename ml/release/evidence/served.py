"""Parity check: compare a server's answers with the predictions of an evaluation.

The metrics are computed from these predictions. Only a part of the rows is sent. Reviewers of the
evaluation code must judge whether the rows look like the requests of clients.
"""

from __future__ import annotations

import http.client
import json
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from ml.backends.base import Backend
from ml.backends.endpoints import Answer, Candidate, DeploymentSpec, ModelDeployment
from ml.backends.model_registry import Version
from ml.core.errors import Exit, UserError
from ml.measures import detection, forecasting
from ml.measures.evaluation import MOST as MOST_REQUESTS
from ml.measures.evaluation import (
    PREDICTIONS,
    REQUESTS,
    Prediction,
    Request,
    RequestsRefused,
    read_requests,
)
from ml.measures.measurement import VALIDATION, measure
from ml.measures.schema import MOST, Evaluation
from ml.measures.tasks import Task, metrics_of
from ml.release.canary.traffic import at_pointer, prediction
from ml.release.evidence.recomputation import (
    Predictions,
    read_predictions,
    with_predictions,
)
from ml.release.serving import model_deployment
from ml.serving.scoring.table import probabilities, with_fields_of
from policies.promotion.evidence import Evidence
from policies.supply_chain.formats import formats, is_faulty

Ask = Callable[[Mapping[str, object]], Answer]
# The parity check sends the first requests, which cover every value, and a random sample: an
# evaluation cannot know which rows are checked.
FIRST, DRAWN = 100, 100
# A difference larger than rounding errors; the gate has the tolerance.
DIFFERS = 1e-6
# The ranking metrics that need only the first entry.
OF_THE_FIRST = ("gain_at_1",)
# The distance of a different text, or of a missing response.
_OTHER = 1.0
_ROUNDED = 5e-5


@dataclass(frozen=True)
class Evaluated:
    """A request, and the row of predictions.csv that was evaluated for it."""

    request: Request
    row: Prediction


@dataclass(frozen=True)
class ParityCheck:
    """A parity check: evaluated rows to send, whose predictions the responses must match."""

    rows: Sequence[Evaluated]  # the rows to send
    task: Task
    pointer: str  # path of the prediction in a response, as `answers/0/entry_id`
    reason: str = ""  # why no request can be sent, "" if there are rows

    def run(self, ask: Ask) -> Mapping[str, object]:
        """Send the rows with `ask`; return the field `serving` of the evidence on the differences.

        A row without an answer differs. `example` names the unit and both predictions of the
        largest difference, but no content of the request.
        """
        if self.reason:
            return {"reason": self.reason}
        magnitude = _typical_magnitude(self.rows, self.task)
        largest, differing, example = 0.0, 0, None
        for case in self.rows:
            distance, served = _answered(ask, case, self.task, self.pointer, magnitude)
            distance = min(distance, MOST) if math.isfinite(distance) else MOST
            differing += distance > DIFFERS
            if distance > largest:
                is_score = self.task in ("binary", "detection", "forecasting")
                evaluated = case.row.score if is_score else case.row.predicted
                largest = distance
                example = (
                    f"for {case.request.unit} of {case.request.split} the server predicts "
                    f"{served}, the evaluation {_short(evaluated)}"
                )
        return {
            "rows": len(self.rows),
            "differing": differing,
            "largest": largest,
            "prediction": self.pointer,
            "example": example,
        }


def parity_check(folder: Path, evaluation: Evaluation, pointer: str) -> ParityCheck:
    """Return the parity check of an evaluation: its first requests and a random sample.

    If the files in `folder` cannot be used, it has no rows but a `reason`.
    """
    predictions = read_predictions(folder / PREDICTIONS, evaluation)
    rows, reason = [], ""
    if not pointer:
        reason = "set `traffic.prediction` in release.yml: the path of the prediction in a response"
    elif evaluation.requests is None:
        reason = (
            "the evaluation wrote no requests.jsonl: give `evaluate` the rows as a client sends "
            "them, as `Rows.requests` (ml.measures.measurement)"
        )
    elif predictions.sha256 != evaluation.predictions.sha256 or predictions.faults:
        reason = f"{PREDICTIONS} is not the file whose sha256 the evidence states"
    else:
        try:
            requests = read_requests(folder / REQUESTS, evaluation.requests)
            # Other models (of the folds) predicted the out-of-fold splits.
            requests = [
                request for request in requests if request.split not in evaluation.out_of_fold
            ]
            evaluated_requests = [
                Evaluated(request, predictions.rows[request.split][request.unit])
                for request in requests
            ]
            others = evaluated_requests[FIRST:]
            rows = evaluated_requests[:FIRST] + random.SystemRandom().sample(
                others, min(DRAWN, len(others))
            )
            reason = _missing_request(requests, predictions, evaluation.out_of_fold)
        except RequestsRefused as error:
            reason = str(error)
        except KeyError as error:
            reason = f"{PREDICTIONS} has no row {error}, of which {REQUESTS} has a request"
    return ParityCheck([] if reason else rows, predictions.task, pointer, reason)


def _missing_request(
    requests: Sequence[Request], predictions: Predictions, out_of_fold: Collection[str]
) -> str:
    """Return a message if a row lacks a request although the file is not full; else "".

    Rows of out-of-fold splits may lack one, since other models predicted them. Without such splits,
    rows of the validation split may.
    """
    excluded = out_of_fold or {VALIDATION}
    with_request = {(request.split, request.unit) for request in requests}
    rows = [(name, unit) for name, units in predictions.rows.items() for unit in units]
    missing = [row for row in rows if row[0] not in excluded and row not in with_request]
    if not missing or len(requests) >= MOST_REQUESTS:
        return ""
    split, unit = missing[0]
    return f"{REQUESTS} has no request for {unit} of {split}: `Rows.requests` needs one per row"


def champion_on(
    backend: Backend,
    candidate: Evidence,
    folder: Path,
    champion: Version,
    theirs: Evidence,
    spec: DeploymentSpec,
) -> Evidence:
    """Return the champion's evidence, measured by its answers to the candidate's requests.

    `folder` has the candidate's evaluation; `spec` is the deployment spec that the champion's
    evidence was measured with. Of a ranking only the first entry counts. Raises ValueError if the
    responses lack what the metrics need.
    """
    ours = candidate.evaluation
    rows = read_predictions(folder / PREDICTIONS, ours)
    pointer, task = theirs.serving.prediction or "", rows.task
    metrics = metrics_of(task)
    if task == "ranking":
        metrics = {name: metrics[name] for name in OF_THE_FIRST}
    if ours.primary_metric not in metrics:
        raise ValueError(f"{ours.primary_metric} needs more than the champion's answers")
    requests = read_requests(folder / REQUESTS, ours.requests or "")
    their_file = champion.evidence_folder / REQUESTS
    their_requests = read_requests(their_file, theirs.evaluation.requests or "")
    answered = {}
    with serve(backend, model_deployment(spec, champion, champion.model)) as server:
        for request in requests:
            answer = server.score(with_fields_of(request.request, their_requests[0].request))
            row = rows.rows[request.split][request.unit]
            answered[request.split, request.unit] = _predicted(
                answer, row, task, pointer, theirs.evaluation.threshold
            )
    splits = {}
    for split in dict.fromkeys(request.split for request in requests):
        units = rows.rows[split]  # keep their order, on which the seeded bootstrap depends
        if missing := [unit for unit in units if (split, unit) not in answered]:
            raise ValueError(f"{REQUESTS} has no request of {missing[0]} of {split}")
        splits[split] = {unit: answered[split, unit] for unit in units}
    predictions = [row for units in splits.values() for row in units.values()]
    measurement = measure(metrics, predictions, ours.slice_split or "")
    question = {name: getattr(ours, name) for name in ("task", "primary_metric", "goal")}
    measured = replace(
        theirs,
        evaluation=replace(
            theirs.evaluation,
            **question,
            **vars(measurement),
            slice_split=ours.slice_split,
            out_of_fold={},
        ),
        data=candidate.data,
        mismatches=(),
    )
    return with_predictions(measured, Predictions(splits, "", (), task))


def refuse_faulty(model: Path) -> None:
    """Raise UserError if a model file would crash, hang or exhaust the library that loads it."""
    for file, kind in formats(model).items():
        if is_faulty(kind):
            hint = "train the model again, and check who wrote the file"
            actual = f"{model / file}: {kind}"
            raise UserError.with_code("invalid-model", actual, "a complete model file", hint)


def serve(backend: Backend, deployment: ModelDeployment) -> AbstractContextManager[Candidate]:
    """Start a server of the deployment for checks; it stops at the end of the context."""
    if backend.candidate is None:
        actual, expected = f"`{backend.name}` cannot start a server for a check", "--on local"
        raise UserError.with_code("no-candidate", actual, expected, exit_code=Exit.CANNOT_HONOUR)
    return backend.candidate(deployment)


def _predicted(
    answer: Answer, row: Prediction, task: Task, pointer: str, threshold: float | None
) -> Prediction:
    """Convert a response to a row of predictions.csv; raise ValueError if it lacks a field."""
    value = _value(answer.body, task, pointer) if answer.status == 200 else None
    classes = (probabilities(answer.body) or {}) if task == "multiclass" else {}
    score, rank = 0.0, 0
    if task == "ranking" and value is not None:
        predicted = _text(value)
        rank = 1 if predicted == row.expected else 2  # or later
    elif task == "multiclass" and isinstance(value, str) and classes:
        predicted, score = value, classes.get(row.expected, 0.0)
    elif task == "regression" and isinstance(value, float):
        predicted = repr(value)
    elif task == "detection" and isinstance(value, str):
        predicted, score = value, float(detection.read(value, 5)[:, 4].sum())
    elif task == "forecasting" and isinstance(value, str):
        predicted, score = value, float(forecasting.read(value)[:, 0].sum())
    elif task == "binary" and isinstance(value, float) and 0 <= value <= 1:
        predicted, score = "1" if value > (threshold or 0.5) else "0", value
    else:
        words = answer.excerpt if answer.status != 200 else f"{_short(value)} at `{pointer}`"
        raise ValueError(f"for {row.unit} its own server returns {words}")
    return replace(
        row,
        predicted=predicted,
        rank=rank,
        score=score,
        probabilities=classes if row.probabilities else {},
        custom={},
    )


def _answered(
    ask: Ask, case: Evaluated, task: Task, pointer: str, magnitude: float
) -> tuple[float, str]:
    """Send the request; return the difference from the evaluated prediction, and the response."""
    try:
        answer = ask(case.request.request)
    except (OSError, http.client.HTTPException) as error:
        return _OTHER, f"nothing ({error})"
    if answer.status != 200:
        return _OTHER, f"status {answer.status}"
    value = _value(answer.body, task, pointer)
    if value is None:
        return _OTHER, f"nothing at `{pointer}`"
    try:
        return _distance(value, answer.body, case.row, task, magnitude), _short(value)
    except (ValueError, TypeError, KeyError, OverflowError):  # probabilities of another form
        return _OTHER, f"{_short(value)}, with probabilities that cannot be read"


def _value(body: object, task: Task, pointer: str) -> float | str | None:
    """Return the prediction in an answer; None if it is invalid.

    Boxes and forecasts are in the format of predictions.csv.
    """
    try:
        if task == "detection":
            text = detection.written(at_pointer(body, pointer))
            detection.read(text, 5)
            return text
        if task == "forecasting":
            text = forecasting.written(at_pointer(body, pointer))
            forecasting.read(text)
            return text
    except (ValueError, TypeError):
        return None
    return prediction(body, pointer)


def _distance(
    value: float | str, body: object, row: Prediction, task: Task, magnitude: float
) -> float:
    """Return the distance between an answer of the server and the prediction in the evaluation.

    - probability: the absolute difference; other number: the difference relative to its size;
    - text: 0 if equal, else `_OTHER`;
    - boxes: the largest difference of a score, or of a coordinate relative to the largest one;
    - forecast: the largest difference of a step, relative to the largest number.

    `_OTHER` also if the number of boxes or steps differs.
    """
    if task == "detection":
        return _box_distance(str(value), row.predicted)
    if task == "forecasting":
        return _step_distance(str(value), row.predicted)
    if task == "regression":
        number, expected = value if isinstance(value, float) else math.inf, float(row.predicted)
        return abs(number - expected) / max(abs(expected), magnitude)
    if task == "binary" and isinstance(value, float):
        return abs(value - row.score)
    if row.predicted != _text(value):
        return _OTHER
    if task != "multiclass" or (served := probabilities(body)) is None:
        return 0.0
    # The file has the exact probability of the right class, and the others rounded to four digits.
    distances = [abs(served[name] - share) - _ROUNDED for name, share in row.probabilities.items()]
    distances.append(abs(served.get(row.expected, 0.0) - row.score))
    return max(0.0, *distances) if all(map(math.isfinite, distances)) else _OTHER


def _box_distance(served: str, evaluated: str) -> float:
    ours, theirs = (detection.read(boxes, 5) for boxes in (served, evaluated))
    if len(ours) != len(theirs):
        return _OTHER
    size = max(1.0, float(theirs[:, :4].max(initial=1.0)))
    return float((np.abs(ours - theirs) / (*[size] * 4, 1.0)).max(initial=0.0))


def _step_distance(served: str, evaluated: str) -> float:
    ours, theirs = (forecasting.read(steps) for steps in (served, evaluated))
    if len(ours) != len(theirs):
        return _OTHER
    return float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1.0))


def _text(value: float | str) -> str:
    """Return a label or an id as text; a whole number is written without decimals."""
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if is_whole else value)


def _typical_magnitude(rows: Sequence[Evaluated], task: Task) -> float:
    """Return the typical magnitude of predictions, the scale for differences near zero."""
    if task != "regression" or not rows:
        return 1.0
    return median(abs(float(case.row.predicted)) for case in rows) or 1.0


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:80]
