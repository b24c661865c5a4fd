"""How likely grams make a class: naive Bayes by counting, and softmax regression from there on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ml.projects.faq_matching.vectors import Array, Index, Matrix

SMOOTHING = 0.01


@dataclass(frozen=True)
class Evidence:
    """Multinomial naive Bayes: the mean log-likelihood of a query's grams under each row of a mass.

    ln(mass + a) is split into ln a + ln(1 + mass/a), so that the product stays sparse.
    """

    log: Matrix
    total: Array

    @classmethod
    def of(cls, mass: Matrix) -> Evidence:
        """Under the rows of `mass`."""
        log = mass.copy()
        log.data = np.log1p(log.data / SMOOTHING)
        total = np.asarray(mass.sum(axis=1)).ravel() + SMOOTHING * mass.shape[1]
        return cls(log.T.tocsr(), np.log(total / SMOOTHING))

    def __call__(self, queries: Matrix) -> Array:
        """(queries, rows of the mass)."""
        length = np.maximum(np.asarray(queries.sum(axis=1)).ravel(), 1e-6)
        likely = (queries @ self.log).toarray() / length[:, None] - self.total
        return np.asarray(likely, dtype=np.float32)


def naive_bayes(mass: Matrix) -> Array:
    """(words, classes): the classifier's weights by counting, less each word's mean."""
    smooth = mass.toarray().T + 3 * SMOOTHING
    start = np.log(smooth) - np.log(smooth.sum(axis=0))
    # In the order in which a sparse product reads it.
    return np.asarray(start - start.mean(axis=1, keepdims=True), dtype=np.float32, order="C")


def descend(
    start: Array, seen: Matrix, labels: Index, weight: Array, steps: int, rate: float
) -> Array:
    """Softmax regression of the labels on words, from naive Bayes onwards: (words, classes).

    `steps` of gradient descent with momentum 0.9 from `start`: few are needed, and stopping early
    is the only regularisation.
    """
    found = start.copy()
    momentum = np.zeros_like(found)
    transposed = seen.T.tocsr()
    rows = np.arange(len(labels))
    pace = np.float32(rate * found.shape[1] / weight.sum())
    for _ in range(steps):
        share = seen @ found
        share -= share.max(axis=1, keepdims=True)
        np.exp(share, out=share)
        share /= share.sum(axis=1, keepdims=True)
        share[rows, labels] -= 1
        share *= weight[:, None]
        momentum *= np.float32(0.9)
        momentum -= pace * (transposed @ share)
        found += momentum
    return found
