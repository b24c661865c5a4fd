"""LoRA adapters by peft: a model learns a task while the weights that it was given stay.

After Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (ICLR 2022). A checkpoint keeps
`trained(model)` alone, and `Base` says which weights the others are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ml.toolkit.torch.checkpoints import CheckpointError

# The files that peft's own `PeftModel.from_pretrained` reads.
WEIGHTS, CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"
_ADAPTER = "default"  # peft's name of the only adapter of a model


def lora(model: nn.Module, layers: Sequence[str], *, rank: int = 8) -> nn.Module:
    """Freeze the model and give its linear layers of these names adapters; a peft.PeftModel.

    An adapter's output is scaled by 2 (peft's `lora_alpha` is 2 × rank) and begins as 0: the model
    answers as before. Raises ValueError where no layer has such a name.
    """
    peft = load_peft()
    settings = {"r": rank, "lora_alpha": 2 * rank, "target_modules": [*layers]}
    adapted: nn.Module = peft.get_peft_model(model, peft.LoraConfig(**settings))
    return adapted


def merged(model: nn.Module) -> nn.Module:
    """Return the model that `lora` was given, with its adapters added to the weights: as fast as
    before.

    It answers as the adapted one but for rounding (5e-7 in float32).
    """
    merged_model: nn.Module = model.merge_and_unload()
    return merged_model


def trained(model: nn.Module) -> nn.ParameterDict:
    """Return the parameters that are trained, as a part of a checkpoint; the model goes on using
    them.

    Call it with the model inside DDP, and of a sharded model after `World.wrap`. Buffers are left
    out: make them before, alike at every start.
    """
    # A module's name of a parameter has no dots.
    parameters = model.named_parameters()
    return nn.ParameterDict(
        {
            name.replace(".", "/"): parameter
            for name, parameter in parameters
            if parameter.requires_grad
        }
    )


def save_adapter(folder: Path, model: nn.Module) -> dict[str, float]:
    """Write the adapters of what `lora` returned as peft reads them; how large they are.

    `adapter_bytes` are those of the file of weights, `adapter_parameters` their number.
    """
    from safetensors.torch import save_file

    weights = {
        name: weight.contiguous()
        for name, weight in load_peft().get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / WEIGHTS)
    facts = model.peft_config[_ADAPTER].to_dict()
    # peft keeps sets, whose order differs from process to process: the digest must not.
    ordered = {
        name: sorted(value) if isinstance(value, set) else value for name, value in facts.items()
    }
    text = json.dumps(ordered, indent=1, sort_keys=True)
    (folder / CONFIGURATION).write_text(text + "\n", encoding="utf-8")
    size = (folder / WEIGHTS).stat().st_size
    return {"adapter_bytes": size, "adapter_parameters": sum(map(torch.numel, weights.values()))}


def trained_share(model: nn.Module) -> float:
    """Return the share of the parameters that are trained, between 0 and 1."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained_count = sum(count for count, is_trained in counts if is_trained)
    share: float = trained_count / sum(count for count, _ in counts)
    return share


class Base:
    """The weights that a training does not change, as a part of its checkpoints: their digest.

    A checkpoint of `trained(model)` fits any base of the same shapes. Resuming on another one
    raises CheckpointError.
    """

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def state_dict(self) -> dict[str, Any]:
        """The digest."""
        return {"digest": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare with the digest of a checkpoint."""
        if state["digest"] != self._digest:
            raise CheckpointError(
                "checkpoint-mismatch",
                f"the checkpoint adapts a base with digest {state['digest']}, this training one "
                f"with {self._digest}",
                "use a new folder for this training, or give it the other base",
            )


def load_peft() -> ModuleType:
    """peft, imported when it is used: it takes seconds, and most trainings have no adapters."""
    # It imports transformers, which imports torchvision where that is installed. Nothing here needs
    # it, and a build for CUDA beside a torch for CPUs fails.
    hidden = "torchvision" not in sys.modules
    if hidden:
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        import peft
    finally:
        if hidden:
            del sys.modules["torchvision"]
    module: ModuleType = peft
    return module
