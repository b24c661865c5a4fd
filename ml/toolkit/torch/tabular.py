"""Train a network on the rows of a table with `train_epochs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from ml.toolkit.torch.distributed import Metrics, distributed
from ml.toolkit.torch.epochs import train_epochs
from ml.toolkit.torch.loading import Batch, Batches, Shards, write_shards
from ml.toolkit.torch.updates import Updates
from ml.toolkit.training.segments import folder_of

Table = tuple[Tensor, Tensor]  # rows and labels


def fit_network(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    train: Table,
    validation: Table,
    settings: Mapping[str, Any],
    seed: int,
    *,
    epochs: int = 100,
    batch: int = 256,
) -> nn.Module:
    """Train a network; return the one of the epoch with the lowest validation loss.

    loss: maps outputs and labels to the mean loss.
    settings: `learning_rate` is for AdamW; all settings identify the training.
    Within `checkpointed` of `ml.toolkit.training.segments`, a training with the same rows, settings
    and seed resumes from its last checkpoint.
    """
    content = [memoryview(tensor.contiguous().numpy()).cast("B") for tensor in train]
    with distributed(seed, device="cpu") as world, TemporaryDirectory() as passing:
        rows, best = Path(passing, "rows"), deepcopy(model)
        write_shards(rows, [{"label": train[1].numpy(), "table": train[0].numpy()}])
        size = min(batch, len(train[0]))
        batches = Batches(Shards(rows), world, batch=size, seed=seed, block=1)
        optimiser = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"])

        def summed(part: Batch) -> tuple[Tensor, float]:
            mean = loss(model(part["table"]), part["label"])
            return mean * len(part["label"]), len(part["label"])

        def validate(metrics: Metrics) -> None:
            model.eval()
            with torch.inference_mode():
                metrics.add("loss", float(loss(model(validation[0]), validation[1])))

        train_epochs(
            world,
            model,
            Updates(world, model, optimiser),
            batches,
            {"model": model, "best": best, "optimiser": optimiser},
            folder_of([*content, repr((settings, seed)).encode()]) or Path(passing, "checkpoints"),
            loss=summed,
            validate=validate,
            metric="loss",
            epochs=epochs,
            on_best=lambda: best.load_state_dict(model.state_dict()),
            every_epoch=False,
        )
    return best
