"""Scores with a LightGBM text model, with one thread per prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class Trees:
    """A LightGBM text model; raises LightGBMError if the file is not one."""

    def __init__(self, model: Path) -> None:
        import lightgbm  # takes a second: import it only for such a model

        self._booster = lightgbm.Booster(model_file=model)

    def predict(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict a table (rows, features); return (rows,) or (rows, classes).

        Raises LightGBMError for another number of features.
        """
        return np.asarray(self._booster.predict(table, num_threads=1))
