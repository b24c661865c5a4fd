"""Search the convolutions of the encoder by weight sharing, before the training itself.

`train.py --search-epochs N` trains all of them in one model: training documents teach its weights,
validation documents the choices (`ml.toolkit.torch.search`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.tokens import Encoded, stack
from ml.toolkit.torch.distributed import Metrics, World
from ml.toolkit.torch.epochs import train_epochs
from ml.toolkit.torch.loading import Batch, Batches
from ml.toolkit.torch.search import Mixture, choice_logits, shared_weights, step_choices
from ml.toolkit.torch.updates import Updates

KERNELS = (1, 3, 5)
_RATE = 0.05  # of the choices


class Nothing(nn.Module):  # type: ignore[misc]
    """The choice of no second layer."""

    def forward(self, words: Tensor) -> Tensor:
        """Return zeros, which the encoder adds to its words."""
        return torch.zeros_like(words)


def shared(words: int, classes: int, width: int, dropout: float) -> HierarchicalAttention:
    """Build a model with every value of `layers`, `kernel_1` and `kernel_2` at once."""
    model = HierarchicalAttention(words, classes, width, dropout)
    first, second = (
        {str(size): nn.Conv1d(width, width, size, padding=size // 2) for size in KERNELS}
        for _ in range(2)
    )
    model.encoder.context = nn.ModuleList([Mixture(first), Mixture({"none": Nothing(), **second})])
    return model


def settings_of(model: HierarchicalAttention) -> dict[str, int]:
    """Return the settings of `train.py` that make a model of the best choices."""
    first, second = (layer.chosen for layer in model.encoder.context)
    settings = {"layers": 1 if second == "none" else 2, "kernel_1": int(first)}
    return settings if second == "none" else {**settings, "kernel_2": int(second)}


def searched(
    world: World,
    model: HierarchicalAttention,
    batches: Batches,
    watched: Sequence[Encoded],
    labels: Tensor,
    settings: Mapping[str, Any],
    folder: Path,
    validate: Callable[[Updates, Metrics], None],
) -> tuple[dict[str, int], dict[str, float]]:
    """Return the settings that a `shared` model chooses, and its metrics, in every process.

    labels: the classes of the documents that are `watched`, (documents,).
    folder: the checkpoints, from which a search goes on; one that has ended is not repeated.
    """
    wrapped = world.wrap(model)
    optimiser = torch.optim.AdamW(shared_weights(model), settings["learning_rate"])
    choices = torch.optim.Adam(choice_logits(model), _RATE, betas=(0.5, 0.999))
    updates = Updates(world, wrapped, optimiser, clip=settings["clip"])

    def loss(batch: Batch) -> tuple[Tensor, float]:
        draw = np.random.default_rng([batches.epoch, batches.step, world.rank])
        rows = draw.integers(len(watched), size=len(batch["label"]))
        documents = map(torch.from_numpy, stack([watched[row] for row in rows]))
        logits = model(*(document.to(world.device) for document in documents)).logits
        step_choices(choices, cross_entropy(logits, labels[rows].to(world.device)))
        on_device = {name: value.to(world.device) for name, value in batch.items()}
        logits = wrapped(on_device["sentences"], on_device["places"]).logits
        return cross_entropy(logits, on_device["label"], reduction="sum"), len(rows)

    progress = train_epochs(
        world,
        wrapped,
        updates,
        batches,
        {"model": model, "optimiser": optimiser, "choices": choices},
        folder,
        loss=loss,
        validate=lambda metrics: validate(updates, metrics),
        metric="validation_log_loss",
        epochs=settings["search_epochs"],
    )
    assert progress.best is not None
    metrics = {"search_validation_log_loss": progress.best}
    for number, layer in enumerate(model.encoder.context, 1):
        metrics[f"search_kernel_{number}_weight"] = float(layer.logits.detach().softmax(0).max())
    return settings_of(model), metrics
