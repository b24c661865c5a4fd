"""A small training with everything that has a state: the tests run, kill and compare it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # what the first step of an optimiser imports
from torch import nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import Strategy, distributed
from ml.toolkit.torch.loading import Batches, Shards, write_shards
from ml.toolkit.torch.updates import Updates

FINAL = "final.pt"


@dataclass(frozen=True)
class Settings:
    """What a test changes of the training."""

    epochs: int = 2
    every: int = 3
    pause_s: float = 0.0
    width: int = 64
    strategy: Strategy = "ddp"
    options: Mapping[str, Any] | None = None
    dies_at: int = 0  # the change of a file in the folder before which the process is killed


def write_data(folder: Path, rows: int = 500) -> Path:
    """Rows whose class is the largest of their first three numbers."""
    features = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    parts = np.split(features, range(128, rows, 128))
    write_shards(folder, ({"features": of, "label": of[:, :3].argmax(1)} for of in parts))
    return folder


def network(width: int = 64) -> nn.Module:
    """Weights, buffers that the forward pass changes, and dropout's random numbers."""
    return nn.Sequential(
        nn.Linear(8, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(width, 3),
    )


def train(folder: Path, data: Path, settings: Settings = Settings()) -> None:
    """The loop, as a project has it; prints each step and leaves the weights in FINAL."""
    if settings.dies_at:
        _die_at(folder, settings.dies_at)
    # So long a process waits for one that was killed before they met.
    with distributed(seed=5, timeout_s=20) as world:
        model = world.wrap(network(settings.width), settings.strategy)
        world.seed(5)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100)
        updates = Updates(world, model, optimiser, clip=1.0, schedule=schedule)
        batches = Batches(Shards(data), world, batch=32, micro_batches=2, seed=3, block=4)
        state = {
            "model": model,
            "optimiser": optimiser,
            "schedule": schedule,
            "updates": updates,
            "batches": batches,
        }
        options = {"every_steps": settings.every, "events": None, **(settings.options or {})}
        with Checkpoints(folder, world, state, **options) as checkpoints:
            step = checkpoints.restore()
            while step < settings.epochs * len(batches):
                for micro_batches in batches:
                    for batch in micro_batches:
                        with updates.micro_batch(last=batch is micro_batches[-1]):
                            here = {name: of.to(world.device) for name, of in batch.items()}
                            scores = model(here["features"])
                            loss = nn.functional.cross_entropy(
                                scores, here["label"], reduction="sum"
                            )
                            updates.backward(loss, len(scores))
                    update = updates.step()
                    step += 1
                    time.sleep(settings.pause_s)
                    if world.first:
                        print(step, update.loss.hex(), flush=True)
                    checkpoints.after_step(step)
            checkpoints.save(step)
        weights = world.weights(model)
        if world.first:
            torch.save(weights, folder / FINAL)


def differing(one: Path, other: Path) -> list[str]:
    """The names of the final weights that are not the same to the last bit."""
    weights, others = (torch.load(folder / FINAL) for folder in (one, other))
    assert weights.keys() == others.keys()
    return [name for name in weights if not torch.equal(weights[name], others[name])]


def _die_at(folder: Path, number: int) -> None:
    """Kill this process before the number-th time that it changes a name or file in the folder."""
    left = [number]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        else:
            path = arguments[0] if arguments else ""
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        if changes and str(path).startswith(str(folder)):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
