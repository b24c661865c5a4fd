"""Fit scikit-learn estimators and save them as ONNX; define the interface of fitted models.

Preprocessing (imputation, scaling, one-hot encoding) is part of the estimator, so that it is
fitted inside each fold and saved with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.measures.tasks import Task
from ml.toolkit.automl.folders import OPSETS
from ml.toolkit.training.boosting import threads

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Numbers:
    """The input of a fit: encoded rows with their labels and weights."""

    # (rows, features), with categories as codes (`ml.serving.scoring.columns`); NaN if missing.
    table: NDArray[np.float32]
    labels: NDArray[Any]  # class numbers, or the standardized target of a regression
    weights: NDArray[np.float64] | None  # None: all rows have the same weight
    task: Task
    classes: int  # number of classes; 0 for a regression
    categorical: Sequence[int] = ()  # indices of columns with category codes
    featurized: bool = True  # False: fit the table without imputation, scaling or one-hot encoding

    def weights_like(self, reference: Numbers) -> NDArray[np.float64] | None:
        """Return weights that give these rows the same class shares as the rows of `reference`.

        `reference` may have been balanced (`ml.automl.models.sampling`).
        """
        if self.task == "regression":
            return self.weights
        here, there = (
            np.bincount(rows.labels, rows.weights, rows.classes) for rows in (self, reference)
        )
        share = np.divide(there, here, out=np.zeros(self.classes), where=here > 0)
        weights: NDArray[np.float64] = share[self.labels]
        return weights if self.weights is None else weights * self.weights


class Fitted(Protocol):
    """A fitted model."""

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the probability of label 1 (rows,), of each class (rows, classes), or a number."""
        ...

    def save(self, folder: Path) -> str:
        """Write the model to a file whose format cannot contain code; return the file's name."""
        ...


Fit = Callable[[Numbers, Settings, int], Fitted]


def fit_of(
    module: str, classifier: str, regressor: str = "", *, linear: bool = False, **always: Any
) -> Fit:
    """Return a function that fits a scikit-learn estimator of `sklearn.MODULE`.

    The sampled settings and `always` are its arguments. `linear` says that the estimator needs
    scaled numbers and one-hot encoded categories.
    """

    def fit(data: Numbers, settings: Settings, seed: int) -> Fitted:
        from sklearn.pipeline import make_pipeline

        name = regressor if data.task == "regression" else classifier
        kind = getattr(import_module(f"sklearn.{module}"), name)
        extra = {"random_state": seed} if "random_state" in kind().get_params() else {}
        extra |= {"n_jobs": threads()} if module == "ensemble" else {}
        # Integers are sampled as floats, such as 50.0. 1.0 stays a float, since it is a share.
        integers = {
            argument: int(value)
            for argument, value in settings.items()
            if isinstance(value, float) and value > 1 and value.is_integer()
        }
        last = kind(**{**always, **settings, **integers, **extra})
        estimator = make_pipeline(_prepared(data, linear), last) if data.featurized else last
        where = f"{estimator.steps[-1][0]}__sample_weight" if data.featurized else "sample_weight"
        weights = {} if data.weights is None else {where: data.weights}
        labels = data.labels if data.task == "regression" else data.labels.astype(np.int64)
        return _Estimator(estimator.fit(data.table, labels, **weights), data.task, data.classes)

    return fit


def _prepared(data: Numbers, linear: bool) -> Any:
    """Return a ColumnTransformer that imputes missing numbers by the median.

    If `linear`, it also scales numbers and one-hot encodes categories.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    categorical = list(data.categorical)
    numeric = [column for column in range(data.table.shape[1]) if column not in {*categorical}]
    numbers: Any = SimpleImputer(strategy="median", keep_empty_features=True)
    # -1 becomes the code of missing categories, since no other code is negative.
    codes: Any = SimpleImputer(strategy="constant", fill_value=-1.0, keep_empty_features=True)
    if linear:
        numbers = make_pipeline(numbers, StandardScaler())
        codes = make_pipeline(codes, OneHotEncoder(handle_unknown="ignore", dtype=np.float32))
    parts = [("numbers", numbers, numeric), ("categories", codes, categorical)]
    return ColumnTransformer([part for part in parts if part[2]])


@dataclass(frozen=True)
class _Estimator:
    estimator: Any
    task: Task
    classes: int

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        if self.task == "regression":
            return np.asarray(self.estimator.predict(table), dtype=np.float64)
        # A fold's training rows may lack a class: its probability is 0.
        probabilities = np.zeros((len(table), self.classes))
        probabilities[:, self.estimator.classes_] = self.estimator.predict_proba(table)
        return probabilities[:, 1] if self.task == "binary" else probabilities

    def save(self, folder: Path) -> str:
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        types = [("table", FloatTensorType([None, self.estimator.n_features_in_]))]
        options = None if self.task == "regression" else {id(self.estimator): {"zipmap": False}}
        model = to_onnx(self.estimator, initial_types=types, options=options, target_opset=OPSETS)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return "model.onnx"
