"""One step of the optimiser out of many micro-batches: precision, accumulation, clipping.

The gradient of a step is that of the mean loss over all items of all its micro-batches in all
processes, however they are split: losses and items are summed, and divided once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ml.toolkit.torch.distributed import World

# Initial loss scale for float16; it adapts. torch starts at 65,536 for the mean of a batch; here
# losses are sums, some hundred times as large.
SCALE = 128.0
Precision = Literal["float32", "bfloat16", "float16"]
# Where a step is → why it cannot go on as asked. A step that broke off has an unknown gradient.
_FAULTS = {
    "empty": "a step without a micro-batch",
    "open": "a step whose final micro-batch had no last=True: its gradients were not all-reduced",
    "complete": "a micro-batch after the one with last=True: only the final one of a step has it",
    "without gradient": "a step whose last micro-batch had no backward pass",
    "broken": "an exception ended a micro-batch, or one began inside another: start again from the "
    "last checkpoint",
}


@dataclass(frozen=True)
class Update:
    """What became of a step; alike in every process."""

    loss: float  # the mean over all items of the step
    gradient_norm: float  # before clipping
    items: float
    taken: bool  # False where the loss or a gradient is not finite: no weight has changed
    not_finite_in: tuple[int, ...] = ()  # the processes whose own loss is not finite


class Updates:
    """Takes the steps of one optimiser.

    precision: `bfloat16` and `float16` compute under autocast, the weights stay as they are;
    float16 scales its losses (torch.amp.GradScaler), whose state is this object's state_dict.
    clip: the largest norm of the gradient of a step, over all parameters.
    schedule: a scheduler of torch.optim.lr_scheduler, stepped with the optimiser.
    """

    def __init__(
        self,
        world: World,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        precision: Precision = "float32",
        clip: float | None = None,
        schedule: Any = None,
    ) -> None:
        if precision == "float16" and isinstance(model, FSDPModule):
            raise ValueError(
                "a sharded model does not support float16, because each process has its own "
                "gradient scaler: use bfloat16"
            )
        if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau needs a metric: omit `schedule`, and call its step where the "
                "metric is known"
            )
        self._world, self._model, self._optimiser = world, model, optimiser
        self._kind: torch.dtype = getattr(torch, precision)
        self._clip, self._schedule = clip, schedule
        self._scaler = torch.amp.GradScaler(
            world.device.type, init_scale=SCALE, enabled=precision == "float16"
        )
        # What a forward pass changes, as BatchNorm's, and a step that is not taken gives back: by
        # name, since a forward pass may put another tensor there.
        self._before: dict[str, torch.Tensor] | None = None
        self._sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        self._stage = "empty"
        self._has_gradient = False

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Forward and backward of one micro-batch; the processes meet in the `last` one alone.

        ValueError where the step had its last one, or an exception ended an earlier one.
        """
        if self._stage not in ("empty", "open"):
            raise ValueError(_FAULTS[self._stage])
        self._stage, self._has_gradient = "broken", False
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(last)
        if self._before is None:
            buffers = self._model.named_buffers()
            self._before = {name: buffer.detach().clone() for name, buffer in buffers}
        alone = isinstance(self._model, DistributedDataParallel) and not last
        if alone and self._model.static_graph:
            raise ValueError(
                "DDP's static_graph does not support gradient accumulation: remove it from `wrap`, "
                "or use one micro-batch per step"
            )
        with self._model.no_sync() if alone else nullcontext(), self.autocast():
            yield
        self._stage = "complete" if last else "open"

    def autocast(self) -> torch.autocast:
        """Return the precision of the forward pass, as evaluation takes it too."""
        enabled = self._kind is not torch.float32
        return torch.autocast(self._world.device.type, self._kind, enabled=enabled)

    def backward(self, loss: torch.Tensor, items: float) -> None:
        """Add the gradient of `loss`, the SUM over the micro-batch's `items` (rows, or tokens)."""
        stage, self._stage = self._stage, "broken"
        self._sums += torch.stack([loss.detach().double(), self._sums.new_tensor(items)])
        with torch.autocast(self._world.device.type, enabled=False):
            self._scaler.scale(loss).backward()
        self._stage, self._has_gradient = stage, True

    def step(self) -> Update:
        """Divide by the items of all processes, clip, step and forget the gradients.

        Where the loss or the gradient is not finite, nothing is stepped, in no process. ValueError
        unless the final micro-batch had last=True and a backward pass, with one process too: with
        two, their weights would no longer be alike.
        """
        if self._stage == "complete" and not self._has_gradient:
            self._stage = "without gradient"
        if self._stage != "complete":
            raise ValueError(_FAULTS[self._stage])
        self._stage = "empty"
        sums = self._sums.clone()
        mine = float(self._sums[0])
        self._sums.zero_()
        dist.all_reduce(sums)
        loss, items = sums.tolist()
        sources: tuple[int, ...] = ()
        if not math.isfinite(loss):
            parts = self._world.gather(mine)
            sources = tuple(rank for rank, value in enumerate(parts) if not math.isfinite(value))
        if not items:
            raise ValueError("no process has an item in this step")
        self._scaler.unscale_(self._optimiser)
        parameters = [p for group in self._optimiser.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # DDP and FSDP have divided by the number of processes.
        for gradient in gradients:
            gradient.mul_(self._world.size / items)
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self._clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
        taken = math.isfinite(float(norm)) and math.isfinite(loss)
        update = Update(loss / items, float(norm), items, taken, sources)
        if update.taken:
            self._scaler.step(self._optimiser)
            if self._schedule is not None:
                self._schedule.step()
        else:
            with torch.no_grad():
                for name, buffer in self._model.named_buffers():
                    buffer.copy_((self._before or {}).get(name, buffer))
        self._before = None
        self._scaler.update()
        self._optimiser.zero_grad(set_to_none=True)
        return update

    def state_dict(self) -> dict[str, Any]:
        """Return the state of float16's scaler."""
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state_dict."""
        if state:
            self._scaler.load_state_dict(state)
