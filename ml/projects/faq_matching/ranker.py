"""Answers a question with the FAQ entries that fit best."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.projects.faq_matching.model import FaqModel
from ml.projects.faq_matching.text import clean
from ml.projects.faq_matching.vectors import Array


@dataclass(frozen=True)
class Answer:
    """An entry as printed, and its share of the belief in all entries (0…1)."""

    entry_id: str
    question: str
    answer: str
    score: float


def beliefs(scores: Array) -> NDArray[np.float64]:
    """(texts, entries): each text's scores as shares that add up to 1."""
    shares = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class Ranker:
    """A trained model, ready to answer."""

    def __init__(self, model: FaqModel) -> None:
        self._model = model

    @classmethod
    def load(cls, folder: Path) -> Ranker:
        """The ranker in a model folder that was verified against its manifest before."""
        return cls(FaqModel.load(folder))

    def rank(self, question: str, top: int = 3) -> list[Answer]:
        """The `top` best entries, best first; ValueError when there is no text in the question."""
        text = clean(question)
        if not text:
            raise ValueError("the question is empty")
        scores = self._model.scores([text])
        shares = beliefs(scores)[0]
        best = np.argsort(-scores[0], kind="stable")[:top]
        entries = self._model.entries
        return [
            Answer(entries[at].id, entries[at].question, entries[at].answer, float(shares[at]))
            for at in best
        ]
