"""Find the largest micro-batch for 16 GB, by precision and activation checkpointing.

BERT-base without embeddings (12 layers of 768, 512 tokens per row, AdamW) runs full steps of 1, 2,
4 … rows until they need half of 16 GB, the memory of the dev stack's T4. The last two sizes are
extrapolated to the largest micro-batch, whose memory and time are then measured and printed.
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
    """A combination of precision and activation checkpointing."""

    precision: Precision
    recomputed: bool  # activation checkpointing

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
        """(rows, tokens, width) → (rows, tokens, width)."""
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=False) if self.recomputed else layer(rows)
        return rows


class Training:
    """A training whose steps have one micro-batch each."""

    def __init__(self, world: World, way: Way) -> None:
        self._world, self._model = world, world.wrap(Encoder(way.recomputed))
        optimiser = torch.optim.AdamW(self._model.parameters(), lr=1e-5)
        self._updates = Updates(world, self._model, optimiser, precision=way.precision, clip=1.0)

    def step(self, rows: int) -> None:
        """Run a forward and a backward pass and an optimiser step; wait for the GPU."""
        batch = torch.randn(rows, TOKENS, WIDTH, device=self._world.device)
        with self._updates.micro_batch(last=True):
            loss = self._model(batch).square().mean(dim=(1, 2)).sum()
            self._updates.backward(loss, rows)
        self._updates.step()
        torch.cuda.synchronize()

    def bytes(self, rows: int) -> int:
        """Return the peak memory of tensors, in bytes, in steps of `rows` rows."""
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            self.step(rows)
        return int(torch.cuda.max_memory_allocated())

    def largest(self) -> int:
        """Return the maximum rows of a micro-batch, extrapolated linearly from half the memory."""
        rows, memory = 2, [self.bytes(1), self.bytes(2)]
        while memory[-1] < LIMIT / 2:
            rows *= 2
            memory.append(self.bytes(rows))
        row = (memory[-1] - memory[-2]) / (rows / 2)
        return rows + int((LIMIT - memory[-1]) / row)

    def rows_a_second(self, rows: int, steps: int) -> float:
        """Return the rows per second in steps of `rows` rows."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step(rows)
        return rows * steps / (time.perf_counter() - began)


def main(quick: bool) -> float:
    """Print all results; return bfloat16 with checkpointing over float32 (goal: 2.4)."""
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
