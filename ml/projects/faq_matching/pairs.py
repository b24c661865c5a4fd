"""The (question, entry) training pairs and their out-of-fold features."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np

from ml.projects.faq_matching.features import NAMES, Catalogue, Memory, Texts, pair_features
from ml.projects.faq_matching.splits import folds
from ml.projects.faq_matching.vectors import Array, Index

BLOCK = 1024
FOLDS = 5
FORGOTTEN = 8


def sample_pairs(
    entry: Index,
    candidates: Index,
    matches: int,
    rng: np.random.Generator,
    alike: Array | None = None,
    hard: int = 0,
) -> tuple[Index, Index]:
    """Return the indices (question, entry) of one positive and up to `matches` − 1 negative pairs.

    The pairs of a question are consecutive, its match `entry[question]` first. `hard` of the
    negatives are the candidates most similar to the match (`alike`: entries × entries); the others
    are random.
    """
    others = min(matches - 1, len(candidates) - 1)
    keys = rng.random((len(entry), len(candidates)))
    if alike is not None and hard:
        near = np.argsort(-alike[entry][:, candidates], axis=1, kind="stable")[:, :hard]
        np.put_along_axis(keys, near, -1.0, axis=1)
    keys[candidates[None] == entry[:, None]] = 2
    drawn = candidates[np.argsort(keys, axis=1, kind="stable")[:, :others]]
    paired = np.concatenate([entry[:, None], drawn], axis=1)
    return np.repeat(np.arange(len(entry)), others + 1), paired.ravel()


def training_features(
    texts: Texts,
    entry: Index,
    group: Index,
    pairs: tuple[Index, Index],
    catalogue: Catalogue,
    options: tuple[int, float],
    seed: int,
    pool: Executor,
    fold_count: int = FOLDS,
) -> Array:
    """Return out-of-fold features (pairs, features) of the training questions.

    A question's features come from a memory of the other folds; near-identical questions share a
    fold (`group`). `options` are the steps and rate of `Memory.train`. Each memory also omits all
    questions of one entry in `FORGOTTEN`, a different set per fold, so that the model learns to
    rank entries without known questions.
    """
    out = np.empty((len(pairs[0]), len(NAMES)), np.float32)
    fold = folds(group, fold_count, seed)
    forgotten = np.random.default_rng([seed, 13]).permutation(len(catalogue.answers.words))
    forgotten %= FORGOTTEN

    def fill(number: int) -> None:
        visible = (fold != number) & (forgotten[entry] != number)
        memory = Memory.train(texts[np.flatnonzero(visible)], entry[visible], catalogue, *options)
        _fill(out, texts, np.flatnonzero(fold == number), pairs, catalogue, memory)

    list(pool.map(fill, range(fold_count)))
    return out


def _fill(
    out: Array,
    texts: Texts,
    rows: Index,
    pairs: tuple[Index, Index],
    catalogue: Catalogue,
    memory: Memory,
) -> None:
    width = len(pairs[0]) // len(texts.words)
    nothing = np.zeros((BLOCK, len(catalogue.questions.words)), bool)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        features = pair_features(texts[block], catalogue, memory, nothing[: len(block)])
        positions = (block[:, None] * width + np.arange(width)).ravel()
        out[positions] = features[np.repeat(np.arange(len(block)), width), pairs[1][positions]]
