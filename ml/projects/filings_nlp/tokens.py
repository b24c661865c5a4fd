"""Converts the text of a filing to the model's input; training, evaluation and the endpoint all use
this file, so that a text means the same to all of them.

A document is a mapping of sections to texts. A text is cut into sentences and these into words;
words are numbers of a vocabulary, which is a JSON file of the model.
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
# Limits of a document: characters and sentences of a section, words of a sentence. A longer
# sentence is cut into pieces, a longer section after its last sentence.
MOST_CHARACTERS, MOST_SENTENCES, MOST_WORDS = 200_000, 256, 48
PADDING, UNKNOWN = 0, 1
RESERVED = ("<padding>", "<unknown>", "<number>")
FILE = "vocabulary.json"
# The fewest documents that have a word of the vocabulary, and its largest size.
SEEN_IN, MOST_KNOWN = 10, 30_000
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\s*\n\s*|(?<=[。！？])")
_WORD = re.compile(r"\d[\d.,]*|[^\W\d_]+(?:'[^\W\d_]+)?")


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence, in lower case; a number is `<number>`. Sentences without
    words are left out, and long ones cut. Any text is valid; an empty one has no sentences.
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
    """Words and their numbers; 0 is no word, 1 any word that is not here."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {word: i for i, word in enumerate(self.words)})

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def learn(cls, documents: Iterable[Document]) -> Vocabulary:
        """Learn the words of SEEN_IN documents or more, the most frequent first."""
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(
                {word for name in SECTIONS for words in sentences(document[name]) for word in words}
            )
        return cls.frequent(counts)

    @classmethod
    def frequent(cls, counts: Mapping[str, int]) -> Vocabulary:
        """Build the vocabulary from the number of documents that have each word."""
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words = [word for word, count in ordered if count >= SEEN_IN and word not in RESERVED]
        return cls((*RESERVED, *words[: MOST_KNOWN - len(RESERVED)]))

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Load the vocabulary in a model's folder."""
        return cls(tuple(json.loads((folder / FILE).read_text(encoding="utf-8"))))

    def save(self, folder: Path) -> None:
        """Write its file into the folder."""
        text = json.dumps(self.words, ensure_ascii=False, indent=0)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    def encode(self, document: Document) -> Encoded:
        """Return the numbers of the words, by section and sentence; a missing section is empty."""
        numbers: Mapping[str, int] = self._numbers  # type: ignore[attr-defined]
        return [
            [
                tuple(numbers.get(word, UNKNOWN) for word in words)
                for words in sentences(document.get(name, ""))
            ]
            for name in SECTIONS
        ]


class Batch(NamedTuple):
    """Documents as the model takes them; each distinct sentence is stored once."""

    sentences: Ids  # (distinct sentences, words), padded with 0; the first sentence is empty
    places: Ids  # (documents, sections, sentences): row in `sentences`, padded with 0


def stack(documents: Sequence[Encoded]) -> Batch:
    """Stack encoded documents as one batch, with at least one place and one word."""
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
