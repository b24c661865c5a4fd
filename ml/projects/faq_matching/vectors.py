"""Convert texts to sparse TF-IDF rows of word or character n-grams, vectorised with numpy.

N-grams are 64-bit hashes, so a vocabulary is a sorted array. It needs no pickle, and one binary
search looks up the n-grams of all texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]
Array = NDArray[np.float32]
Index = NDArray[np.int64]
Matrix = Any  # scipy.sparse.csr_matrix; its stubs do not follow slicing and products.

_WORD = re.compile(r"\w+")
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SUFFIXES = ("ings", "ing", "ies", "ied", "ed", "es", "s", "e", "y")


def stem(word: str) -> str:
    """Return the word without a common English ending, so that `deploys` matches `deploying`."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            return word[: -len(suffix)]
    return word


@lru_cache(maxsize=1 << 16)
def _word_key(word: str) -> int:
    return int.from_bytes(blake2b(stem(word).encode(), digest_size=8).digest(), "little")


def _ngrams(units: Keys, rows: Rows, low: int, high: int) -> tuple[Rows, Keys]:
    """Return (row, hash) of every n-gram of `low` to `high` units within one row."""
    # Start with empty arrays, for texts that are too short for any n-gram.
    found_rows: list[Rows] = [rows[:0]]
    grams: list[Keys] = [units[:0]]
    rolled = units.copy()
    for size in range(1, high + 1):
        if size > 1:
            if len(rolled) < 2:
                break
            rolled = rolled[:-1] * _PRIME + units[size - 1 :]
        if size >= low:
            is_complete = rows[: len(rolled)] == rows[size - 1 :]
            mixed = (rolled[is_complete] ^ np.uint64(size)) * _MIX
            grams.append(mixed ^ (mixed >> np.uint64(29)))
            found_rows.append(rows[: len(rolled)][is_complete])
    return np.concatenate(found_rows), np.concatenate(grams)


def word_grams(texts: Sequence[str], high: int) -> tuple[Rows, Keys]:
    """Return (row, hash) of every n-gram of 1 to `high` stemmed words."""
    words = [_WORD.findall(text) for text in texts]
    rows = np.repeat(np.arange(len(texts)), [len(terms) for terms in words])
    units = np.fromiter((_word_key(w) for terms in words for w in terms), np.uint64, len(rows))
    return _ngrams(units, rows.astype(np.int64), 1, high)


def char_grams(texts: Sequence[str], low: int, high: int) -> tuple[Rows, Keys]:
    """Return (row, hash) of every n-gram of `low` to `high` characters.

    Words are separated by one space; punctuation is ignored.
    """
    padded = [" " + " ".join(_WORD.findall(text)) + " " for text in texts]
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in padded])
    units = np.frombuffer("".join(padded).encode("utf-32-le"), np.uint32).astype(np.uint64)
    return _ngrams(units, rows.astype(np.int64), low, high)


@dataclass(frozen=True)
class Vectoriser:
    """A fitted vocabulary: sorted n-gram hashes and their inverse document frequencies."""

    analyser: Literal["word", "char"]
    low: int
    high: int
    keys: Keys
    idf: NDArray[np.float32]

    @classmethod
    def fit(
        cls, texts: Sequence[str], analyser: Literal["word", "char"], low: int, high: int
    ) -> tuple[Vectoriser, Matrix]:
        """Return the vocabulary of `texts` and the texts' vectors, as by `transform`.

        The idf is smoothed as in scikit-learn: ln((1+n)/(1+df)) + 1.
        """
        rows, grams = _grams(analyser, low, high, texts)
        keys, columns = np.unique(grams, return_inverse=True)
        counts = _count(rows, columns, (len(texts), len(keys)))
        seen = np.bincount(counts.indices, minlength=len(keys))
        idf = (np.log((1 + len(texts)) / (1 + seen)) + 1).astype(np.float32)
        fitted = cls(analyser, low, high, keys, idf)
        return fitted, fitted._weigh(counts, np.zeros(len(texts)))

    def transform(self, texts: Sequence[str]) -> Matrix:
        """Return a float32 CSR matrix, one row per text: (1 + ln count)·idf, scaled to length 1.

        Unknown n-grams have no column but count towards the length, with the largest idf. A text
        with many unknown n-grams is therefore not very similar to any other.
        """
        rows, grams = _grams(self.analyser, self.low, self.high, texts)
        shape = (len(texts), len(self.keys))
        if not len(self.keys) or not len(grams):
            return sparse.csr_matrix(np.zeros(shape, np.float32))
        columns = np.minimum(np.searchsorted(self.keys, grams), len(self.keys) - 1)
        in_vocabulary = self.keys[columns] == grams
        counts = _count(rows[in_vocabulary], columns[in_vocabulary], shape)
        return self._weigh(counts, np.bincount(rows[~in_vocabulary], minlength=len(texts)))

    def _weigh(self, counts: Matrix, unknown: NDArray[Any]) -> Matrix:
        """Convert counts to weights in place; `unknown` has each text's number of unknown n-grams.

        Return `counts`.
        """
        counts.data = (1 + np.log(counts.data)) * self.idf[counts.indices]
        size = np.diff(counts.indptr)
        row_of = np.repeat(np.arange(len(size)), size)
        rarest = float(self.idf.max(initial=0)) ** 2
        length = np.bincount(row_of, counts.data**2, minlength=len(size)) + unknown * rarest
        counts.data = (counts.data / np.repeat(np.sqrt(length), size)).astype(np.float32)
        return counts


def _count(rows: Rows, columns: Rows, shape: tuple[int, int]) -> Matrix:
    """Return a CSR matrix: how often each n-gram (column) occurs in each text (row)."""
    counts = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
    counts.sort_indices()
    return counts


def _grams(
    analyser: Literal["word", "char"], low: int, high: int, texts: Sequence[str]
) -> tuple[Rows, Keys]:
    return word_grams(texts, high) if analyser == "word" else char_grams(texts, low, high)
