"""Architecture search within one training: choices share weights and are learnt by gradients.

After Liu et al., DARTS: Differentiable Architecture Search (ICLR 2019), its first-order variant. A
`Mixture` stands where a model has a choice. Training batches update the weights, validation batches
the logits of the choices (`step_choices`). Afterwards a model of the `chosen` ones is trained from
the start. A mixture computes all its choices: a step costs as much as one of each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Mixture(nn.Module):  # type: ignore[misc]
    """The sum of the outputs of some modules, weighted by the softmax of a logit of each.

    choices: modules by name, with the same input and the same shape of output. A name has no dot.
    Not for models that FSDP shards.
    """

    def __init__(self, choices: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if len(choices) < 2:
            raise ValueError("a mixture has at least two choices")
        self.choices = nn.ModuleDict(choices)
        self.logits = nn.Parameter(torch.zeros(len(choices)))

    def forward(self, *inputs: Any) -> Tensor:
        """Return the weighted sum for inputs that every choice takes."""
        outputs = torch.stack([choice(*inputs) for choice in self.choices.values()], -1)
        return outputs @ self.logits.softmax(0).to(outputs.dtype)

    @property
    def chosen(self) -> str:
        """The name of the choice with the largest logit."""
        names: list[str] = list(self.choices)
        return names[int(self.logits.argmax())]


def choice_logits(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of an optimiser of the choices."""
    return [module.logits for module in model.modules() if isinstance(module, Mixture)]


def shared_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of an optimiser of the weights: all but the logits of the choices."""
    logits = set(choice_logits(model))
    return [parameter for parameter in model.parameters() if parameter not in logits]


def step_choices(optimiser: torch.optim.Optimizer, loss: Tensor) -> bool:
    """Step the optimiser of `choice_logits` by the gradient of a validation batch.

    loss: the mean over the batch, computed with the bare model (not the one that `World.wrap`
    returned). The gradient is averaged over all processes. It leaves no gradient on the weights.
    Checkpoints keep the optimiser like any other. Returns False where the gradient is not finite in
    some process: no logit has changed then, in no process.
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
