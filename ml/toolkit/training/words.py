"""Measure which words a text model relies on, by permutation importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions, permuted
from ml.serving.scoring.columns import FIRST_WORD, UNKNOWN, Columns

# Number of words to permute, those with the highest chi² statistic.
MOST = 30


def word_importance(
    loss: Callable[[NDArray[np.float64]], float],
    table: NDArray[np.float64],
    labels: NDArray[Any],
    columns: Columns,
) -> Contributions:
    """Return the permutation importance of words: the rise of the loss if presence is shuffled.

    loss: function of token numbers (rows, length), the shape of `table`.
    labels: the class of each row.

    A row that loses a word gets the unknown word in its place; a row that gains a word gets it at
    its end.
    """
    from sklearn.feature_selection import chi2

    numbers = np.arange(FIRST_WORD, columns.vocabulary)
    has = np.stack([(table == number).any(axis=1) for number in numbers], axis=1)
    varies = np.flatnonzero(has.any(axis=0) & ~has.all(axis=0))
    order = varies[np.argsort(-chi2(has[:, varies], labels)[0], kind="stable")][:MOST]
    ends = np.minimum((table > 0).sum(axis=1), table.shape[1] - 1)

    def shuffled(rows: Sequence[Sequence[bool]]) -> float:
        changed = table.copy()
        for number, wanted, before in zip(
            numbers[order], np.array(rows, dtype=bool).T, has[:, order].T, strict=True
        ):
            lost = (table == number) & ~wanted[:, None]
            changed[lost] = UNKNOWN
            gained = np.flatnonzero(wanted & ~before)
            changed[gained, ends[gained]] = number
        return loss(changed)

    return permuted(shuffled, has[:, order].tolist(), [columns.words[index] for index in order])
