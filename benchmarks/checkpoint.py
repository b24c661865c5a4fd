"""Measure how long a checkpoint of 403 MB blocks a training, and how much it slows an epoch.

The same training (33.6 million weights, AdamW) runs with torch.save, with DCP's async_save and its
default stager, with our checkpoints, and without any. Blocked time is the time in calls of the
checkpoint; the epoch's time also includes the effect of background threads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import World, distributed
from ml.toolkit.torch.updates import Updates

WIDTH, LAYERS, ROWS = 2048, 8, 128
Save = Callable[[int], None]


class Training:
    """The training of a wide network on random rows."""

    def __init__(self, world: World) -> None:
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.model = world.wrap(nn.Sequential(*layers))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.updates = Updates(world, self.model, self.optimiser)
        self.rows = torch.randn(ROWS, WIDTH, device=world.device)
        self.state = {"model": self.model, "optimiser": self.optimiser}
        self.step()

    def step(self) -> None:
        """Run a forward and a backward pass and an optimiser step."""
        with self.updates.micro_batch(last=True):
            self.updates.backward(self.model(self.rows).square().sum(), ROWS)
        self.updates.step()

    def megabytes(self) -> float:
        """Return the size of a checkpoint in MB."""
        states = [tensor for state in self.optimiser.state.values() for tensor in state.values()]
        return float(sum(tensor.nbytes for tensor in [*self.model.parameters(), *states])) / 1e6

    def epoch(self, steps: int, save: Save | None) -> tuple[float, float]:
        """Return the seconds of an epoch with a checkpoint in its middle, and those blocked."""
        blocked = 0.0
        began = time.perf_counter()
        for number in range(steps):
            if save is not None and number == steps // 2:
                before = time.perf_counter()
                save(number)
                blocked = time.perf_counter() - before
            self.step()
        return time.perf_counter() - began, blocked


def by_torch(training: Training, folder: Path) -> Save:
    """Return a function that saves with torch.save to a temporary file and renames it."""

    def save(number: int) -> None:
        state = {name: part.state_dict() for name, part in training.state.items()}
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").replace(folder / "checkpoint.pt")

    return save


class ByDcp:
    """Checkpoints by DCP's async_save, with one default stager for all checkpoints."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training, self._folder = training, folder
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._upload: Future[Any] | None = None

    def save(self, number: int) -> None:
        """Wait for the last checkpoint, then start the next, as PyTorch's documentation does."""
        self.finish()
        state = {name: part.state_dict() for name, part in self._training.state.items()}
        self._upload = dcp.async_save(state, checkpoint_id=self._folder, async_stager=self._stager)

    def finish(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._upload is not None:
            self._upload.result()
            self._upload = None


def main(quick: bool) -> float:
    """Print the medians; return torch.save's blocked time divided by ours (goal: at least 60)."""
    warnings.simplefilter("ignore")
    steps, rounds = (12, 2) if quick else (30, 3)
    rows: dict[str, list[tuple[float, float]]] = {}
    with distributed(seed=1) as world, tempfile.TemporaryDirectory() as temporary:
        training = Training(world)
        folder = Path(temporary)
        by_dcp = ByDcp(training, folder / "dcp")
        state = training.state
        with Checkpoints(folder / "ours", world, state, keep_last=1, events=None) as ours:

            def save(number: int) -> None:
                ours.after_step(number + 1, metric=0.0)

            ways: dict[str, Save | None] = {
                "none": None,
                "torch.save": by_torch(training, folder),
                "DCP async_save": by_dcp.save,
                "ours": save,
            }
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    before = ours.blocked_s
                    # The first epoch is a warm-up.
                    seconds, blocked = training.epoch(steps if turn else 2, way)
                    if name == "ours":
                        blocked = ours.blocked_s - before
                    if turn:
                        rows.setdefault(name, []).append((seconds, blocked))
                    ours.finish()
                    by_dcp.finish()
        megabytes = training.megabytes()
        where = f"{torch.get_num_threads()} threads"
        if world.device.type == "cuda":
            where = torch.cuda.get_device_name(world.device)
    print(f"{megabytes:.0f} MB, an epoch of {steps} steps, {rounds} rounds, {where}")
    usual = float(statistics.median(seconds for seconds, _ in rows["none"]))
    print(f"{'':16} {'blocked ms':>10} {'epoch s':>9} {'cost of the epoch':>18}")
    medians: dict[str, float] = {}
    for name, pairs in rows.items():
        seconds, blocked = (statistics.median(column) for column in zip(*pairs, strict=True))
        medians[name] = blocked
        print(f"{name:16} {blocked * 1e3:10.1f} {seconds:9.2f} {seconds / usual - 1:18.1%}")
    return medians["torch.save"] / medians["ours"]
