"""Hierarchical attention over a document: words → sentences → sections → document.

After Yang et al., Hierarchical Attention Networks for Document Classification (NAACL 2016), with a
convolution over words in place of recurrent units, and attention that weighs each channel by itself
(Shen et al., DiSAN, AAAI 2018). Nothing depends on how far a batch is filled up, so a document
alone has the same answer as in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ml.projects.filings_nlp.tokens import PADDING, SECTIONS

# Attention begins near the largest value of each channel.
_SHARPNESS = 4.0


class Answer(NamedTuple):
    """The output for a batch; the weights of a level sum to 1, or are 0 without text."""

    logits: Tensor  # (documents, classes)
    sections: Tensor  # (documents, sections): weights
    sentences: Tensor  # (documents, sections, sentences): weights


class Attention(nn.Module):  # type: ignore[misc]
    """A weighted mean of vectors (…, length, width), each channel with weights of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)
        self.sharpness = nn.Parameter(torch.full((width,), _SHARPNESS))

    def forward(self, vectors: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (…, width), and the weights (…, length) averaged over channels; `mask` is
        True where there is a vector.
        """
        there = mask.unsqueeze(-1)
        scores = (self.key(vectors) + self.sharpness * vectors).float()
        weights = scores.masked_fill(~there, -1e9).softmax(-2) * there
        return (weights * vectors).sum(-2), weights.mean(-1)


class Neighbours(nn.Module):  # type: ignore[misc]
    """A vector for each word (…, words, width), read with its neighbours by each of `kernels`."""

    def __init__(
        self, words: int, width: int, dropout: float, kernels: Sequence[int] = (3,)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.context = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=size // 2) for size in kernels
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the vectors of the words of sentences (sentences, words)."""
        words = self.dropout(self.embedding(sentences))
        present = (sentences != PADDING).unsqueeze(-1)
        for layer in self.context:
            words = words + layer((words * present).transpose(1, 2)).transpose(1, 2).relu()
        return words


class HierarchicalAttention(nn.Module):  # type: ignore[misc]
    """Predicts the event that follows each document of a `tokens.Batch`.

    `encoder` makes vectors of `width` of the words of each sentence; without one, `Neighbours`
    with `kernels`, odd numbers of words.
    `prior` is what the shares of the classes add to the logits outside of training: where training
    drew rare classes more often, it takes that back.
    """

    prior: Tensor

    def __init__(
        self,
        words: int,
        classes: int,
        width: int = 32,
        dropout: float = 0.05,
        encoder: nn.Module | None = None,
        kernels: Sequence[int] = (3,),
    ) -> None:
        super().__init__()
        self.encoder = encoder or Neighbours(words, width, dropout, kernels)
        self.words, self.sentences, self.sections = (Attention(width) for _ in range(3))
        # The meaning of a sentence depends on its section.
        self.place = nn.Parameter(torch.randn(len(SECTIONS), 1, width) * 0.1)
        self.sentence, self.section, self.document = (
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout)
            )
            for _ in range(3)
        )
        self.classify = nn.Linear(width, classes)
        self.register_buffer("prior", torch.zeros(classes))

    def forward(self, sentences: Tensor, places: Tensor) -> Answer:
        """Return the answer to each document of a batch."""
        read, _ = self.words(self.encoder(sentences), sentences != PADDING)
        present = places > 0
        placed = self.sentence(read[places] + self.place)
        sections, of_sentences = self.sentences(placed, present)
        document, of_sections = self.sections(self.section(sections), present.any(-1))
        logits = self.classify(self.document(document)).float()
        return Answer(logits if self.training else logits + self.prior, of_sections, of_sentences)
