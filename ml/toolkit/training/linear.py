"""A linear model beside the project's: on small and ordinary tables it is often as good.

It is fitted on the same rows and columns, one-hot and scaled, and reported; no gate asks for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import Columns
from ml.toolkit.data.datasets import Numbers

# More rows change a linear model of a table little, and take minutes.
MOST_ROWS = 50_000


class Linear:
    """Logistic or ridge regression by scikit-learn, with its default regularisation."""

    def __init__(self, task: str, classes: int) -> None:
        """`task` is binary, multiclass or regression; `classes` is their number in multiclass."""
        self.name = "ridge regression" if task == "regression" else "logistic regression"
        self._task, self._classes = task, classes

    def fit(
        self,
        columns: Columns,
        train: Numbers,
        validation: Numbers,
        settings: dict[str, Any],
        seed: int,
    ) -> Any:
        """A scaler and an estimator, fitted on at most MOST_ROWS evenly spaced rows."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        step = -(-len(train.table) // MOST_ROWS)
        estimator = Ridge() if self._task == "regression" else LogisticRegression(max_iter=1000)
        return make_pipeline(StandardScaler(), estimator).fit(
            train.table[::step], train.labels[::step]
        )

    def predict(self, model: Any, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of 1 (rows,), of each class (rows, classes), or numbers (rows,)."""
        if self._task == "regression":
            return np.asarray(model.predict(table))
        probabilities = np.zeros((len(table), self._classes if self._task == "multiclass" else 2))
        probabilities[:, model.classes_.astype(int)] = model.predict_proba(table)
        return probabilities[:, 1] if self._task == "binary" else probabilities
