"""Serve a tabular model. The complete score.py is:

    from ml.projects.churn.columns import derive
    from ml.projects.churn.model import load, predict
    from ml.serving.scoring.table import endpoint

    init, run = endpoint(derive, load, predict)

A request has Azure ML's format for tables, {"input_data": {"columns": [...], "data": [[...]]}},
with the columns in any order. The response is {"predictions": [...], "model_digest": "…"}.
`predictions` has a number per row. For several classes it has a label per row, and the response
also has "classes" and "probabilities".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import Columns, Derive
from ml.serving.scoring.members import Members, is_of_members
from ml.serving.scoring.messages import BadRequest, read_json, refusal, with_digest
from ml.serving.scoring.model import ServedModel, open_model

MOST_ROWS = 10_000
# Squares of larger numbers overflow in single precision, which most libraries use.
_LARGE = float(np.finfo(np.float32).max) ** 0.5


def probabilities(answer: object) -> dict[str, float] | None:
    """Map each class to its probability, for a response to one row; None without probabilities."""
    match answer:
        case {"classes": [*classes], "probabilities": [[*values]]}:
            return dict(zip(map(str, classes), map(float, values), strict=True))
    return None


def with_fields_of(request: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, object]:
    """Return the request with only the columns or fields of `before`, another version's request.

    Raises ValueError with the names of missing ones.
    """
    match request, before:
        case (
            {"input_data": {"columns": [*names], "data": [*rows]}},
            {"input_data": {"columns": [*wanted], **_others}},
        ):
            _demand(wanted, names, "column")
            order = [names.index(name) for name in wanted]
            data = [[row[number] for number in order] for row in rows]
            return {"input_data": {"columns": wanted, "data": data}}
    _demand(before, request, "field")
    return {name: request[name] for name in before}


def _demand(wanted: Iterable[object], available: Container[object], what: str) -> None:
    if missing := [str(name) for name in wanted if name not in available]:
        raise ValueError(f"its requests have the {what} {', '.join(missing)[:200]}")


class Table:
    """Responds to requests with a model.

    `predict` takes the encoded inputs (rows, names) and returns a number per row, or a probability
    per class.
    """

    def __init__(
        self,
        columns: Columns,
        predict: Callable[[NDArray[np.float64]], NDArray[Any]],
        served: ServedModel,
    ) -> None:
        self._columns, self._served = columns, served
        self._predict = partial(columns.predict_imputed, predict)

    @classmethod
    def open(
        cls,
        derive: Derive,
        load: Callable[[Path], Any],
        predict: Callable[[Any, NDArray[np.float64]], NDArray[Any]],
    ) -> Table:
        """Verify and open the model that Azure ML mounted; raises like `open_model`.

        A model of an AutoML job (`ml.serving.scoring.members`) does not use `load` and `predict`.
        """
        served = open_model()
        columns = Columns.load(served.folder, derive)
        if is_of_members(served.folder):
            return cls(columns, Members(served.folder).predict, served)
        return cls(columns, partial(predict, load(served.folder)), served)

    def answer(self, body: str | bytes) -> object:
        """Return the result for `run`: the predictions, or status 400 with the reason."""
        try:
            predictions = self.predict(body)
        except BadRequest as error:
            return refusal(error)
        answer: dict[str, object] = {"predictions": predictions}
        if classes := self._columns.classes:
            answer["predictions"] = [classes[row.index(max(row))] for row in predictions]
            answer |= {"classes": classes, "probabilities": predictions}
        return with_digest(self._served, answer)

    def predict(self, body: str | bytes) -> list[Any]:
        """Return a number per row of a request, or a list with a probability per class.

        Raises BadRequest for an invalid body, and ValueError if a prediction is NaN or infinite.
        """
        import orjson

        try:
            colons = body.count(b":") if isinstance(body, bytes) else body.count(":")
            if colons > 3:  # an extra or duplicate key, or a colon in a text
                read_json(body)
            table = orjson.loads(body)["input_data"]
            names, rows = table["columns"], table["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            form = '{"input_data": {"columns": [...], "data": [[...]]}}'
            raise BadRequest("", "not a table", form) from None
        if not isinstance(rows, list) or len(rows) > MOST_ROWS:
            raise BadRequest("data", "not a list of rows", f"at most {MOST_ROWS} rows")
        values = self._columns.read(names, rows)
        if not values:
            return []
        try:
            numbers = self._columns.matrix(values)
        except ValueError as error:
            raise BadRequest("data", str(error), "values in the range of the schema") from None
        predictions: list[Any] = self._scored(numbers).tolist()
        return predictions

    def _scored(self, numbers: NDArray[np.float64]) -> NDArray[Any]:
        """Return the model's predictions; raise BadRequest if a number is too large for the model.

        A number is too large if the model fails or returns NaN, but succeeds with 0 instead of it.
        """
        try:
            answer = np.asarray(self._predict(numbers))
        except Exception:  # each library has its own exceptions
            self._refuse_too_large(numbers)
            raise
        if not _is_finite(answer):
            self._refuse_too_large(numbers)
            raise ValueError("the model's answer is NaN or infinite, which JSON does not have")
        return answer

    def _refuse_too_large(self, numbers: NDArray[np.float64]) -> None:
        sizes = np.abs(np.nan_to_num(numbers))
        too_large = sizes > _LARGE
        if not too_large.any():
            return
        try:
            others = np.asarray(self._predict(np.where(too_large, 0.0, numbers)))
        except Exception:
            return
        if np.isfinite(others).all():
            name = self._columns.names[int(sizes.max(axis=0).argmax())]
            raise BadRequest(name[:80], "a number too large for the model", "a smaller number")


def _is_finite(answer: NDArray[Any]) -> bool:
    if answer.shape == (1,):  # fast path: for one number, numpy would take longer than many models
        return math.isfinite(answer[0])
    return bool(np.isfinite(answer).all())


def endpoint(
    derive: Derive,
    load: Callable[[Path], Any],
    predict: Callable[[Any, NDArray[np.float64]], NDArray[Any]],
) -> tuple[Callable[[], None], Callable[[str], object]]:
    """Return `init` and `run` for a score.py: `init` opens the model, `run` predicts."""
    tables: list[Table] = []

    def init() -> None:
        tables[:] = [Table.open(derive, load, predict)]

    def run(body: str) -> object:
        return tables[0].answer(body)

    return init, run
