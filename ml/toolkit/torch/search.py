"""Differentiable architecture search within one training, with shared weights.

After Liu et al., DARTS: Differentiable Architecture Search (ICLR 2019), first-order variant. A
`Mixture` replaces a module that has several candidates. Training batches update the weights;
validation batches update the logits of the candidates (`step_choices`). Afterwards, train a model
of the `chosen` candidates from scratch. A mixture computes all its candidates, which costs as much
as all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Mixture(nn.Module):  # type: ignore[misc]
    """The sum of the candidates' outputs, weighted by a softmax of learnt logits.

    choices: candidate modules by name (without dots), with equal inputs and output shapes.
    Not for FSDP models.
    """

    def __init__(self, choices: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if len(choices) < 2:
            raise ValueError("a mixture has at least two choices")
        self.choices = nn.ModuleDict(choices)
        self.logits = nn.Parameter(torch.zeros(len(choices)))

    def forward(self, *inputs: Any) -> Tensor:
        """Return the weighted sum of the candidates' outputs for the same inputs."""
        outputs = torch.stack([choice(*inputs) for choice in self.choices.values()], -1)
        return outputs @ self.logits.softmax(0).to(outputs.dtype)

    @property
    def chosen(self) -> str:
        """The name of the candidate with the largest logit."""
        names: list[str] = list(self.choices)
        return names[int(self.logits.argmax())]


def choice_logits(model: nn.Module) -> list[nn.Parameter]:
    """Return the logits of all mixtures, the parameters of the optimiser of the choices."""
    return [module.logits for module in model.modules() if isinstance(module, Mixture)]


def shared_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return all parameters except the logits of mixtures, for the optimiser of the weights."""
    logits = set(choice_logits(model))
    return [parameter for parameter in model.parameters() if parameter not in logits]


def step_choices(optimiser: torch.optim.Optimizer, loss: Tensor) -> bool:
    """Update `choice_logits` by the gradient of a validation batch; return False if skipped.

    loss: the mean over the batch, computed with the bare model (not the result of `World.wrap`).
    The gradient is averaged over all processes; the weights get no gradient. If it is not finite in
    some process, no process updates the logits.
    """
    logits = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    gradients = torch.autograd.grad(loss, logits)
    for parameter, gradient in zip(logits, gradients, strict=True):
        if dist.is_initialized():
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        parameter.grad = gradient
    taken = all(bool(gradient.isfinite().all()) for gradient in gradients)
    if taken:
        optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return taken
