"""Train and evaluate the reference recipe, the baseline of every model.

python -m ml.projects.faq_matching.recipe --faq DIR --baseline OUT_DIR

It does not depend on the model, so a pipeline runs it as a separate step and reuses its output.

The recipe is from microsoft/MLHyperparameterTuning. One `TfidfVectorizer` of questions and another
of entries give the features of a pair. LightGBM's `LGBMClassifier` with balanced weights is trained
on one match and random non-matches per question. The settings are the best published ones without
tuning: all pairs of its data preparation (`match` 40), its script's defaults (`ngrams` 1,
`min_child_samples` 20, weighted), and the 1,000 trees of its sweep (the script's default of 100
ranks far worse).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ml.measures import schema
from ml.measures.ranking import estimates, ranks
from ml.measures.schema import Estimate, Metrics
from ml.projects.faq_matching.fitting import entries_of, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.measure import EVALUATED
from ml.projects.faq_matching.pairs import sample_pairs
from ml.projects.faq_matching.prepare import add_data_arguments, prepare
from ml.projects.faq_matching.splits import NAMES as SPLITS
from ml.projects.faq_matching.splits import TRAIN, Split
from ml.projects.faq_matching.vectors import Array, Index
from ml.toolkit.training.boosting import threads

FILE = "baseline.json"
MATCHES = 40
BLOCK = 256
# The parameters that lightgbm.LGBMClassifier passes to lightgbm.train; a test compares the two.
# The class itself needs LightGBM's scikit-learn wrappers, which the toolkit does not import.
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


class BaselineMismatch(ValueError):
    """Raised if the baseline was measured on other data or another split seed."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and split the data, train and score the recipe, and write its metrics."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_data_arguments(parser)
    parser.add_argument("--baseline", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    faq, split = prepare(options.faq, options.schema, options.split_seed)
    write(options.baseline, faq, split, metrics(faq, split, threads()))


def metrics(faq: Faq, split: Split, threads: int) -> Metrics:
    """Train the recipe on the training split; return each evaluated split's metrics."""
    rows = split.rows(TRAIN)
    entry = entries_of(faq, rows)
    rng = np.random.default_rng([split.seed, 17])
    pairs = sample_pairs(entry, np.flatnonzero(~split.unseen), MATCHES, rng)
    printed = [entry.text for entry in faq.entries]
    # One thread: for 1,000 small trees, two passively waiting threads (OMP_WAIT_POLICY) take 50 %
    # longer and build the same trees.
    recipe = fit_recipe(texts_of(faq, rows), entry, printed, pairs, threads=1)
    return {
        SPLITS[number]: estimates(
            ranks(
                recipe.scores(texts_of(faq, split.rows(number)), threads),
                entries_of(faq, split.rows(number)),
            )
        )
        for number in EVALUATED
    }


def write(folder: Path, faq: Faq, split: Split, results: Metrics) -> None:
    """Write baseline.json: the metrics, the hash of the data and the split seed."""
    table = {
        name: {key: asdict(estimate) for key, estimate in row.items()}
        for name, row in results.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**_questions(faq, split), "metrics": table}, indent=1, allow_nan=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def read(folder: Path, faq: Faq, split: Split) -> Metrics:
    """Read baseline.json; raise BaselineMismatch if its data hash or split seed differs."""
    document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    for name, value in _questions(faq, split).items():
        if document[name] != value:
            raise BaselineMismatch(f"{folder / FILE} has {name} {document[name]}, expected {value}")
    metrics = {
        name: {key: schema.read(Estimate, value) for key, value in row.items()}
        for name, row in document["metrics"].items()
    }
    lacking = [
        path
        for name, row in metrics.items()
        for key, value in row.items()
        for path in schema.missing(value, f"{name}.{key}.")
    ]
    if lacking:
        raise ValueError(f"{', '.join(lacking)} is missing")
    return metrics


def _questions(faq: Faq, split: Split) -> dict[str, str | int]:
    return {"data_sha256": faq.sha256, "split_seed": split.seed}


@dataclass(frozen=True)
class Recipe:
    """The trained baseline model."""

    asked: Any  # fitted vectoriser of questions
    printed: Any  # fitted vectoriser of entries
    booster: Any  # a lightgbm.Booster
    entries: tuple[str, ...]
    feature_seconds: float
    fit_seconds: float

    def scores(self, texts: Sequence[str], threads: int = 0) -> Array:
        """Return raw scores (texts, entries); `threads=0` is LightGBM's default."""
        printed = self.printed.transform(self.entries)
        count = len(self.entries)
        scores = np.empty((len(texts), count), np.float32)
        for start in range(0, len(texts), BLOCK):
            questions = self.asked.transform(texts[start : start + BLOCK])
            size = questions.shape[0]
            rows = np.repeat(np.arange(size), count)
            pairs = sparse.hstack(
                [questions[rows], printed[np.tile(np.arange(count), size)]]
            ).tocsr()
            raw = self.booster.predict(pairs, raw_score=True, num_threads=threads)
            scores[start : start + size] = raw.reshape(size, count)
        return scores


def fit_recipe(
    texts: Sequence[str],
    entry: Index,
    entries: Sequence[str],
    pairs: tuple[Index, Index],
    threads: int,
    trees: int = TREES,
) -> Recipe:
    """Train the recipe on pairs (indices into `texts` and `entries`); `entry[i]` matches text i."""
    import lightgbm as lgb
    from sklearn.feature_extraction.text import TfidfVectorizer

    began = time.perf_counter()
    questions, printed = TfidfVectorizer(ngram_range=(1, 1)), TfidfVectorizer(ngram_range=(1, 1))
    # As in the reference, the vectorisers are fitted on the pairs, so texts repeat.
    features = sparse.hstack(
        [
            questions.fit_transform([texts[index] for index in pairs[0]]),
            printed.fit_transform([entries[index] for index in pairs[1]]),
        ]
    ).tocsr()
    featured = time.perf_counter()
    label = (pairs[1] == entry[pairs[0]]).astype(np.float64)
    counts = np.array([(label == 0).sum(), label.sum()])
    weight = (len(label) / (2 * counts))[label.astype(int)]
    data = lgb.Dataset(features, label, weight=weight)
    booster = lgb.train({**CLASSIFIER, "num_threads": threads}, data, num_boost_round=trees)
    seconds = (featured - began, time.perf_counter() - featured)
    return Recipe(questions, printed, booster, tuple(entries), *seconds)


if __name__ == "__main__":
    main()
