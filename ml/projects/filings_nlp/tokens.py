"""Convert the text of a filing to the model's input, in training, evaluation and serving.

A document maps sections to texts. A text is split into sentences, and a sentence into words. The
model's vocabulary, a JSON file, maps words to numbers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Document = Mapping[str, str]
Ids = NDArray[np.int64]
# Word numbers by section and sentence.
Encoded = Sequence[Sequence[tuple[int, ...]]]

SECTIONS = ("business", "risk_factors", "legal_proceedings", "mdna", "notes")
# Limits: characters and sentences per section, words per sentence. A longer sentence is split into
# pieces; a longer section is truncated.
MOST_CHARACTERS, MOST_SENTENCES, MOST_WORDS = 200_000, 256, 48
PADDING, UNKNOWN = 0, 1
RESERVED = ("<padding>", "<unknown>", "<number>")
FILE = "vocabulary.json"
# Minimum document frequency of a word, and maximum size of the vocabulary.
SEEN_IN, MOST_KNOWN = 10, 30_000
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\s*\n\s*|(?<=[。！？])")
_WORD = re.compile(r"\d[\d.,]*|[^\W\d_]+(?:'[^\W\d_]+)?")


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence in lower case, with `<number>` for numbers.

    Sentences without words are left out; long sentences are split. An empty text gives [].
    """
    pieces = []
    for sentence in _SENTENCE.split(text[:MOST_CHARACTERS]):
        words = [
            "<number>" if word[0].isdigit() else word.lower() for word in _WORD.findall(sentence)
        ]
        pieces += [words[start : start + MOST_WORDS] for start in range(0, len(words), MOST_WORDS)]
    return pieces[:MOST_SENTENCES]


@dataclass(frozen=True)
class Vocabulary:
    """The words by number; 0 is padding and 1 an unknown word."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {word: i for i, word in enumerate(self.words)})

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def learn(cls, documents: Iterable[Document]) -> Vocabulary:
        """Return the vocabulary of words in at least SEEN_IN documents, most frequent first."""
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(
                {word for name in SECTIONS for words in sentences(document[name]) for word in words}
            )
        return cls.frequent(counts)

    @classmethod
    def frequent(cls, counts: Mapping[str, int]) -> Vocabulary:
        """Return the vocabulary, given the number of documents by word."""
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words = [word for word, count in ordered if count >= SEEN_IN and word not in RESERVED]
        return cls((*RESERVED, *words[: MOST_KNOWN - len(RESERVED)]))

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Load the vocabulary in a model's folder."""
        return cls(tuple(json.loads((folder / FILE).read_text(encoding="utf-8"))))

    def save(self, folder: Path) -> None:
        """Write the vocabulary to `folder`/vocabulary.json."""
        text = json.dumps(self.words, ensure_ascii=False, indent=0)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def encode(self, document: Document) -> Encoded:
        """Return word numbers by section and sentence; a missing section counts as empty."""
        numbers: Mapping[str, int] = self._numbers  # type: ignore[attr-defined]
        return [
            [
                tuple(numbers.get(word, UNKNOWN) for word in words)
                for words in sentences(document.get(name, ""))
            ]
            for name in SECTIONS
        ]


class Batch(NamedTuple):
    """The model's input for several documents; each distinct sentence is stored once."""

    sentences: Ids  # (distinct sentences, words), padded with 0; the first sentence is empty
    places: Ids  # (documents, sections, sentences): row in `sentences`, padded with 0


def stack(documents: Sequence[Encoded]) -> Batch:
    """Return encoded documents as one padded batch; no dimension except documents is 0."""
    rows: dict[tuple[int, ...], int] = {(): 0}
    longest = max((len(section) for sections in documents for section in sections), default=0)
    places = np.zeros((len(documents), len(SECTIONS), max(longest, 1)), np.int64)
    for document, sections in enumerate(documents):
        for section, content in enumerate(sections):
            for index, words in enumerate(content):
                places[document, section, index] = rows.setdefault(words, len(rows))
    sentences = np.full((len(rows), max(1, *map(len, rows))), PADDING, np.int64)
    for words, row in rows.items():
        sentences[row, : len(words)] = words
    return Batch(sentences, places)
