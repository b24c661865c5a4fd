"""A small corpus, and settings with which a training takes a few seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ml.projects.filings_nlp import corpus, filings, train
from ml.projects.filings_nlp.tokens import MOST_WORDS, PADDING, Ids, Vocabulary

COMPANIES = 120
SETTINGS: dict[str, Any] = {**train.SETTINGS, "epochs": 2, "width": 8, "learning_rate": 0.01}
# The same as arguments.
ARGUMENTS = ["--epochs", "2", "--width", "8", "--learning-rate", "0.01"]


def write_filings(folder: Path) -> Path:
    """The folder of its data asset."""
    filings.write(filings.generate(1, COMPANIES), folder / "filings.csv.gz")
    return folder


def read_filings(folder: Path) -> corpus.Corpus:
    """It, read."""
    return corpus.read(write_filings(folder))


def unique(filings: corpus.Corpus, split: str, vocabulary: Vocabulary) -> Ids:
    """The different sentences of a split (sentences, words), filled up with 0, by a row loop."""
    encoded = map(vocabulary.encode, filings.splits[split].documents)
    different = sorted({words for document in encoded for section in document for words in section})
    table = np.full((len(different), MOST_WORDS), PADDING, np.int64)
    for row, words in enumerate(different):
        table[row, : len(words)] = words
    # What no sentence is long enough for costs time in every layer.
    return table[:, : max(map(len, different), default=1)]
