"""Near-identical texts, found exactly, so that none of them straddles a split.

Two texts are near-identical when the sets of their character 3-grams, case, accents and punctuation
aside, overlap by at least `THRESHOLD` (Jaccard); groups are the connected components.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ml.projects.faq_matching.text import normalise
from ml.projects.faq_matching.vectors import char_grams

# "how do i use spot nodes" and "how can i use spot nodes" overlap by 0.76, two real paraphrases by
# 0.1 to 0.4.
THRESHOLD = 0.7
BLOCK = 2048


def near_identical(
    texts: Sequence[str], threshold: float = THRESHOLD
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(i, j), i < j, of every near-identical pair; exact.

    Prefix filtering: with the grams of each text in one common order, two texts that overlap by t
    share a gram among the first n − ⌈t·n⌉ + 1 of each. The rarest come first, so that few pairs are
    compared.
    """
    plain = [normalise(text) or " " for text in texts]
    rows, keys = char_grams(plain, 3, 3)
    _, columns, frequency = np.unique(keys, return_inverse=True, return_counts=True)
    # Columns renumbered from the rarest gram: sorted indices are then in the common order.
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
    found: list[NDArray[np.int64]] = []
    for start in range(0, len(texts), BLOCK):
        candidates = (head[start : start + BLOCK] @ head.T).tocoo()
        i, j = candidates.row.astype(np.int64) + start, candidates.col.astype(np.int64)
        alike = np.minimum(size[i], size[j]) >= threshold * np.maximum(size[i], size[j]) - 1e-4
        i, j = i[alike & (i < j)], j[alike & (i < j)]
        shared = np.asarray(grams[i].multiply(grams[j]).sum(axis=1)).ravel()
        near = shared >= threshold * (size[i] + size[j] - shared) - 1e-4
        found.append(np.stack([i[near], j[near]]))
    pairs = np.concatenate(found, axis=1)
    return pairs[0], pairs[1]


def groups(texts: Sequence[str], threshold: float = THRESHOLD) -> NDArray[np.int64]:
    """The group of every text: equal numbers mean near-identical, directly or through others."""
    i, j = near_identical(texts, threshold)
    links = sparse.coo_matrix((np.ones(len(i)), (i, j)), shape=(len(texts), len(texts)))
    labels = sparse.csgraph.connected_components(links, directed=False)[1]
    return np.asarray(labels, dtype=np.int64)
