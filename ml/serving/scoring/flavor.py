"""Load a folder with members in MLflow's `python_function` flavour: `mlflow.pyfunc.load_model`.

`MLmodel` names this module, so that MLflow runs code of the repository; the folder holds only
data. `predict` takes a table with the columns of a request and returns what the endpoint would:
the probability of the positive class (binary), a probability per class, or a number.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import Columns
from ml.serving.scoring.manifest import verify
from ml.serving.scoring.members import Members

if TYPE_CHECKING:
    import pandas as pd


class Scorer:
    """The model of a verified folder."""

    def __init__(self, folder: Path) -> None:
        verify(folder)
        self._columns = Columns.load(folder, lambda row: row)
        self._members = Members(folder)

    def predict(self, table: pd.DataFrame, params: Any = None) -> NDArray[np.float64]:
        """Return a prediction for each row; raise BadRequest for a table without the columns."""
        times = table.select_dtypes(["datetime", "datetimetz"])  # texts in a request
        cells: Any = table.astype(dict.fromkeys(times, str)).astype(object)
        values = cells.where(table.notna(), None).to_numpy().tolist()
        stated = [[_stated(cell) for cell in row] for row in values]
        rows = self._columns.read(list(table.columns), stated)
        return self._columns.predict_imputed(self._members.predict, self._columns.matrix(rows))


def _stated(value: object) -> object:
    """Convert a cell to a JSON value: Parquet's dates and decimals are none."""
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, date) else value


def _load_pyfunc(path: str) -> Scorer:
    """Return the model; MLflow calls this function with the path of the model's data."""
    return Scorer(Path(path))
