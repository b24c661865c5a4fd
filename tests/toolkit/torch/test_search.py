"""Weight sharing: the choices learn on validation batches, and checkpoints keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import World, distributed
from ml.toolkit.torch.search import (
    Mixture,
    choice_logits,
    shared_weights,
    step_choices,
)


class Sine(nn.Module):  # type: ignore[misc]
    """The operation of the targets."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The sine of each number."""
        return torch.sin(3 * rows)


def network() -> nn.Module:
    """A choice between three activations; one of them has a choice inside."""
    inner = Mixture({"tanh": nn.Tanh(), "relu": nn.ReLU()})
    activation = Mixture({"inner": inner, "sine": Sine(), "none": nn.Identity()})
    return nn.Sequential(nn.Linear(1, 8), activation, nn.Linear(8, 1))


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 1, generator=torch.Generator().manual_seed(seed))
    return x, torch.sin(3 * x)


def train(world: World, folder: Path, until: int, seed: int = 1) -> nn.Module:
    """A loop of a project's own: one step of the weights, one of the choices, a checkpoint."""
    world.seed(seed, shared=True)
    bare = network()
    model = world.wrap(bare)
    weights = torch.optim.Adam(shared_weights(bare), 0.02)
    choices = torch.optim.Adam(choice_logits(bare), 0.05, betas=(0.5, 0.999))
    state = {"model": bare, "weights": weights, "choices": choices}
    with Checkpoints(folder, world, state, every_steps=5, events=None) as checkpoints:
        step = checkpoints.restore()
        while step < until:
            x, y = rows(step)
            weights.zero_grad()
            (model(x) - y).square().mean().backward()
            weights.step()
            x, y = rows(10_000 + step)
            assert step_choices(choices, (bare(x) - y).square().mean())
            step += 1
            checkpoints.after_step(step)
        checkpoints.finish()
    return bare


def test_the_choice_of_the_targets_is_learnt(tmp_path: Path) -> None:
    """Nested mixtures are learnt, too."""
    with distributed(seed=1) as world:
        model = train(world, tmp_path, 150)
    assert model[1].chosen == "sine"
    assert model[1].choices["inner"].logits.any()


def test_a_resumed_search_ends_with_the_same_weights_and_logits(tmp_path: Path) -> None:
    """Bit for bit, in the middle of the search; both optimisers go on as they were."""
    with distributed(seed=1) as world:
        whole = train(world, tmp_path / "whole", 30)
        train(world, tmp_path / "parts", 15)
        resumed = train(world, tmp_path / "parts", 30, seed=9)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_step_of_the_choices_leaves_the_weights_alone() -> None:
    """No weight has a gradient of it; a loss that is not finite changes nothing."""
    model = network()
    optimiser = torch.optim.SGD(choice_logits(model), 0.1)
    x, y = rows(0)
    assert step_choices(optimiser, (model(x) - y).square().mean())
    assert all(parameter.grad is None for parameter in model.parameters())
    before = [logits.clone() for logits in choice_logits(model)]
    assert any(bool(logits.any()) for logits in before)
    assert not step_choices(optimiser, (model(x) * float("nan")).mean())
    assert all(map(torch.equal, before, choice_logits(model)))
    assert len(shared_weights(model)) + len(before) == len(list(model.parameters()))


def test_a_mixture_of_one_choice_is_an_error() -> None:
    """There is nothing to choose."""
    with pytest.raises(ValueError, match="at least two"):
        Mixture({"only": nn.ReLU()})
