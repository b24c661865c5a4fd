"""Serve a model of tables: the complete content of a score.py.

    from ml.projects.churn.columns import derive
    from ml.projects.churn.model import load, predict
    from ml.serving.scoring.table import endpoint

    init, run = endpoint(derive, load, predict)

A request has Azure ML's own format for tables, {"input_data": {"columns": [...], "data": [[...]]}},
with the columns in any order. The response is {"predictions": [...], "model_digest": "…"}: a
number for each row; for several classes the label, with "classes" and their "probabilities".
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
# Squares of larger numbers overflow in single precision, in which most libraries compute.
_LARGE = float(np.finfo(np.float32).max) ** 0.5


def probabilities(answer: object) -> dict[str, float] | None:
    """Return class → probability of a response to one row; None if it has no probabilities."""
    match answer:
        case {"classes": [*classes], "probabilities": [[*values]]}:
            return dict(zip(map(str, classes), map(float, values), strict=True))
    return None


def as_asked(request: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, object]:
    """Return the request reduced to the columns or fields that another version's request has.

    Raises ValueError that names missing ones.
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

    `predict` takes the inputs of `columns`, (rows, names), and returns a number per row, or a
    probability per class.
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
        """Open the model that Azure ML mounted, after verifying its files; raises as `open_model`.

        A model of an AutoML job consists of members (`ml.serving.scoring.members`): `load` and
        `predict` are not used for it.
        """
        served = open_model()
        columns = Columns.load(served.folder, derive)
        if is_of_members(served.folder):
            return cls(columns, Members(served.folder).predict, served)
        return cls(columns, partial(predict, load(served.folder)), served)

    def answer(self, body: str | bytes) -> object:
        """Return the result of `run`: the predictions, or status 400 with the reason."""
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
        """Predict a number for each row, or one per class.

        Raises BadRequest for an invalid body, and ValueError for a prediction that is NaN or
        infinite, which JSON does not have.
        """
        import orjson

        try:
            colons = body.count(b":") if isinstance(body, bytes) else body.count(":")
            if colons > 3:  # maybe an extra or duplicate key; or a colon in a text
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

        That is assumed if the model fails or returns NaN, but not with 0 in place of the large
        numbers.
        """
        try:
            answer = np.asarray(self._predict(numbers))
        except Exception:  # each library has its own
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
            raise BadRequest(name[:80], "a number too large for the model", "one that it can take")


def _is_finite(answer: NDArray[Any]) -> bool:
    if answer.shape == (1,):  # numpy's check of one number would take longer than many models
        return math.isfinite(answer[0])
    return bool(np.isfinite(answer).all())


def endpoint(
    derive: Derive,
    load: Callable[[Path], Any],
    predict: Callable[[Any, NDArray[np.float64]], NDArray[Any]],
) -> tuple[Callable[[], None], Callable[[str], object]]:
    """Return the `init` and the `run` of a score.py: `init` opens the model, `run` predicts."""
    tables: list[Table] = []

    def init() -> None:
        tables[:] = [Table.open(derive, load, predict)]

    def run(body: str) -> object:
        return tables[0].answer(body)

    return init, run
