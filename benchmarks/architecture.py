"""Compare architecture search with random search at equal cost, on tasks with a known optimum.

A model sums its first N inputs, each after one of five operations with three weights. That makes
19,530 architectures; the operation of an input matters only if the input is used. For each seed, a
teacher with a random architecture generates noisy targets, so that its architecture is the best.

Cost is the number of passes of the training rows through an operation. It is the same for each
method; for weight sharing it includes the final training. The lower test loss wins; equal
architectures are a tie.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.canary import interval
from ml.core.errors import Place
from ml.specs.plan.plans import CommandPlan, Condition, Dimension, Environment, Hints, SweepPlan
from ml.sweeps.samplers import sampler_for
from ml.toolkit.torch.search import Mixture, choice_logits, shared_weights, step_choices

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda z: z,
    "absolute": lambda z: z.abs() - 0.8,
    "square": lambda z: z.square() - 1,
    "sine": lambda z: torch.sin(3 * z),
    "step": lambda z: torch.tanh(5 * z),
}
INPUTS, TRAIN, VALIDATION, TEST = 6, 128, 128, 2048
STEPS, RATE = 60, 0.1  # steps and learning rate of a training
# The mean cost of 60 random trials.
BUDGET = 60 * STEPS * (INPUTS + 1) / 2

Architecture = tuple[str, ...]  # the operation of each input that is used


@dataclass(frozen=True)
class Task:
    """Inputs (rows, INPUTS), targets (rows,), and the teacher's architecture."""

    x: Tensor
    y: Tensor
    teacher: Architecture

    @classmethod
    def make(cls, seed: int) -> Task:
        """Return the task of a random teacher with 3 to 5 inputs.

        The targets have variance 1, of which a tenth is noise.
        """
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(TRAIN + VALIDATION + TEST, INPUTS, generator=draw)
        count = int(torch.randint(3, 6, (), generator=draw))
        picks = torch.randint(len(OPERATIONS), (count,), generator=draw).tolist()
        teacher = tuple(list(OPERATIONS)[pick] for pick in picks)
        scale, shift, weight = torch.rand(3, count, generator=draw)
        signal = sum(
            (weight[n] + 0.5) * OPERATIONS[name](x[:, n] * (0.8 + 0.4 * scale[n]) + shift[n] - 0.5)
            for n, name in enumerate(teacher)
        )
        noise = torch.randn(len(x), generator=draw)
        y = (signal - signal.mean()) / signal.std() * 0.9**0.5 + noise * 0.1**0.5
        return cls(x, y, teacher)


def trained(tasks: list[Task], architectures: list[Architecture]) -> list[tuple[float, float]]:
    """Train each architecture on its task; return its validation and test loss."""
    x, y = torch.stack([task.x for task in tasks]), torch.stack([task.y for task in tasks])
    names = list(OPERATIONS)
    gates = torch.zeros(len(tasks), INPUTS, len(names))
    for model, architecture in enumerate(architectures):
        for n, name in enumerate(architecture):
            gates[model, n, names.index(name)] = 1
    weights = torch.zeros(4, len(tasks), 1, INPUTS)
    weights[:2] = 1
    weights.requires_grad_()
    optimiser = torch.optim.Adam([weights], RATE)

    def answers(rows: slice) -> Tensor:
        scale, weight, shift, bias = weights
        z = x[:, rows] * scale + shift
        outputs = torch.stack([operation(z) for operation in OPERATIONS.values()], -1)
        return ((outputs * gates[:, None]).sum(-1) * weight).sum(-1) + bias[..., 0]

    def losses(start: int, count: int) -> Tensor:
        rows = slice(start, start + count)
        return (answers(rows) - y[:, rows]).square().mean(1)

    for _ in range(STEPS):
        optimiser.zero_grad()
        losses(0, TRAIN).sum().backward()
        optimiser.step()
    with torch.no_grad():
        validation, test = losses(TRAIN, VALIDATION), losses(TRAIN + VALIDATION, TEST)
    return list(zip(validation.tolist(), test.tolist(), strict=True))


HERE = Place("benchmark", 1)
SPACE = {"inputs": Dimension("inputs", "choice", tuple(range(1, INPUTS + 1)), HERE)} | {
    f"input_{n}": Dimension(f"input_{n}", "choice", tuple(OPERATIONS), HERE)
    for n in range(1, INPUTS + 1)
}
CONDITIONS = tuple(Condition(f"input_{n}", f"inputs >= {n}", HERE) for n in range(2, INPUTS + 1))
TRIAL = CommandPlan(HERE, "t", "e", "true", None, Environment("e"))
RANDOM = SweepPlan(HERE, "s", "e", TRIAL, SPACE, "random", "minimize", "loss")
EVOLUTION = replace(RANDOM, hints=Hints(sampler="evolution", conditions=CONDITIONS))


def swept(plan: SweepPlan, tasks: list[Task]) -> list[Architecture]:
    """Run a sweep on each task; return the architectures with the lowest validation loss."""
    samplers = [sampler_for(plan, seed) for seed in range(len(tasks))]
    best: list[tuple[float, Architecture]] = [(float("inf"), ())] * len(tasks)
    left = [BUDGET] * len(tasks)
    while True:
        samples = {}
        for seed, sampler in enumerate(samplers):
            if left[seed] > 0 and (sample := sampler.ask()):
                reads = int(str(sample.values["inputs"]))
                names = tuple(str(sample.values[f"input_{n + 1}"]) for n in range(reads))
                left[seed] -= STEPS * reads
                # Ignore a trial that exceeds the budget.
                if left[seed] >= 0:
                    samples[seed] = (sample.number, names)
        if not samples:
            return [architecture for _, architecture in best]
        architectures = [names for _, names in samples.values()]
        results = trained([tasks[seed] for seed in samples], architectures)
        for (seed, (number, names)), (loss, _) in zip(samples.items(), results, strict=True):
            samplers[seed].tell(number, [loss], loss)
            best[seed] = min(best[seed], (loss, names))


class Operation(nn.Module):  # type: ignore[misc]
    """An operation on an input, with its weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weights = name, nn.Parameter(torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) → (rows,)."""
        scale, shift, weight = self.weights
        return OPERATIONS[self.name](x * scale + shift) * weight


class First(nn.Module):  # type: ignore[misc]
    """The sum of the first outputs, for a learned number of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.bias = count, nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Tensor) -> Tensor:
        """(INPUTS, rows) → (rows,)."""
        return outputs[: self.count].sum(0) + self.bias


class Shared(nn.Module):  # type: ignore[misc]
    """A model with shared weights that contains all architectures."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(
            Mixture({name: Operation(name) for name in OPERATIONS}) for _ in range(INPUTS)
        )
        self.count = Mixture({str(n): First(n) for n in range(1, INPUTS + 1)})

    def forward(self, x: Tensor) -> Tensor:
        """(rows, INPUTS) → (rows,)."""
        columns = zip(self.inputs, x.T, strict=True)
        answer: Tensor = self.count(torch.stack([mixture(column) for mixture, column in columns]))
        return answer


def shared(task: Task, seed: int) -> Architecture:
    """Return the architecture that weight sharing selects.

    The first fifth of the budget trains only the weights, not the choices.
    """
    torch.manual_seed(seed)
    model = Shared()
    one_pass = INPUTS * len(OPERATIONS)
    weights = torch.optim.Adam(shared_weights(model), RATE / 2)
    choices = torch.optim.Adam(choice_logits(model), RATE, betas=(0.5, 0.999))
    total = left = BUDGET - STEPS * INPUTS  # reserve the largest possible final training

    def loss(start: int, count: int) -> Tensor:
        rows = slice(start, start + count)
        return (model(task.x[rows]) - task.y[rows]).square().mean()

    while left >= 2 * one_pass:
        weights.zero_grad()
        loss(0, TRAIN).backward()
        weights.step()
        left -= one_pass
        if left < total * 4 / 5:
            step_choices(choices, loss(TRAIN, VALIDATION))
            left -= one_pass
    return tuple(mixture.chosen for mixture in model.inputs[: int(model.count.chosen)])


def main(quick: bool) -> float:
    """Print the wins of each method; return evolution's share of them (goal: at least 0.5)."""
    torch.set_num_threads(1)
    seeds = range(5 if quick else 20)
    tasks = [Task.make(seed) for seed in seeds]
    architectures = {
        "random search": swept(RANDOM, tasks),
        "evolution": swept(EVOLUTION, tasks),
        "weight sharing": [shared(task, seed) for task, seed in zip(tasks, seeds, strict=True)],
        "the optimum": [task.teacher for task in tasks],
    }
    losses = {
        name: [test for _, test in trained(tasks, picked)] for name, picked in architectures.items()
    }
    print(f"{len(tasks)} seeds, each method {BUDGET:,.0f} passes of {TRAIN} rows  median test loss")
    for name, values in losses.items():
        same = sum(
            a == b for a, b in zip(architectures[name], architectures["the optimum"], strict=True)
        )
        print(f"{name:16} {statistics.median(values):8.3f}  the teacher's architecture: {same}")
    shares = {}
    for name in ("evolution", "weight sharing"):
        pairs = list(zip(losses[name], losses["random search"], strict=True))
        wins, defeats = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        low, high = interval(wins, len(pairs))
        print(
            f"{name} beats random search in {wins} of {len(pairs)} seeds "
            f"(95 % interval {low:.0%} to {high:.0%}), loses in {defeats}"
        )
        shares[name] = wins / len(pairs)
    return shares["evolution"]
