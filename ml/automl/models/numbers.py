"""The numeric rows that a family fits, and the interface of a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.measures.tasks import Task

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Numbers:
    """(rows, columns) in single precision, a category as its code, NaN for what is missing (the
    encoding `codes` of `ml.serving.scoring.columns`); `labels` are numbers, of classes too.

    `categorical` are the columns that are codes; `featurized` is false where the table is taken as
    it stands.
    """

    table: NDArray[np.float32]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    task: Task
    classes: int
    categorical: Sequence[int] = ()
    featurized: bool = True

    def weights_like(self, other: Numbers) -> NDArray[np.float64] | None:
        """Weights that give these rows the class shares of the other rows, which may have been
        balanced (`ml.automl.models.sampling`).
        """
        if self.task == "regression":
            return self.weights
        here, there = (np.bincount(of.labels, of.weights, of.classes) for of in (self, other))
        share = np.divide(there, here, out=np.zeros(self.classes), where=here > 0)
        weights: NDArray[np.float64] = share[self.labels]
        return weights if self.weights is None else weights * self.weights


class Fitted(Protocol):
    """A fitted model."""

    def predict(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return for each row the probability of 1 (binary), of each class, or a number."""
        ...

    def save(self, folder: Path) -> str:
        """Write the model to a file in a format that runs no code, and return the file's name."""
        ...


Fit = Callable[[Numbers, Settings, int], Fitted]
