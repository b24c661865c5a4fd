"""LoRA adapters by peft, which fine-tune a model with frozen base weights.

After Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (ICLR 2022). A checkpoint has
only `trained(model)` and, in `Base`, the digest of the frozen weights.
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

# The files that peft's `PeftModel.from_pretrained` reads.
WEIGHTS, CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"
_ADAPTER = "default"  # peft's name of the only adapter of a model


def lora(model: nn.Module, layers: Sequence[str], *, rank: int = 8) -> nn.Module:
    """Freeze the model, add adapters to its linear layers named `layers`; return a peft.PeftModel.

    Adapter outputs are scaled by 2 (`lora_alpha` is 2 × rank) and initially 0, so the model's
    outputs do not change. Raises ValueError if no layer has such a name.
    """
    peft = load_peft()
    settings = {"r": rank, "lora_alpha": 2 * rank, "target_modules": [*layers]}
    adapted: nn.Module = peft.get_peft_model(model, peft.LoraConfig(**settings))
    return adapted


def merged(model: nn.Module) -> nn.Module:
    """Return the base model with the adapters merged into its weights, without runtime overhead.

    Its outputs differ from the adapted model's only by rounding (5e-7 in float32).
    """
    merged_model: nn.Module = model.merge_and_unload()
    return merged_model


def trained(model: nn.Module) -> nn.ParameterDict:
    """Return the trainable parameters (not copies), as a part of a checkpoint.

    Pass the bare model, not the DDP wrapper; call it for an FSDP model after `World.wrap`. Buffers
    are left out, so they must be the same at every start.
    """
    # Parameter names of a module must not have dots.
    parameters = model.named_parameters()
    return nn.ParameterDict(
        {
            name.replace(".", "/"): parameter
            for name, parameter in parameters
            if parameter.requires_grad
        }
    )


def save_adapter(folder: Path, model: nn.Module) -> dict[str, float]:
    """Write the adapters of a `lora` model in peft's format.

    Return `adapter_bytes` (size of the weights file) and `adapter_parameters` (their number).
    """
    from safetensors.torch import save_file

    weights = {
        name: weight.contiguous()
        for name, weight in load_peft().get_peft_model_state_dict(model).items()
    }
    save_file(weights, folder / WEIGHTS)
    facts = model.peft_config[_ADAPTER].to_dict()
    # Sort peft's sets, whose order varies between processes, for a reproducible digest.
    ordered = {
        name: sorted(value) if isinstance(value, set) else value for name, value in facts.items()
    }
    text = json.dumps(ordered, indent=1, sort_keys=True)
    (folder / CONFIGURATION).write_text(text + "\n", encoding="utf-8")
    size = (folder / WEIGHTS).stat().st_size
    return {"adapter_bytes": size, "adapter_parameters": sum(map(torch.numel, weights.values()))}


def trained_share(model: nn.Module) -> float:
    """Return the share of trainable parameters, from 0 to 1."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained_count = sum(count for count, is_trained in counts if is_trained)
    share: float = trained_count / sum(count for count, _ in counts)
    return share


class Base:
    """The digest of the frozen base weights, as a part of a checkpoint.

    A checkpoint of `trained(model)` would load with any base of the same shapes. With this part,
    resuming with another base raises CheckpointError.
    """

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def state_dict(self) -> dict[str, Any]:
        """Return the digest."""
        return {"digest": self._digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError if the digest of a checkpoint differs."""
        if state["digest"] != self._digest:
            raise CheckpointError(
                "checkpoint-mismatch",
                f"the checkpoint adapts a base with digest {state['digest']}, this training one "
                f"with {self._digest}",
                "use a new folder for this training, or give it the other base",
            )


def load_peft() -> ModuleType:
    """Import and return peft; not at the top of the module, because the import takes seconds."""
    # peft imports transformers, which imports torchvision if it is installed. torchvision is not
    # needed here, and its CUDA build fails with a CPU build of torch.
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
