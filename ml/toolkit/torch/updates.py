"""Optimiser steps with mixed precision, gradient accumulation and clipping.

The gradient of a step is that of the mean loss over all items of its micro-batches in all
processes, independent of the split: losses and items are summed and divided once.
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

# Initial loss scale for float16, which adapts. torch starts at 65,536 for mean losses; here losses
# are sums, about a hundred times as large.
SCALE = 128.0
Precision = Literal["float32", "bfloat16", "float16"]
# Stage of a step → error message for a call that is invalid in that stage.
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
    """The result of a step, equal in all processes."""

    loss: float  # mean over all items of the step
    gradient_norm: float  # before clipping
    items: float
    taken: bool  # False if the loss or a gradient is not finite; the weights are then unchanged
    not_finite_in: tuple[int, ...] = ()  # ranks of the processes with a non-finite loss


class Updates:
    """Performs the steps of one optimiser.

    precision: `bfloat16` and `float16` use autocast; the weights keep their dtype. float16 also
      uses a torch.amp.GradScaler, whose state is this object's state_dict.
    clip: maximum norm of a step's gradient over all parameters; None does not clip.
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
        # Copies of the buffers that a forward pass changes (such as BatchNorm's), to restore them
        # if the step is skipped. By name, since a forward pass may replace the tensor.
        self._before: dict[str, torch.Tensor] | None = None
        self._sums = torch.zeros(2, dtype=torch.float64, device=world.device)
        self._stage = "empty"
        self._has_gradient = False

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Context for the forward and backward pass of one micro-batch.

        Gradients are all-reduced in the `last` micro-batch of a step only. Raises ValueError after
        the last one, or if an exception interrupted an earlier one.
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
        """Return the autocast context of a forward pass, also for evaluation."""
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
        """Average the gradients over all items, clip them, step the optimiser and reset gradients.

        If the loss or the gradient is not finite, all processes skip the step. Raises ValueError
        unless the final micro-batch had `last=True` and a backward pass; otherwise the processes'
        weights would diverge.
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
        # DDP and FSDP have already divided by the number of processes.
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
        """Return the state of the float16 loss scaler."""
        return dict(self._scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the float16 loss scaler."""
        if state:
            self._scaler.load_state_dict(state)
