"""The served model, without PyTorch; used by the evaluation and the endpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.projects.filings_nlp.tokens import UNKNOWN, Document, Encoded, Vocabulary, stack
from ml.serving.scoring.onnx import Graph

# File names. `Classifier` recognises an int8 graph by its name.
GRAPH, INT8, CLASSES = "model.onnx", "model.int8.onnx", "classes.json"
INPUTS = ("sentences", "places")
OUTPUTS = PROBABILITIES, OF_SECTIONS, OF_SENTENCES = (
    "probabilities",
    "section_weights",
    "sentence_weights",
)
# Documents per batch.
BATCH = 64


@dataclass(frozen=True)
class Read:
    """The output for one document."""

    probabilities: NDArray[np.float64]  # by class
    sections: NDArray[np.float64]  # weight of each section
    sentences: NDArray[np.float64]  # (sections, sentences): weights
    count: int  # number of sentences
    unknown: float  # share of unknown words


class Classifier:
    """The ONNX model in a folder; the caller has verified the folder's manifest."""

    def __init__(self, folder: Path) -> None:
        self.vocabulary = Vocabulary.load(folder)
        self.classes: tuple[str, ...] = tuple(json.loads((folder / CLASSES).read_text("utf-8")))
        is_int8 = (folder / INT8).is_file()
        self._graph = Graph(folder / (INT8 if is_int8 else GRAPH))
        # Dynamic int8 quantization depends on the whole batch, and serving has one document each.
        self._batch = 1 if is_int8 else BATCH

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Return the word numbers of documents, the input of `probabilities`."""
        return [self.vocabulary.encode(document) for document in documents]

    def probabilities(self, documents: Sequence[Encoded]) -> NDArray[np.float64]:
        """Return the probabilities (documents, classes); each row sums to 1."""
        rows = [
            self._graph.run(stack(documents[start : start + self._batch])._asdict())[PROBABILITIES]
            for start in range(0, len(documents), self._batch)
        ]
        # Normalise in double precision, because float32 rows sum to 1 only within 1e-7.
        table = np.concatenate(rows).astype(np.float64)
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def read(self, document: Document) -> Read:
        """Return the output for one document, with its number of sentences and unknown words."""
        encoded = self.vocabulary.encode(document)
        answer = self._graph.run(stack([encoded])._asdict())
        words = [word for section in encoded for sentence in section for word in sentence]
        probabilities = answer[PROBABILITIES][0].astype(np.float64)
        return Read(
            probabilities / probabilities.sum(),
            answer[OF_SECTIONS][0].astype(np.float64),
            answer[OF_SENTENCES][0].astype(np.float64),
            sum(map(len, encoded)),
            words.count(UNKNOWN) / max(len(words), 1),
        )
