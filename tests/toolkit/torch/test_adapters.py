"""LoRA adapters: what is trained, what a checkpoint keeps, what is merged and written."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
if find_spec("peft") is None:
    pytest.skip("peft is not installed", allow_module_level=True)

import torch
from torch import nn

from ml.toolkit.torch import adapters
from ml.toolkit.torch.checkpoints import CheckpointError


class Small(nn.Module):  # type: ignore[misc]
    """Two layers, one of which gets adapters."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The scores."""
        return self.out(self.query(rows).relu())


def test_only_the_adapters_are_trained_and_kept(tmp_path: Path) -> None:
    """A step changes them alone; merged, the model answers alike; their files name no others."""
    torch.manual_seed(0)
    rows, model = torch.randn(5, 6), Small()
    before, first = {name: of.clone() for name, of in model.state_dict().items()}, model(rows)
    adapted = adapters.lora(model, ["query"], rank=2)
    assert torch.allclose(adapted(rows), first)
    kept = adapters.trained(adapted)
    assert {name.rsplit("/")[-3] for name in kept} == {"lora_A", "lora_B"}
    assert adapters.trained_share(adapted) == 24 / (24 + 42 + 14)
    optimiser = torch.optim.SGD(kept.parameters(), 0.5)
    for _ in range(3):
        adapted(rows).square().sum().backward()
        optimiser.step()
    expected = adapted(rows)
    assert not torch.allclose(expected, first, atol=1e-3)
    sizes = adapters.save_adapter(tmp_path, adapted)
    assert sizes == {
        "adapter_bytes": (tmp_path / adapters.WEIGHTS).stat().st_size,
        "adapter_parameters": 24,
    }
    again = adapters.load_peft().PeftModel.from_pretrained(_with(before), tmp_path)
    assert torch.allclose(again(rows), expected, atol=1e-6)
    merged = adapters.merged(adapted)
    assert isinstance(merged, Small) and torch.allclose(merged(rows), expected, atol=1e-6)
    changed = [
        name for name, of in merged.state_dict().items() if not torch.equal(of, before[name])
    ]
    assert changed == ["query.weight"]


def _with(weights: dict[str, torch.Tensor]) -> Small:
    model = Small()
    model.load_state_dict(weights)
    return model


def test_the_files_are_the_same_in_every_process(tmp_path: Path) -> None:
    """A set of layers is written in order: its own differs from process to process."""
    names = [f"layer{number}" for number in range(20)]
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
    adapters.save_adapter(tmp_path, adapters.lora(model, names, rank=1))
    stated = json.loads((tmp_path / adapters.CONFIGURATION).read_text())["target_modules"]
    assert stated == sorted(names)


def test_layers_that_are_not_there_are_refused() -> None:
    """By peft's own sentence."""
    with pytest.raises(ValueError, match="no_such_layer"):
        adapters.lora(Small(), ["no_such_layer"])


def test_a_checkpoint_of_another_base_is_not_resumed() -> None:
    """The digests are compared."""
    adapters.Base("sha256:1").load_state_dict(adapters.Base("sha256:1").state_dict())
    with pytest.raises(CheckpointError, match=r"(?s)checkpoint-mismatch.*sha256:1.*sha256:2"):
        adapters.Base("sha256:2").load_state_dict(adapters.Base("sha256:1").state_dict())
