"""Search the encoder's convolutions by differentiable architecture search before training.

`train.py --search-epochs N` trains all candidates in one model with shared weights. The weights are
trained on training documents, the choices on validation documents (`ml.toolkit.torch.search`).
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
_RATE = 0.05  # learning rate of the choice logits


class Nothing(nn.Module):  # type: ignore[misc]
    """The candidate without a second layer."""

    def forward(self, words: Tensor) -> Tensor:
        """Return zeros, which the residual connection adds."""
        return torch.zeros_like(words)


def shared(words: int, classes: int, width: int, dropout: float) -> HierarchicalAttention:
    """Return a model that contains all candidates of `layers`, `kernel_1` and `kernel_2`."""
    model = HierarchicalAttention(words, classes, width, dropout)
    first, second = (
        {str(size): nn.Conv1d(width, width, size, padding=size // 2) for size in KERNELS}
        for _ in range(2)
    )
    model.encoder.context = nn.ModuleList([Mixture(first), Mixture({"none": Nothing(), **second})])
    return model


def settings_of(model: HierarchicalAttention) -> dict[str, int]:
    """Return the settings of `train.py` for the best candidates of a `shared` model."""
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
    """Train a `shared` model; return its chosen settings and its metrics in every process.

    watched, labels: the validation documents and their class numbers (documents,).
    folder: the checkpoints, from which an interrupted search resumes.
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
