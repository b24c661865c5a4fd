"""Fit a model to questions with known entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from ml.measures.ranking import gain_at, mean_rank, ranks
from ml.projects.faq_matching.features import NAMES, Memory, Spaces
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel, answer_text, catalogue_of, feature_set_hash
from ml.projects.faq_matching.pairs import sample_pairs, training_features
from ml.projects.faq_matching.settings import Hyperparameters
from ml.projects.faq_matching.splits import Split
from ml.projects.faq_matching.vectors import Array, Index
from ml.toolkit.training.boosting import Watch, boost_lightgbm

# Trees between two checkpoints. Small, because the models here have few trees.
SEGMENT = 20
# step (trees so far), metrics of the validation questions
Report = Callable[[int, dict[str, float]], None]


def fit(
    faq: Faq,
    split: Split,
    rows: Index,
    settings: Hyperparameters,
    seed: int = 0,
    threads: int = 1,
    pairs: tuple[Index, Index] | None = None,
    report: Report | None = None,
    watched: Index | None = None,
    every: int = 10,
    like: FaqModel | None = None,
) -> FaqModel:
    """Return a model trained on the questions `rows` and the texts of the known entries.

    Every `every` trees, `report` gets the metrics of the questions `watched`. The model keeps the
    trees up to the best report. `pairs` (question indices into `rows`, entry indices) replaces the
    random pairs. `like` is a model of the same rows and settings that may differ in seed and trees;
    its vocabularies, catalogue and memory are reused.
    """
    began = time.perf_counter()
    texts = [faq.questions[row].text for row in rows]
    entry = np.array([faq.questions[row].entry for row in rows])
    known_entries = np.flatnonzero(~split.unseen)
    if like is None:
        printed = [faq.entries[index] for index in known_entries]
        visible = [*texts, *(e.text for e in printed), *(answer_text(e) for e in printed)]
        spaces, text_vectors = Spaces.fit(visible, settings.word_ngrams, settings.char_ngrams)
        question_vectors, catalogue = text_vectors[: len(texts)], catalogue_of(spaces, faq.entries)
    else:
        spaces, catalogue = like.spaces, like.catalogue
        order = np.argsort(np.argsort(entry, kind="stable"))  # the memory is sorted by entry
        question_vectors = like.memory.asked[order]
    rng = np.random.default_rng([seed, 17])
    if pairs is None:
        pairs = sample_pairs(
            entry, known_entries, settings.matches, rng, catalogue.alike, settings.hard_negatives
        )
    descent = (settings.discriminant_steps, settings.discriminant_rate)

    def train_memory() -> Memory:
        return like.memory if like else Memory.train(question_vectors, entry, catalogue, *descent)

    # SciPy's sparse products release the GIL.
    with ThreadPoolExecutor(threads) as pool:
        learnt = pool.submit(train_memory)
        features = training_features(
            question_vectors, entry, split.group[rows], pairs, catalogue, descent, seed, pool
        )
        memory = learnt.result()
    featured = time.perf_counter()
    label = (pairs[1] == entry[pairs[0]]).astype(np.float32)
    watch = None
    model = FaqModel(faq.entries, tuple(texts), entry, spaces, catalogue, memory, None, {})
    if report is not None and watched is not None:
        watch = _Watch(model, faq, watched, report, every)
    booster = _boost(features, label, len(rows), settings, seed, threads, watch)
    ended = time.perf_counter()
    provenance: dict[str, Any] = {
        **settings.as_dict(),
        "seed": seed,
        "split_seed": split.seed,
        "data_sha256": faq.sha256,
        "feature_set_hash": feature_set_hash(),
    }
    seconds = {"feature_seconds": featured - began, "fit_seconds": ended - featured}
    return replace(model, booster=booster, settings=provenance, seconds=seconds)


def _boost(
    features: Array,
    label: Array,
    questions: int,
    settings: Hyperparameters,
    seed: int,
    threads: int,
    watch: _Watch | None,
) -> Any:
    import lightgbm as lgb

    parameters = {
        "objective": settings.objective,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.leaves,
        "min_child_samples": settings.min_child_samples,
        "feature_fraction": settings.feature_fraction,
        "max_bin": 127,
        "bin_construct_sample_cnt": 5000,
        "seed": seed,
        # Reproducible trees for a given seed, independent of the machine's load.
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": threads,
        "verbosity": -1,
    }
    group = None
    if settings.objective == "lambdarank":
        parameters["lambdarank_truncation_level"] = 5
        group = np.full(questions, len(label) // questions)
    weight = None
    if settings.weighted:
        matches = label.sum()
        weight = np.where(
            label > 0, len(label) / (2 * matches), len(label) / (2 * (len(label) - matches))
        )
    data = lgb.Dataset(features, label, group=group, weight=weight, feature_name=list(NAMES))
    watching = Watch(watch.features, watch.every, watch.look) if watch else None
    booster = boost_lightgbm(parameters, data, settings.trees, segment=SEGMENT, watch=watching)
    if watch and watch.best_trees < settings.trees:
        text = booster.model_to_string(num_iteration=watch.best_trees)
        booster = lgb.Booster(model_str=text)
    return booster


class _Watch:
    """Ranks entries for the watched questions and reports the metrics.

    `best_trees` is the number of trees at the best gain@3; the latest one on a tie.
    """

    def __init__(
        self, model: FaqModel, faq: Faq, watched: Index, report: Report, every: int
    ) -> None:
        texts = [faq.questions[row].text for row in watched]
        self.expected = np.array([faq.questions[row].entry for row in watched])
        self.features = model.features(texts).reshape(-1, len(NAMES))
        self.report, self.every = report, every
        self.best, self.best_trees = -1.0, 0

    def look(self, trees: int, scores: Array, again: bool) -> None:
        """Update `best_trees`; report unless `again` (it was reported before an interruption)."""
        positions = ranks(scores.reshape(len(self.expected), -1), self.expected)
        if (gain := gain_at(positions, 3)) >= self.best:
            self.best, self.best_trees = gain, trees
        if not again:
            self.report(trees, validation_metrics(positions))


def validation_metrics(positions: Index) -> dict[str, float]:
    """Return the validation metrics by logged name; `positions` are the right entries' ranks."""
    return {
        "validation_gain_at_1": gain_at(positions, 1),
        "validation_gain_at_3": gain_at(positions, 3),
        "validation_mean_rank": mean_rank(positions),
    }


def texts_of(faq: Faq, rows: Sequence[int] | Index) -> list[str]:
    """Return the texts of the questions `rows`."""
    return [faq.questions[row].text for row in rows]


def entries_of(faq: Faq, rows: Sequence[int] | Index) -> Index:
    """Return the indices of the right entries of the questions `rows`."""
    return np.array([faq.questions[row].entry for row in rows], dtype=np.int64)
