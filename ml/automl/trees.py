"""How many boosted trees: as many as the answers to rows that they were not fitted to call for.

Folds grow side by side, a tree at a time. The trees of a fold are counted by the rows that judge
the other folds, never by its own, so that its score is that of a number of trees which was chosen
without it; the model of all rows has the number that all folds call for. Libraries stop each fold
by its own rows (`lightgbm.cv` by all of them), and the score of it is too good.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

# Trees at most, and where no rows count them (LightGBM's and XGBoost's own default).
MOST, USUAL = 1_500, 100
# Trees without a better answer that are enough, of few rows and of many: the answers to few rows go
# up and down (AutoGluon 1.x has 300 below 10,000 rows, and as many fewer as there are more).
PATIENCE, IMPATIENCE, MANY_ROWS = 300, 20, 10_000
# The least number of trees times their learning rate: about e to the minus this of the fit is left
# then. An area under a curve may be best after one tree, whose scores are still the class's share.
LEAST = 2.0
# LightGBM's own learning rate, where the settings name none.
RATE = 0.1
# The metric of a search by LightGBM's and XGBoost's name. Others are steps, or are not there: the
# loss that is fitted stands for them.
_METRICS = {
    "AUC_weighted": ("auc", "auc"),
    "average_precision_score_weighted": ("average_precision", "aucpr"),
    "normalized_mean_absolute_error": ("l1", "mae"),
}


class Growing(Protocol):
    """Boosted trees of one fold, and rows that watch them."""

    def add(self) -> float:
        """Add a tree a class; how good the answers to the rows that watch are, higher is better."""
        ...

    def cut(self, trees: int) -> Any:
        """The model of the first trees, which is a `Fitted`."""
        ...


def metric(name: str, task: str) -> tuple[str, str] | None:
    """LightGBM's and XGBoost's name of a metric of the search; None for the loss."""
    return None if task == "multiclass" else _METRICS.get(name)


def patience(rows: int) -> int:
    """Trees without a better answer that are enough for so many rows of training."""
    return max(IMPATIENCE, PATIENCE * MANY_ROWS // max(MANY_ROWS, rows))


def fewest(rate: float) -> int:
    """Trees at the least with this learning rate."""
    return math.ceil(LEAST / rate)


def grow(
    folds: Sequence[Growing],
    most: int,
    patience: int,
    seconds: float = math.inf,
    fewest: int = 1,
) -> tuple[Sequence[int], int]:
    """Add trees; for each fold the number that the others call for (of a single one its own rows
    do), and the number that all do, neither below the fewest. No tree is added after so many
    seconds.
    """
    until, count = time.monotonic() + seconds, len(folds)
    # One for each fold, and last for all.
    best, at = np.full(count + 1, -np.inf), np.full(count + 1, fewest)
    is_open = np.ones(count + 1, dtype=bool)
    for number in range(1, most + 1):
        # A metric may not be defined on the rows of a fold.
        values = np.nan_to_num([of.add() for of in folds])
        others = (values.sum() - values) / (count - 1) if count > 1 else values
        of_this = np.append(others, values.mean())
        is_better = is_open & (of_this > best) & (number >= fewest)
        best, at = np.where(is_better, of_this, best), np.where(is_better, number, at)
        # One that has closed stays so, though others go on: its own rows have no say in that.
        is_open &= number - at < patience
        if not is_open.any() or time.monotonic() > until:
            break
    at = np.minimum(at, number)
    return at[:-1].tolist(), int(at[-1])
