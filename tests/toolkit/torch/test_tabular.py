"""A network on a table: the best epoch, and the same network after an interruption."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ml.toolkit.torch.preemption import Preempted
from ml.toolkit.torch.tabular import Table, fit_network
from ml.toolkit.training.segments import checkpointed

EPOCHS = 12


def table(seed: int) -> Table:
    """A line with noise."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(60, 2, generator=draw)
    return rows, rows @ torch.tensor([1.0, -2.0]) + torch.randn(60, generator=draw) / 10


def fit(preempt_at: int = 0, learning_rate: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    calls = 0

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == preempt_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.functional.mse_loss(scores[:, 0], labels)

    settings = {"learning_rate": learning_rate}
    data = (table(0), table(1))
    return fit_network(nn.Linear(2, 1), loss, *data, settings, 3, epochs=EPOCHS, batch=16)


def test_it_goes_on_with_the_checkpoint_of_its_own_settings(tmp_path: Path) -> None:
    """The weights are those of a training that nobody ended; other settings begin anew."""
    whole, other = fit(), fit(learning_rate=0.2)
    assert (whole.weight - torch.tensor([[1.0, -2.0]])).abs().max() < 0.2
    with checkpointed(tmp_path):
        with pytest.raises(Preempted):
            fit(preempt_at=17)
        [place] = tmp_path.iterdir()
        assert [of.name for of in place.glob("step-*")] == ["step-00000014"]
        assert torch.equal(fit(learning_rate=0.2).weight, other.weight)
        assert torch.equal(fit().weight, whole.weight)
