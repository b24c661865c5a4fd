"""A small transformer encoder of sentences, pretrained without labels (pretrain.py).

After Vaswani et al., Attention Is All You Need (2017), with pre-layer normalisation (Xiong et al.,
2020) and learnt positions. Padding has no effect on the vectors of a sentence.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ml.projects.filings_nlp.corpus import WRONG_CALL
from ml.projects.filings_nlp.tokens import MOST_WORDS, PADDING, Vocabulary
from ml.serving.scoring.manifest import ManifestError
from ml.toolkit.training.model_folder import seal, unseal

WEIGHTS = "encoder.safetensors"
# The layers with LoRA adapters, as in the LoRA paper's experiments.
ADAPTED = ("query", "value")


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block: self-attention over the words of a sentence, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, math.sqrt(heads / width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.before_attention, self.before_words = nn.LayerNorm(width), nn.LayerNorm(width)
        self.words = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return new vectors (sentences, words, width); `mask` is False for padding."""
        read = self.before_attention(vectors)
        sentences, words, width = read.shape

        def by_head(projected: Tensor) -> Tensor:
            return projected.view(sentences, words, self.heads, width // self.heads).transpose(1, 2)

        query, key, value = (by_head(layer(read)) for layer in (self.query, self.key, self.value))
        scores = (query @ key.transpose(-1, -2)).float() * self.scale
        weights = scores.masked_fill(~mask[:, None, None], -1e9).softmax(-1).to(value.dtype)
        attended = (weights @ value).transpose(1, 2).reshape(sentences, words, width)
        vectors = vectors + self.out(attended)
        return vectors + self.words(self.before_words(vectors))


class Transformer(nn.Module):  # type: ignore[misc]
    """Encoder of sentences with at most MOST_WORDS words; returns a vector of `width` per word."""

    def __init__(self, vocabulary: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.position = nn.Parameter(torch.randn(MOST_WORDS, width) * 0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the vectors (sentences, words, width) of word numbers (sentences, words)."""
        vectors, mask = self.embedding(sentences), sentences != PADDING
        vectors = vectors + self.position[: sentences.shape[1]]
        for block in self.blocks:
            vectors = block(vectors, mask)
        return self.last(vectors)


class MaskedWords(nn.Module):  # type: ignore[misc]
    """The encoder with a masked language modelling head (Devlin et al., 2018)."""

    def __init__(self, encoder: Transformer) -> None:
        super().__init__()
        self.encoder = encoder
        self.bias = nn.Parameter(torch.zeros(encoder.embedding.num_embeddings))

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the logits (sentences, words, vocabulary)."""
        return self.encoder(sentences) @ self.encoder.embedding.weight.T + self.bias


@dataclass(frozen=True)
class Pretrained:
    """A pretrained encoder in a folder with a verified manifest."""

    folder: Path
    shape: Mapping[str, int]  # arguments of Transformer: width, layers, heads
    digest: str

    @classmethod
    def load(cls, folder: Path) -> Pretrained:
        """Verify and open the folder; exit with an error if a file was changed or is missing."""
        try:
            facts, digest = unseal(folder)
        except (ManifestError, OSError) as error:
            print(f"error[model-changed]: {error}", file=sys.stderr)
            raise SystemExit(WRONG_CALL) from None
        if not (folder / WEIGHTS).is_file():
            print(
                f"error[no-encoder]: {folder} has no {WEIGHTS}\n"
                "  expected: the folder that pretrain.py wrote\n"
                "  hint: give --base the output `base` of the step `pretrain` of jobs/lora.yml",
                file=sys.stderr,
            )
            raise SystemExit(WRONG_CALL)
        return cls(folder, facts["shape"], digest)

    @property
    def vocabulary(self) -> Vocabulary:
        """The encoder's vocabulary."""
        return Vocabulary.load(self.folder)

    def encoder(self) -> Transformer:
        """Return a new encoder with the pretrained weights."""
        encoder = Transformer(len(self.vocabulary), **self.shape)
        encoder.load_state_dict({**load_file(self.folder / WEIGHTS)})
        return encoder

    def copy(self, folder: Path) -> None:
        """Copy the files to `folder`, a subfolder of the fine-tuned model."""
        shutil.copytree(self.folder, folder)


def write(
    folder: Path, encoder: Transformer, vocabulary: Vocabulary, facts: Mapping[str, Any]
) -> str:
    """Write the folder that `Pretrained.load` reads; return its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = encoder.cpu().state_dict()
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / WEIGHTS)
    vocabulary.save(folder)
    return seal(folder, facts)
