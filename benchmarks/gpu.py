"""The micro-batch that fits into 16 GB of a GPU, by precision and activation checkpointing.

A BERT-base without its embeddings (12 layers of 768, 512 tokens a row, AdamW) takes whole steps of
1, 2, 4 and more rows until half of 16 GB are taken, which the T4 of the dev stack has: from the
memory of the last two follows how many fit. Steps of that size are taken, and their memory and time
printed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ml.toolkit.torch.distributed import World, distributed
from ml.toolkit.torch.health import check_machines
from ml.toolkit.torch.updates import Precision, Updates

WIDTH, HEADS, LAYERS, TOKENS, LIMIT = 768, 12, 12, 512, 16e9


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    precision: Precision
    recomputed: bool  # activation checkpointing: a layer's activations are computed again

    def __str__(self) -> str:
        return self.precision + (" and activation checkpointing" if self.recomputed else "")


PLAIN = Way("float32", recomputed=False)
BOTH = Way("bfloat16", recomputed=True)
WAYS = (PLAIN, Way("bfloat16", False), Way("float16", False), Way("float32", True), BOTH)


class Encoder(nn.Module):  # type: ignore[misc]
    """The layers of BERT-base."""

    def __init__(self, recomputed: bool) -> None:
        super().__init__()
        self.recomputed = recomputed
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, tokens, width) to the same."""
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=False) if self.recomputed else layer(rows)
        return rows


class Training:
    """Steps of one micro-batch each."""

    def __init__(self, world: World, way: Way) -> None:
        self._world, self._model = world, world.wrap(Encoder(way.recomputed))
        optimiser = torch.optim.AdamW(self._model.parameters(), lr=1e-5)
        self._updates = Updates(world, self._model, optimiser, precision=way.precision, clip=1.0)

    def step(self, rows: int) -> None:
        """Forward, backward and the optimiser's step; it ends when the GPU has ended it."""
        batch = torch.randn(rows, TOKENS, WIDTH, device=self._world.device)
        with self._updates.micro_batch(last=True):
            loss = self._model(batch).square().mean(dim=(1, 2)).sum()
            self._updates.backward(loss, rows)
        self._updates.step()
        torch.cuda.synchronize()

    def bytes(self, rows: int) -> int:
        """The most memory that tensors take in steps of so many rows."""
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            self.step(rows)
        return int(torch.cuda.max_memory_allocated())

    def largest(self) -> int:
        """The most rows that fit: beyond half of the memory each takes as much as any other."""
        rows, memory = 2, [self.bytes(1), self.bytes(2)]
        while memory[-1] < LIMIT / 2:
            rows *= 2
            memory.append(self.bytes(rows))
        row = (memory[-1] - memory[-2]) / (rows / 2)
        return rows + int((LIMIT - memory[-1]) / row)

    def rows_a_second(self, rows: int, steps: int) -> float:
        """Of steps of so many rows."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step(rows)
        return rows * steps / (time.perf_counter() - began)


def main(quick: bool) -> float:
    """Print all; the ratio is bfloat16 with activation checkpointing over float32 (goal: 2.4)."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "error[no-gpu]: PyTorch finds no GPU here\n"
            "  hint: run it on a node that has one, with a torch built for CUDA"
        )
    largest: dict[Way, int] = {}
    with distributed(seed=1) as world, TemporaryDirectory() as folder:
        for reading in check_machines(world, Path(folder)):
            print(reading.text())
        print(f"{torch.cuda.get_device_name(world.device)}, torch {torch.__version__}")
        print(f"{'':40} {'rows':>6} {'GB':>6} {'rows a second':>14}")
        for way in WAYS:
            training = Training(world, way)
            largest[way] = rows = training.largest()
            memory = training.bytes(rows) / 1e9
            speed = training.rows_a_second(rows, 3 if quick else 10)
            print(f"{way!s:40} {rows:6} {memory:6.1f} {speed:14.1f}", flush=True)
            del training
    return largest[BOTH] / largest[PLAIN]
