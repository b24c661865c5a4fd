"""Architecture search against random search at equal cost, on a task whose best model is known.

A model reads its first N inputs, each through one of five operations with three weights, and adds
them up: 19,530 architectures, and the operation of an input has an effect only if the input is
read. A teacher of a random architecture makes the targets of each seed, with noise; so the best
architecture is the teacher's, as far as a training finds its weights.

Cost is the number of passes of the training rows through an operation. Each method has the same,
for weight sharing the final training included. The winner has the lower test loss; the same
architecture is a tie.
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
STEPS, RATE = 60, 0.1  # of a training
# The mean cost of so many random trials.
BUDGET = 60 * STEPS * (INPUTS + 1) / 2

Architecture = tuple[str, ...]  # the operations of the inputs that are read


@dataclass(frozen=True)
class Task:
    """Rows of inputs, their targets, and the teacher's architecture."""

    x: Tensor
    y: Tensor
    teacher: Architecture

    @classmethod
    def make(cls, seed: int) -> Task:
        """A teacher of 3 to 5 inputs whose targets have a variance of 1, a tenth of it noise."""
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
    """The validation and test loss of each architecture, trained from the start on its task."""
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
    """The architecture with the lowest validation loss that a sweep of each task finds."""
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
                # A trial that the budget does not pay for does not count.
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
    """One operation on one input, with its weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.weights = name, nn.Parameter(torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) → (rows,)."""
        scale, shift, weight = self.weights
        return OPERATIONS[self.name](x * scale + shift) * weight


class First(nn.Module):  # type: ignore[misc]
    """The sum of the first outputs."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.bias = count, nn.Parameter(torch.zeros(()))

    def forward(self, outputs: Tensor) -> Tensor:
        """(INPUTS, rows) → (rows,)."""
        return outputs[: self.count].sum(0) + self.bias


class Shared(nn.Module):  # type: ignore[misc]
    """All architectures at once."""

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
    """The architecture that weight sharing chooses; the first fifth only trains the weights."""
    torch.manual_seed(seed)
    model = Shared()
    one_pass = INPUTS * len(OPERATIONS)
    weights = torch.optim.Adam(shared_weights(model), RATE / 2)
    choices = torch.optim.Adam(choice_logits(model), RATE, betas=(0.5, 0.999))
    total = left = BUDGET - STEPS * INPUTS  # the final training at most

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
    """Print the wins; the ratio is evolution's share of them (goal: at least 0.5)."""
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
