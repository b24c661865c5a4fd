"""What each feature adds to a model's answers, as the model's library computed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.schema import Contribution


@dataclass(frozen=True)
class Contributions:
    """What each feature added to the scores of some rows.

    `values` is scores × features; `rows` is the number of rows, each of which has one score, or one
    for each class. `error` is how far the contributions of a score are from adding up to it, at
    most, relative to the scores: 0 but for rounding when the `method` is exact.
    """

    values: NDArray[Any]
    rows: int
    method: str
    error: float

    def shares(self, names: Sequence[str]) -> tuple[Contribution, ...]:
        """Each feature's part in the mean absolute contribution, largest first; together 1.

        Raises ValueError where the columns are not those of `names`.
        """
        weight = np.abs(np.asarray(self.values, dtype=np.float64)).mean(axis=0)
        share = weight / max(float(weight.sum()), 1e-12)
        order = np.argsort(-share, kind="stable")
        of_names = dict(zip(range(len(share)), names, strict=True))
        return tuple(Contribution(of_names[at], float(share[at])) for at in order.tolist())
