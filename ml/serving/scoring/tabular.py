"""A LightGBM model served to tables: predictions in a few microseconds a row.

The whole of a score.py:

    from ml.serving.scoring.tabular import Table

    def init() -> None:
        global table
        table = Table.open()

    def run(body: str) -> object:
        return table.answer(body)

A request has Azure ML's own form for tables, {"input_data": {"columns": [...], "data": [[...]]}},
the columns in the order of the model; the answer is {"predictions": [...], "model_digest": "…"}:
for each row a number, or of several classes the label, with "classes" and their "probabilities".

`preprocessing.json` in the model folder defines the columns, {"name", "type", "fill"?,
"categories"?} each. A missing value is null.

- `float`: a number; a missing one is replaced by `fill`, or is missing to LightGBM.
- `integer`: the same, and a number with a fraction is refused.
- `text`: replaced by its index among `categories`; any other text is missing to LightGBM.

`classes` beside `columns` are the labels of a model of several classes. Training encodes its rows
by the same file (`Columns.matrix`), so that a row means the same to both. Values are written into a
buffer that LightGBM's C API reads (LGBM_BoosterPredictForMatSingleRowFast), which keeps its
configuration between calls.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.manifest import verify, write_manifest
from ml.serving.scoring.messages import BadRequest, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model

FILE = "preprocessing.json"
MODEL = "model.txt"
SETTINGS = "settings.json"
MOST_ROWS = 10_000
_FLOAT64, _NORMAL = 1, 0  # C_API_DTYPE_FLOAT64, C_API_PREDICT_NORMAL of LightGBM's c_api.h


class Columns:
    """Turns the values of a row into numbers, as the columns of preprocessing.json say."""

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self.names = [str(column["name"]) for column in columns]
        self._fills = [float(column.get("fill", math.nan)) for column in columns]
        self._codes = [
            (number, {str(text): float(code) for code, text in enumerate(column["categories"])})
            for number, column in enumerate(columns)
            if "categories" in column
        ]
        self._integers = [
            number for number, column in enumerate(columns) if column.get("type") == "integer"
        ]
        self._row = struct.Struct(f"{len(columns)}d")

    @classmethod
    def load(cls, folder: Path) -> Columns:
        """The columns of the model folder."""
        return cls(json.loads((folder / FILE).read_text(encoding="utf-8"))["columns"])

    def matrix(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
        """(rows, columns): the numbers that LightGBM is trained on and asked with."""
        table = np.empty((len(rows), len(self.names)))
        for number, row in enumerate(rows):
            self.write(list(row), table[number])
        return table

    def write(self, row: list[Any], into: Any) -> None:
        """Put one row, which is changed, into a buffer of doubles; raises BadRequest for a row of
        another length and a value of another type.
        """
        if not isinstance(row, list) or len(row) != len(self.names):
            kind = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise BadRequest("data", kind, f"rows of {len(self.names)} values")
        for number, codes in self._codes:
            value = row[number]
            if value is not None and not isinstance(value, str):
                raise BadRequest(self.names[number][:80], type(value).__name__, "a text")
            row[number] = codes.get(value, math.nan) if value is not None else math.nan
        for number in self._integers:
            value = row[number]
            if isinstance(value, float) and not value.is_integer():
                raise BadRequest(self.names[number][:80], str(value), "a whole number")
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


def write_model(
    folder: Path, booster: Any, preprocessing: Mapping[str, Any], facts: Mapping[str, Any]
) -> str:
    """Write the folder that `Table` serves: LightGBM's trees, preprocessing.json, `facts` about
    the training as settings.json, and the manifest; returns the folder's digest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_text(booster.model_to_string(), encoding="utf-8")
    for name, content in ((FILE, preprocessing), (SETTINGS, facts)):
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    return write_manifest(folder)


def read_model(folder: Path, package: Any = None) -> tuple[Any, dict[str, Any], str]:
    """The booster, the facts and the digest of a folder that `write_model` wrote; raises
    ManifestError, before LightGBM sees a file, when one was changed.

    `package` is LightGBM's module, by default the whole one.
    """
    package = package or import_module("lightgbm")
    digest = verify(folder)
    facts = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    return package.Booster(model_file=str(folder / MODEL)), facts, digest


def _library() -> Any:
    """LightGBM's library, by the module of the package that finds it.

    The package itself imports scikit-learn, which takes a second of a server's start.
    """
    package = find_spec("lightgbm")
    assert package is not None and package.origin is not None
    spec = spec_from_file_location("libpath", Path(package.origin).with_name("libpath.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module._LIB.LGBM_GetLastError.restype = ctypes.c_char_p
    return module._LIB


class Trees:
    """A LightGBM text model; one caller at a time, since a call has one buffer.

    Raises RuntimeError with LightGBM's own message.
    """

    def __init__(self, model: Path, columns: int) -> None:
        self._library = _library()
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
    """Answers requests with the model in a folder, which holds `model.txt` and
    `preprocessing.json`. `served` is the model as it was verified, which `answer` needs.
    """

    def __init__(self, folder: Path, served: ServedModel | None = None) -> None:
        self._columns = Columns.load(folder)
        self._trees = Trees(folder / MODEL, len(self._columns.names))
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
        self._classes = [str(name) for name in document.get("classes", ())]
        self._served = served

    @classmethod
    def open(cls) -> Table:
        """The model that Azure ML mounted, its files verified first; raises as `open_model`."""
        served = open_model()
        return cls(served.folder, served)

    def answer(self, body: str | bytes) -> object:
        """The result of `run`: the predictions, or status 400 with what is wrong."""
        assert self._served is not None, "Table.open() verifies the model"
        try:
            predictions = self.predict(body)
        except BadRequest as error:
            return refusal(error)
        if not self._classes:
            return reply(self._served, {"predictions": predictions})
        labels = [self._classes[int(np.argmax(of))] for of in predictions]
        answer = {"predictions": labels, "classes": self._classes, "probabilities": predictions}
        return reply(self._served, answer)

    def predict(self, body: str | bytes) -> list[float | list[float]]:
        """The number of each row, or one a class; raises BadRequest for a body of another form."""
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
