"""Split the questions by seed; near-identical texts stay in one split.

- train: the training questions;
- validation: questions about known entries, for model selection;
- test_known: held-out questions about known entries;
- test_unseen: all questions about entries that are not in training;
- left_out: questions that would leak (near-identical to a text of another split).

Two texts are near-identical if the Jaccard similarity of their sets of character 3-grams is at
least `THRESHOLD`, ignoring case, accents and punctuation. Groups are the connected components.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.text import normalise
from ml.projects.faq_matching.vectors import char_grams

TRAIN, VALIDATION, TEST_KNOWN, TEST_UNSEEN, LEFT_OUT = range(5)
NAMES = ("train", "validation", "test_known", "test_unseen", "left_out")
# "how do i use spot nodes" and "how can i use spot nodes" overlap by 0.76, two real paraphrases by
# 0.1 to 0.4.
THRESHOLD = 0.7
BLOCK = 2048


@dataclass(frozen=True)
class Split:
    """The split of every question."""

    assigned: NDArray[np.int8]  # (questions): index into NAMES
    unseen: NDArray[np.bool_]  # (entries): True if the entry is not in training
    group: NDArray[np.int64]  # (questions): number of its group of near-identical texts
    seed: int

    def rows(self, split: int) -> NDArray[np.int64]:
        """Return the indices of the questions of one split, in the order of the data."""
        return np.flatnonzero(self.assigned == split)

    def counts(self) -> dict[str, int]:
        """Return the number of questions of each split, by name."""
        return {name: int((self.assigned == number).sum()) for number, name in enumerate(NAMES)}


def split(
    faq: Faq,
    seed: int = 0,
    unseen_share: float = 0.12,
    test_share: float = 0.2,
    validation_share: float = 0.15,
) -> Split:
    """Split the questions of `faq`; the same data and seed give the same split.

    `unseen_share` is a share of the entries. The other shares are of each known entry's questions.
    If the data reserves questions for testing (`held_out`), test_known has only those.
    """
    rng = np.random.default_rng([seed, 7])
    entry = np.array([question.entry for question in faq.questions])
    held_out = np.array([question.held_out for question in faq.questions])
    unseen = np.zeros(len(faq.entries), bool)
    unseen[rng.permutation(len(faq.entries))[: round(unseen_share * len(faq.entries))]] = True
    texts = [question.text for question in faq.questions]
    group = groups([*texts, *(e.question for e in faq.entries)])
    of_entry, group = group[len(texts) :], group[: len(texts)]
    printed = {number: bool(unseen[index]) for index, number in enumerate(of_entry)}
    parts = np.full(len(texts), LEFT_OUT, np.int8)
    free: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, members in _by(group).items():
        rows = np.array(members)
        sides = set(unseen[entry[rows]])
        if number in printed:
            # Near-identical to an entry's own question, hence too easy for a test.
            if not printed[number]:
                parts[rows[~unseen[entry[rows]] & ~held_out[rows]]] = TRAIN
        elif sides == {True}:
            parts[rows] = TEST_UNSEEN
        elif sides == {True, False}:
            parts[rows[unseen[entry[rows]]]] = TEST_UNSEEN
        elif held_out[rows].any():
            parts[rows[held_out[rows]]] = TEST_KNOWN
        else:
            free[int(entry[rows[0]])][number] = members
    tested = 0.0 if held_out.any() else test_share
    for mine in free.values():
        _deal(mine, parts, rng, tested, validation_share)
    return Split(parts, unseen, group, seed)


def _by(group: NDArray[np.int64]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for row, number in enumerate(group):
        members[int(number)].append(row)
    return members


def _deal(
    mine: dict[int, list[int]],
    parts: NDArray[np.int8],
    rng: np.random.Generator,
    test_share: float,
    validation_share: float,
) -> None:
    """Assign the groups of one entry's questions to splits in a random order, into `parts`."""
    numbers = list(mine)
    total = sum(len(members) for members in mine.values())
    quota = {TEST_KNOWN: round(test_share * total), VALIDATION: round(validation_share * total)}
    for index in rng.permutation(len(numbers)):
        members = mine[numbers[index]]
        target = next((s for s, room in quota.items() if room >= len(members)), TRAIN)
        parts[members] = target
        if target != TRAIN:
            quota[target] -= len(members)


def folds(group: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Return the fold (0 to count−1) of every row; rows of a group share a fold."""
    numbers, inverse = np.unique(group, return_inverse=True)
    rng = np.random.default_rng([seed, 11])
    dealt = rng.permutation(len(numbers)) % count
    return np.asarray(dealt[inverse], dtype=np.int64)


def shuffled(faq: Faq, split: Split, seed: int) -> Faq:
    """Return the data with the right entries of the training questions permuted.

    A model trained on it must score at chance level; a better score shows a leak (Ojala and
    Garriga, JMLR 11, 2010).
    """
    rows = split.rows(TRAIN)
    dealt = np.random.default_rng([seed, 29]).permutation(rows)
    questions = list(faq.questions)
    for row, source in zip(rows, dealt, strict=True):
        questions[row] = replace(questions[row], entry=faq.questions[source].entry)
    return replace(faq, questions=tuple(questions))


def near_identical(
    texts: Sequence[str], threshold: float = THRESHOLD
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices (i, j), i < j, of all near-identical pairs.

    It uses prefix filtering, which is exact. The n grams of a text are sorted from the rarest. Two
    texts with a similarity of t or more share a gram among their first n − ⌈t·n⌉ + 1 grams; only
    such pairs are compared.
    """
    plain = [normalise(text) or " " for text in texts]
    rows, keys = char_grams(plain, 3, 3)
    _, columns, frequency = np.unique(keys, return_inverse=True, return_counts=True)
    # Renumber the columns from the rarest gram, so that sorted indices start with rare grams.
    columns = np.argsort(np.argsort(frequency, kind="stable"))[columns]
    ones = np.ones(len(rows), np.float32)
    grams = sparse.csr_matrix((ones, (rows, columns)), shape=(len(texts), len(frequency)))
    grams.sort_indices()
    grams.data[:] = 1
    size = np.diff(grams.indptr)
    place = np.arange(grams.nnz) - np.repeat(grams.indptr[:-1], size)
    prefix = place < np.repeat(size - np.ceil(threshold * size - 1e-9) + 1, size)
    head = grams.copy()
    head.data[~prefix] = 0
    head.eliminate_zeros()
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(texts), BLOCK):
        candidates = (head[start : start + BLOCK] @ head.T).tocoo()
        i, j = candidates.row.astype(np.int64) + start, candidates.col.astype(np.int64)
        alike = np.minimum(size[i], size[j]) >= threshold * np.maximum(size[i], size[j]) - 1e-4
        i, j = i[alike & (i < j)], j[alike & (i < j)]
        shared = np.asarray(grams[i].multiply(grams[j]).sum(axis=1)).ravel()
        near = shared >= threshold * (size[i] + size[j] - shared) - 1e-4
        batches.append(np.stack([i[near], j[near]]))
    pairs = np.concatenate(batches, axis=1)
    return pairs[0], pairs[1]


def groups(texts: Sequence[str], threshold: float = THRESHOLD) -> NDArray[np.int64]:
    """Return the group number of each text; near-identical texts are transitively grouped."""
    i, j = near_identical(texts, threshold)
    links = sparse.coo_matrix((np.ones(len(i)), (i, j)), shape=(len(texts), len(texts)))
    labels = sparse.csgraph.connected_components(links, directed=False)[1]
    return np.asarray(labels, dtype=np.int64)
