"""What each section of a document adds to what is predicted of it, by leaving sections out.

Exact Shapley values (Shapley 1953): a section's part is the mean, over all orders in which the
sections could have been read, of what it changed when it came. Of five sections every subset can be
asked, so the parts add up to the difference from the empty document.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial

import numpy as np

from ml.measures.contributions import Contributions
from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import SECTIONS, Encoded

# Every subset of the sections of so many documents is asked; the shares hardly change with more.
EXPLAINED = 120


def shapley(classifier: Classifier, documents: Sequence[Encoded]) -> Contributions:
    """The parts of the sections in the log probability of each class."""
    chosen, count = documents[:EXPLAINED], len(SECTIONS)
    asked: list[Encoded] = [
        [section if subset >> at & 1 else [] for at, section in enumerate(document)]
        for subset in range(1 << count)
        for document in chosen
    ]
    scores = np.log(classifier.probabilities(asked)).reshape(1 << count, -1)
    values = np.zeros((scores.shape[1], count))
    for at in range(count):
        for subset in range(1 << count):
            if not subset >> at & 1:
                size = subset.bit_count()
                weight = factorial(size) * factorial(count - size - 1) / factorial(count)
                values[:, at] += weight * (scores[subset | 1 << at] - scores[subset])
    apart = np.abs(values.sum(axis=1) - (scores[-1] - scores[0])).max()
    error = float(apart / np.abs(scores[-1]).max())
    return Contributions(values, len(chosen), "Shapley values of the sections, exact", error)
