"""MLflow's `python_function` flavour for AutoML's model folders (`mlflow.pyfunc.load_model`).

The file MLmodel names this module as the loader, so that the folder contains only data and no code.
`predict` takes a table with the columns of a request and returns the endpoint's predictions: the
probability of the positive class (binary), a probability per class, or a number.
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
    """A model folder with members; raises ManifestError if a file was changed."""

    def __init__(self, folder: Path) -> None:
        verify(folder)
        self._columns = Columns.load(folder, lambda row: row)
        self._members = Members(folder)

    def predict(self, table: pd.DataFrame, params: Any = None) -> NDArray[np.float64]:
        """Return predictions, (rows,) or (rows, classes); raise BadRequest for an invalid table."""
        times = table.select_dtypes(["datetime", "datetimetz"])  # requests have them as text
        cells: Any = table.astype(dict.fromkeys(times, str)).astype(object)
        values = cells.where(table.notna(), None).to_numpy().tolist()
        stated = [[_stated(cell) for cell in row] for row in values]
        rows = self._columns.read(list(table.columns), stated)
        return self._columns.predict_imputed(self._members.predict, self._columns.matrix(rows))


def _stated(value: object) -> object:
    """Convert a cell to a JSON value: a decimal to a float, a date to text."""
    if isinstance(value, Decimal):
        return float(value)
    return str(value) if isinstance(value, date) else value


def _load_pyfunc(path: str) -> Scorer:
    """Load the model; MLflow calls this function with the path of the model folder."""
    return Scorer(Path(path))
