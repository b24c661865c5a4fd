"""Compare the rows per second of shuffled batches: our loader and PyTorch's DataLoader.

The table has 64 columns. The peers read tensors in memory; ours reads memory-mapped shards from a
warm page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from ml.toolkit.torch.distributed import World
from ml.toolkit.torch.loading import Batches, Shards, write_shards

COLUMNS, BATCH = 64, 4096


class Gathered(TensorDataset):  # type: ignore[misc]
    """A data set that returns a whole batch by one gather (`__getitems__`)."""

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        """Return the rows of a batch."""
        return [tensor[rows] for tensor in self.tensors]


def _rate(rows: int, epoch: Callable[[], Iterator[Any]]) -> float:
    """Return the rows per second of an epoch that reads each batch once."""
    began = time.perf_counter()
    total = 0.0
    for batch in epoch():
        total += float(batch[-1])
    assert total == rows * (rows - 1) / 2, "a row was lost or came twice"
    return rows / (time.perf_counter() - began)


def main(quick: bool) -> float:
    """Print the medians; return ours divided by a plain DataLoader's (goal: at least 10)."""
    rows, rounds = (200_000, 3) if quick else (1_000_000, 5)
    features = np.random.default_rng(0).normal(size=(rows, COLUMNS)).astype(np.float32)
    number = np.arange(rows, dtype=np.float64)
    tensors = torch.from_numpy(features), torch.from_numpy(number)
    world = World(0, 1, torch.device("cpu"))
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_shards(folder, [{"features": features, "number": number}])

        def plain() -> Iterator[Any]:
            for _, numbers in DataLoader(TensorDataset(*tensors), BATCH, shuffle=True):
                yield [numbers.sum()]

        def gathered() -> Iterator[Any]:
            loader = DataLoader(
                Gathered(*tensors), BATCH, shuffle=True, collate_fn=lambda item: item
            )
            for _, numbers in loader:
                yield [numbers.sum()]

        def ours(threads: int, block: int) -> Callable[[], Iterator[Any]]:
            batches = Batches(Shards(folder), world, batch=BATCH, threads=threads, block=block)

            def epoch() -> Iterator[Any]:
                for [batch] in batches:
                    yield [batch["number"].sum()]

            return epoch

        ways = {
            "DataLoader(TensorDataset)": plain,
            "the same with __getitems__": gathered,
            "ours, shuffled by blocks": ours(1, 64),
            "ours, two threads": ours(2, 64),
            "ours, shuffled row by row": ours(1, 1),
        }
        for turn in range(rounds + 1):
            for name, epoch in ways.items():
                if turn > 1 and name == "DataLoader(TensorDataset)":
                    continue  # slow: one round takes longer than all others
                rate = _rate(rows, epoch)
                if turn:
                    rates.setdefault(name, []).append(rate)
    print(f"{rows:,} rows of {COLUMNS} columns in batches of {BATCH}, {rounds} rounds")
    for name, values in rates.items():
        print(f"{name:28} {statistics.median(values) / 1e6:8.2f} million rows/s")
    median = {name: statistics.median(values) for name, values in rates.items()}
    return median["ours, shuffled by blocks"] / median["DataLoader(TensorDataset)"]
