"""The reference recipe: TF-IDF of each text, side by side, into LightGBM's classifier.

From microsoft/MLHyperparameterTuning: `TfidfVectorizer` on the question and, apart from it, on the
entry; `LGBMClassifier` on pairs of one match and random non-matches; balanced weights. Of its
published settings we take the strongest that need no tuning: every pair that its data preparation
makes (`match` 40), its script's defaults (`ngrams` 1, `min_child_samples` 20, weighted) and the
1,000 trees with which it sweeps (its script's default of 100 ranks far worse).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ml.projects.faq_matching.vectors import Array, Index
from ml.toolkit.boosting import lightgbm

MATCHES = 40
BLOCK = 256
# What lightgbm.LGBMClassifier passes to lightgbm.train; a test holds the two against each other.
# The class needs LightGBM's wrappers of scikit-learn, which `ml.toolkit.boosting` leaves out.
CLASSIFIER = {
    "objective": "binary",
    "min_child_samples": 20,
    "num_leaves": 31,
    "learning_rate": 0.1,
    "subsample_for_bin": 200000,
    "min_split_gain": 0.0,
    "min_child_weight": 1e-3,
    "verbosity": -1,
}
TREES = 1000


@dataclass(frozen=True)
class Recipe:
    """The trained recipe; seconds of its features and of its fitting."""

    asked: Any
    printed: Any
    booster: Any
    entries: tuple[str, ...]
    feature_seconds: float
    fit_seconds: float

    def scores(self, texts: Sequence[str], threads: int = 0) -> Array:
        """(texts, entries): raw scores; 0 leaves the number of threads to LightGBM."""
        printed = self.printed.transform(self.entries)
        count = len(self.entries)
        found = np.empty((len(texts), count), np.float32)
        for start in range(0, len(texts), BLOCK):
            asked = self.asked.transform(texts[start : start + BLOCK])
            size = asked.shape[0]
            rows = np.repeat(np.arange(size), count)
            pairs = sparse.hstack([asked[rows], printed[np.tile(np.arange(count), size)]]).tocsr()
            raw = self.booster.predict(pairs, raw_score=True, num_threads=threads)
            found[start : start + size] = raw.reshape(size, count)
        return found


def fit_recipe(
    texts: Sequence[str],
    entry: Index,
    entries: Sequence[str],
    pairs: tuple[Index, Index],
    threads: int,
    trees: int = TREES,
) -> Recipe:
    """Train the recipe on pairs (indices into `texts` and `entries`); `entry[i]` matches text i."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    lgb = lightgbm()
    began = time.perf_counter()
    asked, printed = TfidfVectorizer(ngram_range=(1, 1)), TfidfVectorizer(ngram_range=(1, 1))
    # As there: the vectorisers are fitted on the pairs' columns, row by row.
    features = sparse.hstack(
        [
            asked.fit_transform([texts[at] for at in pairs[0]]),
            printed.fit_transform([entries[at] for at in pairs[1]]),
        ]
    ).tocsr()
    featured = time.perf_counter()
    label = (pairs[1] == entry[pairs[0]]).astype(np.float64)
    counts = np.array([(label == 0).sum(), label.sum()])
    weight = (len(label) / (2 * counts))[label.astype(int)]
    data = lgb.Dataset(features, label, weight=weight)
    booster = lgb.train({**CLASSIFIER, "num_threads": threads}, data, num_boost_round=trees)
    seconds = (featured - began, time.perf_counter() - featured)
    return Recipe(asked, printed, booster, tuple(entries), *seconds)
