"""LightGBM's trees without LightGBM's package, which imports scikit-learn: a second of a server's
start.

Rows are written into a buffer that LightGBM's C API reads
(LGBM_BoosterPredictForMatSingleRowFast), which keeps its configuration between calls: a prediction
takes a few microseconds.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLOAT64, _NORMAL = 1, 0  # C_API_DTYPE_FLOAT64, C_API_PREDICT_NORMAL of LightGBM's c_api.h


def _library() -> Any:
    """LightGBM's library, by the module of the package that finds it."""
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

    def __init__(self, model: Path) -> None:
        self._library = _library()
        if not model.is_file():
            raise RuntimeError(f"there is no {model}")
        self._model, trees = ctypes.c_void_p(), ctypes.c_int()
        self._call(
            "LGBM_BoosterCreateFromModelfile",
            *(str(model).encode(), ctypes.byref(trees), ctypes.byref(self._model)),
        )
        features = ctypes.c_int()
        self._call("LGBM_BoosterGetNumFeature", self._model, ctypes.byref(features))
        columns = features.value
        classes = ctypes.c_int()
        self._call("LGBM_BoosterGetNumClasses", self._model, ctypes.byref(classes))
        self._row = np.empty(columns)
        self._out = np.empty(classes.value)
        self._length = ctypes.c_int64()
        self._fast = ctypes.c_void_p()
        self._call(
            "LGBM_BoosterPredictForMatSingleRowFastInit",
            *(self._model, _NORMAL, 0, -1, _FLOAT64, ctypes.c_int32(columns)),
            *(b"num_threads=1", ctypes.byref(self._fast)),
        )
        self._predict = self._library.LGBM_BoosterPredictForMatSingleRowFast
        self._arguments = (
            self._fast,
            ctypes.c_void_p(self._row.ctypes.data),
            ctypes.byref(self._length),
            ctypes.c_void_p(self._out.ctypes.data),
        )

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """A prediction for each row of (rows, features): a number, or one a class.

        Raises ValueError for another number of features.
        """
        if table.shape[1] != len(self._row):
            raise ValueError(f"{table.shape[1]} features, where the model has {len(self._row)}")
        predictions = np.empty((len(table), len(self._out)))
        for number, row in enumerate(table):
            self._row[:] = row
            if self._predict(*self._arguments):
                raise RuntimeError(self._library.LGBM_GetLastError().decode(errors="replace"))
            predictions[number] = self._out
        return predictions[:, 0] if len(self._out) == 1 else predictions

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(*arguments):
            error = self._library.LGBM_GetLastError().decode(errors="replace")
            raise RuntimeError(f"{name}: {error}")
