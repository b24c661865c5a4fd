"""The model as it is served, without PyTorch; the evaluation and the endpoint use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.projects.filings_nlp.tokens import UNKNOWN, Document, Encoded, Vocabulary, stack
from ml.serving.scoring.onnx import Graph

# The graph; an int8 graph has another name, by which `Classifier` recognises it.
GRAPH, INT8, CLASSES = "model.onnx", "model.int8.onnx", "classes.json"
INPUTS = ("sentences", "places")
OUTPUTS = PROBABILITIES, OF_SECTIONS, OF_SENTENCES = (
    "probabilities",
    "section_weights",
    "sentence_weights",
)
# Documents at once.
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
    """The model in a folder whose files were verified."""

    def __init__(self, folder: Path) -> None:
        self.vocabulary = Vocabulary.load(folder)
        self.classes: tuple[str, ...] = tuple(json.loads((folder / CLASSES).read_text("utf-8")))
        is_int8 = (folder / INT8).is_file()
        self._graph = Graph(folder / (INT8 if is_int8 else GRAPH))
        # Dynamic int8 scales a whole batch: alone, as served, a document has other probabilities.
        self._batch = 1 if is_int8 else BATCH

    def encode(self, documents: Sequence[Document]) -> list[Encoded]:
        """Encode documents as `probabilities` takes them."""
        return [self.vocabulary.encode(document) for document in documents]

    def probabilities(self, documents: Sequence[Encoded]) -> NDArray[np.float64]:
        """Return (documents, classes); each row has the sum 1."""
        rows = [
            self._graph.run(stack(documents[start : start + self._batch])._asdict())[PROBABILITIES]
            for start in range(0, len(documents), self._batch)
        ]
        # In double precision: single precision's rows sum to 1 with seven digits.
        table = np.concatenate(rows).astype(np.float64)
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def read(self, document: Document) -> Read:
        """Return the output for one document, and what it is based on."""
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
