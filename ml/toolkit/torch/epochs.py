"""The loop of a training by epochs: health checks, steps, validation, the best epoch, checkpoints.

`train_epochs` puts the parts of this package together. A training that needs another loop takes the
parts alone, as README.md does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import Metrics, World
from ml.toolkit.torch.health import Guard, Watchdog, check_machines
from ml.toolkit.torch.loading import Batch, Batches
from ml.toolkit.torch.updates import Updates

TRAIN_LOSS = "train_loss"
Report = Callable[[Mapping[str, float], int], None]


@dataclass
class Progress:
    """How far a training by epochs is; a part of every checkpoint."""

    epochs: int = 0  # validated ones
    waited: int = 0  # of them, those since the best one
    best: float | None = None  # value of the metric of the best one
    seconds: float = 0.0  # of all starts together, as the first process measured them
    steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Its fields."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        vars(self).update(state)


def train_epochs(
    world: World,
    model: nn.Module,
    updates: Updates,
    batches: Batches,
    state: Mapping[str, Any],
    folder: Path,
    *,
    loss: Callable[[Batch], tuple[Tensor, float]],
    validate: Callable[[Metrics], None],
    metric: str,
    epochs: int,
    best: Literal["lowest", "highest"] = "lowest",
    patience: int | None = None,
    on_best: Callable[[], None] = lambda: None,
    report: Report = lambda metrics, step: None,
    every_s: float = 60.0,
    every_epoch: bool = True,
    stalled_s: float = 600.0,
) -> Progress:
    """Train until `epochs` are over, or `patience` of them had no better `metric`.

    model: the wrapped model, set to training mode at the start of every epoch.
    state: what `Checkpoints` keeps besides `updates`, `batches`, the metrics and the progress: the
    model, the best weights, the optimiser, the schedule.
    folder: the checkpoints. A training that finds one there goes on from it.
    loss: the SUM of the losses of a micro-batch on this process's device, and its items.
    validate: adds this process's part of the validation to the metrics, after every epoch; one of
    them is `metric`.
    on_best: called in every process after an epoch with the best `metric` so far, to keep a copy of
    the weights in `state`.
    report: called in the first process with the metrics of an epoch, the rows a second and the
    share of time in which the loop waited for data.
    every_s: seconds between two checkpoints.
    every_epoch: whether one more ends each epoch; not for epochs that take less than a second.
    stalled_s: `Watchdog` ends a job that has made no step for so many seconds. A step and a
    validation have to be shorter.

    Raises Unhealthy before the first step, Diverged, CheckpointError, and Preempted after SIGTERM.
    """
    began, progress, metrics = time.perf_counter(), Progress(), Metrics(world)
    check_machines(world, folder)
    everything = {**state, "updates": updates, "batches": batches}
    everything |= {"progress": progress, "metrics": metrics}
    with (
        Watchdog(world, stalled_s) as watchdog,
        Checkpoints(
            folder, world, everything, every_s=every_s, progress=watchdog.alive
        ) as checkpoints,
    ):
        progress.steps, guard = checkpoints.restore(), Guard(checkpoints)
        earlier = progress.seconds
        while progress.epochs < epochs and (patience is None or progress.waited < patience):
            model.train()
            # A checkpoint may be of the end of an epoch that was not validated yet.
            if batches.step < len(batches) or batches.epoch < progress.epochs:
                for micro_batches in batches:
                    for batch in micro_batches:
                        with updates.micro_batch(last=batch is micro_batches[-1]):
                            updates.backward(*loss(batch))
                    update = updates.step()
                    progress.steps += 1
                    guard.check(progress.steps, update)
                    watchdog.beat()
                    if update.taken:
                        metrics.add(TRAIN_LOSS, update.loss * update.items, update.items)
                    if batches.step < len(batches):
                        checkpoints.after(progress.steps)
            validate(metrics)
            measured = metrics.reduce()
            watchdog.beat()
            value = measured[metric]
            progress.epochs, progress.waited = batches.epoch + 1, progress.waited + 1
            sign = 1 if best == "lowest" else -1
            if progress.best is None or sign * value < sign * progress.best:
                progress.best, progress.waited = value, 0
                on_best()
            # The first process's clock: what a checkpoint keeps has to be alike in all of them.
            progress.seconds = world.gather(earlier + time.perf_counter() - began)[0]
            if world.first:
                report({**measured, **batches.rates()}, progress.steps)
            checkpoints.after(progress.steps, metric=value if every_epoch else None)
        checkpoints.finish()
    return progress
