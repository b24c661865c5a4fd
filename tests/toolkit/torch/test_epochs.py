"""The loop by epochs: validated, stopped, resumed, and preempted at its last step of an epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ml.toolkit.torch.distributed import Metrics, distributed
from ml.toolkit.torch.epochs import TRAIN_LOSS, Progress, train_epochs
from ml.toolkit.torch.loading import Batch, Batches, Shards, write_shards
from ml.toolkit.torch.preemption import Preempted
from ml.toolkit.torch.updates import Updates

ROWS, BATCH = 40, 10
Logged = list[tuple[int, dict[str, float]]]


def fit(
    folder: Path,
    values: Callable[[int], float],
    logged: Logged,
    *,
    epochs: int = 3,
    patience: int | None = None,
    preempt_at: int = 0,
) -> tuple[Progress, list[int]]:
    """A line through points; the metric of an epoch is what `values` says. The best epochs so
    far, too. With `preempt_at` SIGTERM comes in the backward pass of that step.
    """
    x = np.linspace(0, 1, ROWS, dtype=np.float32)
    write_shards(folder / "data", [{"x": x, "y": 2 * x}])
    best: list[int] = []
    with distributed(seed=0) as world:
        model = nn.Linear(1, 1)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        updates = Updates(world, model, optimiser)
        batches = Batches(Shards(folder / "data"), world, batch=BATCH, block=1)

        def loss(batch: Batch) -> tuple[torch.Tensor, float]:
            if preempt_at == batches.epoch * len(batches) + batches.step:
                os.kill(os.getpid(), signal.SIGTERM)
            error = model(batch["x"][:, None])[:, 0] - batch["y"]
            return (error**2).sum(), len(error)

        def validate(metrics: Metrics) -> None:
            metrics.add("score", values(batches.epoch))

        def report(metrics: Mapping[str, float], step: int) -> None:
            logged.append((step, dict(metrics)))

        progress = train_epochs(
            world,
            model,
            updates,
            batches,
            {"model": model, "optimiser": optimiser},
            folder / "checkpoints",
            loss=loss,
            validate=validate,
            metric="score",
            epochs=epochs,
            patience=patience,
            on_best=lambda: best.append(batches.epoch),
            report=report,
        )

    return progress, best


def test_it_stops_when_nothing_gets_better(tmp_path: Path) -> None:
    """After `patience` epochs; the best one is the one that was told, NaN is never."""
    scores = [3.0, 1.0, float("nan"), 1.0, 0.0]
    logged: Logged = []
    progress, best = fit(tmp_path, scores.__getitem__, logged, epochs=5, patience=2)
    assert (progress.epochs, progress.best, best) == (4, 1.0, [0, 1])
    assert [step for step, _ in logged] == [4, 8, 12, 16] and progress.steps == 16
    assert {TRAIN_LOSS, "score", "samples_per_second", "waiting_share"} <= logged[0][1].keys()


@pytest.mark.parametrize("step", [4, 6, 8])
def test_a_preempted_training_logs_each_epoch_once(tmp_path: Path, step: int) -> None:
    """SIGTERM at the last step of an epoch or within one: all epochs are logged with the values of
    a training that nobody ended.
    """
    whole: Logged = []
    expected, _ = fit(tmp_path / "whole", lambda epoch: -epoch, whole)
    logged: Logged = []
    with pytest.raises(Preempted):
        fit(tmp_path, lambda epoch: -epoch, logged, preempt_at=step)
    progress, _ = fit(tmp_path, lambda epoch: -epoch, logged)
    assert (progress.epochs, progress.steps) == (expected.epochs, expected.steps) == (3, 12)
    kept = [(at, values[TRAIN_LOSS], values["score"]) for at, values in logged]
    assert kept == [(at, values[TRAIN_LOSS], values["score"]) for at, values in whole]
    fit(tmp_path, lambda epoch: -epoch, logged)
    assert len(logged) == 3  # of a training that is over nothing is left to do
