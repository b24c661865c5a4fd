"""A small training with everything that has a state, run by the tests as one process or as ranks.

python -m tests.toolkit.torch.training FOLDER --data DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import distributed
from ml.toolkit.torch.loading import Batches, Shards
from ml.toolkit.torch.updates import Updates


def network() -> nn.Module:
    """Weights, buffers that the forward pass changes, and dropout's random numbers."""
    return nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    import time

    with distributed(seed=5) as world:
        model = world.wrap(network())
        world.seed(5)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100)
        updates = Updates(world, model, optimiser, clip=1.0, schedule=schedule)
        batches = Batches(Shards(options.data), world, batch=32, micro_batches=2, seed=3, block=4)
        state = {
            "model": model,
            "optimiser": optimiser,
            "schedule": schedule,
            "updates": updates,
            "batches": batches,
        }
        with Checkpoints(
            options.folder, world, state, every_steps=options.every, events=None
        ) as checkpoints:
            step = checkpoints.restore()
            while step < options.epochs * len(batches):
                for micro_batches in batches:
                    for batch in micro_batches:
                        with updates.micro_batch(last=batch is micro_batches[-1]):
                            scores = model(batch["features"])
                            loss = nn.functional.cross_entropy(
                                scores, batch["label"], reduction="sum"
                            )
                            updates.backward(loss, len(scores))
                    update = updates.step()
                    step += 1
                    time.sleep(options.pause)
                    if world.first:
                        print(step, update.loss.hex(), flush=True)
                    checkpoints.after(step)
            checkpoints.save(step)
        if world.first:
            bare = getattr(model, "module", model)
            torch.save(bare.state_dict(), options.folder / "final.pt")


if __name__ == "__main__":
    main()
