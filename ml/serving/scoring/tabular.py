"""Predictions of a LightGBM model in a few microseconds a row, for a score.py of small requests.

A request has Azure ML's own form for tables, {"input_data": {"columns": [...], "data": [[...]]}}.
`preprocessing.json` in the model folder defines the preprocessing: a missing number is replaced by
the column's `fill`, and a text by its index among the column's `categories`; anything else is
missing to LightGBM. Values are written into a buffer that LightGBM's C API reads
(LGBM_BoosterPredictForMatSingleRowFast), which keeps its configuration between calls.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml.serving.scoring.messages import BadRequest

FILE = "preprocessing.json"
MODEL = "model.txt"
MOST_ROWS = 10_000
_FLOAT64, _NORMAL = 1, 0  # C_API_DTYPE_FLOAT64, C_API_PREDICT_NORMAL of LightGBM's c_api.h


class Columns:
    """Turns values into numbers; `columns` is a list of {"name", "fill"?, "categories"?}."""

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.names = [str(column["name"]) for column in columns]
        self._fills = [float(column.get("fill", math.nan)) for column in columns]
        self._codes = [
            (number, {str(text): float(code) for code, text in enumerate(column["categories"])})
            for number, column in enumerate(columns)
            if "categories" in column
        ]
        self._row = struct.Struct(f"{len(columns)}d")

    @classmethod
    def load(cls, folder: Path) -> Columns:
        """The columns of the model folder."""
        return cls(json.loads((folder / FILE).read_text(encoding="utf-8"))["columns"])

    def write(self, row: list[Any], into: Any) -> None:
        """Put one row into a buffer of doubles; raises BadRequest for a row of another length."""
        if not isinstance(row, list) or len(row) != len(self.names):
            kind = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise BadRequest("data", kind, f"rows of {len(self.names)} values")
        for number, codes in self._codes:
            value = row[number]
            row[number] = codes.get(value, math.nan) if isinstance(value, str) else math.nan
        try:
            self._row.pack_into(into, 0, *row)
        except struct.error:  # a value is missing, or is not a number
            self._row.pack_into(into, 0, *map(self._number, row, self._fills, self.names))

    def _number(self, value: Any, fill: float, name: str) -> float:
        if value is None:
            return fill
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequest(name[:80], type(value).__name__, "a number")
        return float(value)


class Trees:
    """A LightGBM text model; one caller at a time, since a call has one buffer.

    Raises RuntimeError with LightGBM's own message.
    """

    def __init__(self, model: Path, columns: int) -> None:
        from lightgbm.basic import _LIB  # the library that the package loaded

        self._library: Any = _LIB
        self._check(model.is_file(), f"there is no {model}")
        self._model, trees = ctypes.c_void_p(), ctypes.c_int()
        self._call(
            "LGBM_BoosterCreateFromModelfile",
            *(str(model).encode(), ctypes.byref(trees), ctypes.byref(self._model)),
        )
        features = ctypes.c_int()
        self._call("LGBM_BoosterGetNumFeature", self._model, ctypes.byref(features))
        self._check(
            features.value == columns,
            f"the model has {features.value} features, {FILE} {columns} columns",
        )
        classes = ctypes.c_int()
        self._call("LGBM_BoosterGetNumClasses", self._model, ctypes.byref(classes))
        self.row = (ctypes.c_double * columns)()
        self._out = (ctypes.c_double * classes.value)()
        self._length = ctypes.c_int64()
        self._fast = ctypes.c_void_p()
        self._call(
            "LGBM_BoosterPredictForMatSingleRowFastInit",
            *(self._model, _NORMAL, 0, -1, _FLOAT64, ctypes.c_int32(columns)),
            *(b"num_threads=1", ctypes.byref(self._fast)),
        )
        self._predict = self._library.LGBM_BoosterPredictForMatSingleRowFast
        self._arguments = (self._fast, self.row, ctypes.byref(self._length), self._out)

    def predict(self) -> float | list[float]:
        """The prediction for the values in `row`: a number, or one per class."""
        if self._predict(*self._arguments):
            raise RuntimeError(self._library.LGBM_GetLastError().decode(errors="replace"))
        return self._out[0] if len(self._out) == 1 else list(self._out)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            error = self._library.LGBM_GetLastError().decode(errors="replace")
            raise RuntimeError(f"{name}: {error}")

    def _check(self, condition: bool, message: str) -> None:
        if not condition:
            raise RuntimeError(message)


class Table:
    """Predictions for requests; `folder` holds `model.txt` and `preprocessing.json`."""

    def __init__(self, folder: Path) -> None:
        self._columns = Columns.load(folder)
        self._trees = Trees(folder / MODEL, len(self._columns.names))

    def predict(self, body: str | bytes) -> list[float | list[float]]:
        """One prediction per row, in order; raises BadRequest for a body of another form."""
        import orjson

        names = self._columns.names
        try:
            table = orjson.loads(body)["input_data"]
            columns, rows = table["columns"], table["data"]
        except (ValueError, KeyError, TypeError):
            form = '{"input_data": {"columns": [...], "data": [[...]]}}'
            raise BadRequest("", "not a table", form) from None
        if columns != names:
            raise BadRequest("columns", "other columns", ", ".join(names)[:500])
        if not isinstance(rows, list) or len(rows) > MOST_ROWS:
            raise BadRequest("data", "not a list of rows", f"at most {MOST_ROWS} rows")
        write, trees, predictions = self._columns.write, self._trees, []
        for row in rows:
            write(row, trees.row)
            predictions.append(trees.predict())
        return predictions
