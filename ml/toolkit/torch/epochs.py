"""A training loop by epochs, with health checks, validation, best epoch and checkpoints.

`train_epochs` combines the parts of this package. For another loop, use the parts directly, as in
README.md.
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
    """The progress of a training by epochs; a part of every checkpoint."""

    epochs: int = 0  # validated epochs
    waited: int = 0  # epochs since the best one
    best: float | None = None  # metric of the best epoch
    seconds: float = 0.0  # duration over all restarts, measured by the first process
    steps: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the fields."""
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
    """Train for `epochs` epochs, or until `metric` has not improved for `patience` epochs.

    model: the wrapped model, set to training mode at the start of every epoch.
    state: additional parts for `Checkpoints`: the model, the best weights, the optimiser and the
      schedule.
    folder: the checkpoints, from which an interrupted training resumes.
    loss: returns the SUM of a micro-batch's losses, on this process's device, and its items.
    validate: adds this process's share of the validation to the metrics, after every epoch. It must
      add `metric`.
    on_best: called in every process after an epoch with the best `metric` so far, to copy the
      weights into `state`.
    report: called in the first process with an epoch's metrics, rows per second and share of time
      spent waiting for data.
    every_s: seconds between checkpoints.
    every_epoch: whether each epoch ends with a checkpoint; False for epochs of under a second.
    stalled_s: timeout of `Watchdog` in seconds, longer than any step and validation.

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
            # A restored checkpoint may be at the end of an epoch, before its validation.
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
                        checkpoints.after_step(progress.steps)
            validate(metrics)
            measured = metrics.reduce()
            watchdog.beat()
            value = measured[metric]
            progress.epochs, progress.waited = batches.epoch + 1, progress.waited + 1
            sign = 1 if best == "lowest" else -1
            if progress.best is None or sign * value < sign * progress.best:
                progress.best, progress.waited = value, 0
                on_best()
            # Use the first process's clock, since checkpointed state must be equal in all.
            progress.seconds = world.gather(earlier + time.perf_counter() - began)[0]
            if world.first:
                report({**measured, **batches.rates()}, progress.steps)
            checkpoints.after_step(progress.steps, metric=value if every_epoch else None)
        checkpoints.finish()
    return progress
