"""Hierarchical attention over a document: words → sentences → sections → document.

After Yang et al., Hierarchical Attention Networks for Document Classification (NAACL 2016), with
convolutions instead of recurrent units and a separate attention per channel (Shen et al., DiSAN,
AAAI 2018). Padding has no effect: a document has the same output alone and in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ml.projects.filings_nlp.tokens import PADDING, SECTIONS

# Initial sharpness, with which attention approximates a max over each channel.
_SHARPNESS = 4.0


class Answer(NamedTuple):
    """The output for a batch. The weights of a level sum to 1, or are all 0 if it has no text."""

    logits: Tensor  # (documents, classes)
    sections: Tensor  # (documents, sections): weights
    sentences: Tensor  # (documents, sections, sentences): weights


class Attention(nn.Module):  # type: ignore[misc]
    """Attention pooling of vectors (…, length, width), with separate weights per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)
        self.sharpness = nn.Parameter(torch.full((width,), _SHARPNESS))

    def forward(self, vectors: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pooled vector (…, width) and the weights (…, length), averaged over channels.

        `mask` (…, length) is False for padding.
        """
        there = mask.unsqueeze(-1)
        scores = (self.key(vectors) + self.sharpness * vectors).float()
        weights = scores.masked_fill(~there, -1e9).softmax(-2) * there
        return (weights * vectors).sum(-2), weights.mean(-1)


class Neighbours(nn.Module):  # type: ignore[misc]
    """Word encoder: an embedding and residual convolutions, one layer per size in `kernels`."""

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
        """Return vectors (sentences, words, width) of word numbers (sentences, words)."""
        words = self.dropout(self.embedding(sentences))
        present = (sentences != PADDING).unsqueeze(-1)
        for layer in self.context:
            words = words + layer((words * present).transpose(1, 2)).transpose(1, 2).relu()
        return words


class HierarchicalAttention(nn.Module):  # type: ignore[misc]
    """Predicts the event that follows each document of a `tokens.Batch`.

    `encoder` maps word numbers (sentences, words) to vectors of `width`; the default is
    `Neighbours` with the odd sizes `kernels`.

    The buffer `prior` (classes,) is added to the logits outside of training. It corrects the
    probabilities after class-balanced sampling.
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
        """Return the output for the documents of a `Batch` (its two arrays as tensors)."""
        read, _ = self.words(self.encoder(sentences), sentences != PADDING)
        present = places > 0
        placed = self.sentence(read[places] + self.place)
        sections, of_sentences = self.sentences(placed, present)
        document, of_sections = self.sections(self.section(sections), present.any(-1))
        logits = self.classify(self.document(document)).float()
        return Answer(logits if self.training else logits + self.prior, of_sections, of_sentences)
