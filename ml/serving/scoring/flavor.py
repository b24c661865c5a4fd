"""MLflow's `python_function` of a folder with members: `mlflow.pyfunc.load_model(folder)`.

`MLmodel` names this module, so that what is run is code of the repository; the folder has data
alone. `predict` takes a table with the columns of a request and answers as the endpoint does: the
probability of the positive class of two, a probability a class of several, or a number.
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
        """An answer for each row; raises BadRequest for a table without the columns."""
        times = table.select_dtypes(["datetime", "datetimetz"])  # texts in a request
        cells: Any = table.astype(dict.fromkeys(times, str)).astype(object)
        values = cells.where(table.notna(), None).to_numpy().tolist()
        stated = [[_stated(cell) for cell in row] for row in values]
        rows = self._columns.read(list(table.columns), stated)
        return self._columns.predict_imputed(self._members.predict, self._columns.matrix(rows))


def _stated(value: object) -> object:
    """A cell as a request has it: dates and decimals of Parquet are no values of JSON."""
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, date) else value


def _load_pyfunc(path: str) -> Scorer:
    """MLflow calls it with the path of the model's data."""
    return Scorer(Path(path))
