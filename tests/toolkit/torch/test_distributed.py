"""Processes that find one another, steps that are right however they are split, metrics."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule

from ml.toolkit.torch import distributed as module
from ml.toolkit.torch.distributed import Metrics, TrainingError, distributed
from ml.toolkit.torch.updates import SCALE, Updates
from tests.conftest import ROOT
from tests.toolkit.torch import ranks

PYTORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
MPI = {f"OMPI_COMM_WORLD_{k}": v for k, v in (("RANK", "3"), ("SIZE", "4"), ("LOCAL_RANK", "1"))}


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        (PYTORCH, (3, 4, 1)),
        (MPI, (3, 4, 1)),
        ({}, (0, 1, 0)),
    ],
)
def test_the_numbers_of_a_process(environment: dict[str, str], numbers: tuple[int, ...]) -> None:
    """As Azure ML sets them for pytorch and mpi; none of them is one process."""
    assert module._ranks(environment) == numbers


def test_half_an_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="WORLD_SIZE is set, and 'RANK' is not"):
        module._ranks({"WORLD_SIZE": "4"})


def test_mpi_finds_its_master(tmp_path: Path) -> None:
    """By AZ_BATCH_MASTER_NODE, in place of MASTER_ADDR."""
    assert "ranks [0, 1]" in ranks.run(by_mpi, 2, tmp_path / "logs").text(1)


def by_mpi() -> None:
    host, port = os.environ.pop("MASTER_ADDR"), os.environ.pop("MASTER_PORT")
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[f"OMPI_COMM_WORLD_{name}"] = os.environ.pop(name)
    os.environ["OMPI_COMM_WORLD_SIZE"] = os.environ.pop("WORLD_SIZE")
    os.environ["AZ_BATCH_MASTER_NODE"] = f"{host}:{port}"
    with distributed() as world:
        print("ranks", world.gather(world.rank))
    assert not torch.distributed.is_initialized()


def test_a_process_may_be_of_one_group_after_another(tmp_path: Path) -> None:
    """As k folds in one program are: one process is still in the last when another begins."""
    done = ranks.run(folds, 2, tmp_path / "logs")
    assert [done.text(rank).split() for rank in (0, 1)] == [["3"] * 8] * 2


def folds() -> None:
    for _ in range(8):
        with distributed(timeout_s=20) as world:
            model = world.wrap(nn.Linear(3, 1))
            model(torch.ones(2, 3)).sum().backward()
            print(sum(world.gather(world.rank + 1)))


def test_a_process_that_meets_nobody_ends_with_a_sentence(tmp_path: Path) -> None:
    training = ranks.start(meets_nobody, 2, tmp_path / "logs")
    assert training.wait() == [0, 1]
    assert (
        "error[rendezvous-failed]: process 1 did not connect to the other 1 at 127.0.0.1"
        in training.text(1)
    )
    assert "Traceback" not in training.text(1)


def meets_nobody() -> None:
    if os.environ["RANK"] == "1":
        with distributed(timeout_s=1):
            pass


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("the feature store gave no answer: Read timeout of 5 s"), False),
        (RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (RuntimeError("[/pytorch/gloo/allreduce.cc:9] sizes differ"), False),
        (torch.distributed.DistBackendError("NCCL error: remote process exited"), True),
        (torch.distributed.DistNetworkError("Connection was likely closed"), True),
    ],
)
def test_an_error_of_the_connection_alone_is_a_lost_process(
    error: RuntimeError, lost: bool
) -> None:
    assert module._is_loss(error, str(error)) is lost


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("size", [1, 2])
def test_the_weights_of_a_model_are_whole_and_bare(
    tmp_path: Path, size: int, strategy: str
) -> None:
    ranks.run(leaves_weights, size, tmp_path / "logs", strategy, tmp_path / "weights.pt")
    bare = nn.Linear(4, 6)
    bare.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert (bare.weight == 7).all()


def leaves_weights(strategy: Any, path: Path) -> None:
    with distributed(seed=1) as world:
        bare = nn.Linear(4, 6)
        nn.init.constant_(bare.weight, 7)
        weights = world.weights(world.wrap(bare, strategy))
        if world.first:
            torch.save(weights, path)


class Language(nn.Module):  # type: ignore[misc]
    """A transformer whose last layer has the weights of its first one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.answer = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        self.answer.weight = self.words.weight
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The scores of the words."""
        return self.answer(self.encoder(self.words(rows)))


@pytest.mark.parametrize("plan", ["found", "given"])
def test_a_transformer_with_tied_embeddings_is_sharded_by_layers(tmp_path: Path, plan: str) -> None:
    """Two processes take the step that one takes, each layer being a group of its own."""
    ranks.run(steps_sharded, 2, tmp_path / "logs", plan, tmp_path / "sharded.pt")
    ranks.run(steps_sharded, 1, tmp_path / "logs-1", "bare", tmp_path / "bare.pt")
    mine, whole = (torch.load(tmp_path / f"{of}.pt") for of in ("sharded", "bare"))
    assert mine.keys() == whole.keys()
    assert all(torch.allclose(mine[name], whole[name], atol=1e-5) for name in whole)


def steps_sharded(plan: str, path: Path) -> None:
    with distributed(seed=1) as world:
        bare = Language()
        layers = [*bare.encoder.layers]
        if plan == "bare":
            model = world.wrap(bare)
        else:
            # A plan of the model's own: two of its three layers.
            model = world.wrap(bare, "fsdp", groups=layers[:2] if plan == "given" else None)
            expected = layers[:2] if plan == "given" else [*layers, bare.encoder]
            shards = [of for of in bare.modules() if isinstance(of, FSDPModule)]
            assert {*map(id, shards)} == {*map(id, (*expected, bare))}
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), 0.1))
        rows = torch.arange(8).reshape(2, 4)[world.rank :: world.size]
        with updates.micro_batch(last=True):
            scores = model(rows).transpose(1, 2)
            updates.backward(
                nn.functional.cross_entropy(scores, rows + 1, reduction="sum"), rows.numel()
            )
        updates.step()
        weights = world.weights(model)
        if world.first:
            torch.save(weights, path)


def test_a_model_that_outlives_its_group_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """A thread of gloo may still want the interpreter's lock while the model dies."""
    for number in range(8):  # without the reference that `wrap` keeps every third does not end
        ranks.run(outlived, 2, tmp_path / f"logs-{number}")


def outlived() -> None:
    sys.setswitchinterval(60)  # what this thread does not release no other takes from it
    with distributed(timeout_s=20) as world:
        model = world.wrap(nn.Linear(3, 1))
        logger = model.logger  # it knows the Reducer, and may live longer than the model
        model(torch.ones(2, 3)).sum().backward()
        world.barrier()
    del model
    assert logger is not None


def test_seeds_are_shared_and_then_each_process_its_own(tmp_path: Path) -> None:
    done = ranks.run(seeds, 2, tmp_path / "logs")
    first, second = (done.text(rank).splitlines() for rank in range(2))
    assert first[0] == second[0]
    assert all(of != other for of, other in zip(first[1].split(), second[1].split(), strict=True))


def seeds() -> None:
    with distributed(seed=3) as world:
        print(float(torch.rand(1)), random.random(), np.random.rand())
        world.seed(3)
        print(float(torch.rand(1)), random.random(), np.random.rand())


def test_metrics_are_ratios_of_sums_over_uneven_ranks(tmp_path: Path) -> None:
    """As one process would have them: a mean of the ranks' means would be 0.5, and lack a class."""
    for size in (1, 2):
        done = ranks.run(metrics, size, tmp_path / f"logs-{size}")
        for rank in range(size):
            assert done.text(rank).strip() == "[('accuracy', 0.25), ('rare recall', 1.0)] {}"


def metrics() -> None:
    """Four rows: rank 0 has three of them, and rank 1 the only one of the rare class."""
    rows = [("usual", False), ("usual", False), ("usual", False), ("rare", True)]
    with distributed() as world:
        counted = Metrics(world)
        for name, hit in {1: {0: rows}, 2: {0: rows[:3], 1: rows[3:]}}[world.size][world.rank]:
            counted.add("accuracy", hit)
            if name == "rare":
                counted.add("rare recall", hit)
        counted.add("without any", 0, 0)
        print(sorted(counted.reduce().items()), counted.reduce())


def test_metrics_go_on_from_what_all_had_counted(tmp_path: Path) -> None:
    """In a checkpoint of mid-epoch; its number of processes may be another one."""
    texts = [ranks.run(counts, size, tmp_path / f"logs-{size}").text(0) for size in (1, 2)]
    assert texts == ["{'x': (3.0, 4.0)} {'x': 0.875}\n"] * 2


def counts() -> None:
    with distributed() as world:
        counted, other = Metrics(world), Metrics(world)
        counted.add("x", 3 / world.size, 4 / world.size)
        state = counted.state_dict()
        other.load_state_dict(state)
        other.add("x", 4 / world.size, 4 / world.size)
        assert counted.reduce() == {"x": 0.75}
        print(state, other.reduce())


ROWS = [torch.randn(n, 6, generator=torch.manual_seed(n)) for n in (7, 1, 4, 12, 2, 9)]


def losses(size: int, micro: int, precision: Any, folder: Path) -> None:
    """A curve of 6 steps of 35 rows; print each loss, then the weights."""
    rows = torch.cat(ROWS)
    with distributed(seed=2, timeout_s=60) as world:
        bare = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        model = world.wrap(bare)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)
        updates = Updates(world, model, optimiser, precision=precision, clip=0.5, schedule=schedule)
        meetings = []
        if size > 1:
            # Without annotations: DDP compares them with classes, and here they are texts.
            model.register_comm_hook(
                None, lambda state, bucket: meetings.append(1) or allreduce_hook(state, bucket)
            )
        # Uneven on purpose: 24 rows and 11, split once more as 12, 11, 1 and 1, 9, 1.
        mine = rows if size == 1 else (rows[:24], rows[24:])[world.rank]
        mine = mine.to(world.device)
        cuts = [len(mine)] if micro == 1 else [len(mine) // 2, len(mine) - 1 - len(mine) // 2, 1]
        for _ in range(6):
            parts = mine.split(cuts)
            for number, part in enumerate(parts):
                with updates.micro_batch(last=number == len(parts) - 1):
                    error = (model(part)[:, 0] - part.sum(1)).square().sum()
                    updates.backward(error, len(part))
            update = updates.step()
            assert update.items == len(rows)
            if world.first:
                print(update.loss, update.gradient_norm)
        assert len(meetings) == (6 if size > 1 else 0)  # one bucket, once a step
        if precision == "float32":
            assert math.isclose(schedule.get_last_lr()[0], 0.1 * 0.9**6)


@pytest.mark.parametrize(("size", "micro"), [(1, 3), (2, 1), (2, 3)])
def test_a_loss_curve_is_the_same_however_a_step_is_split(
    tmp_path: Path, size: int, micro: int
) -> None:
    """Over processes and micro-batches of different sizes, to rounding; clipping included."""
    curves = []
    for of in ((1, 1), (size, micro)):
        logs = tmp_path / f"logs-{of}"
        text = ranks.run(losses, of[0], logs, *of, "float32", tmp_path).text(0)
        curves.append([[float(word) for word in line.split()] for line in text.splitlines()])
    np.testing.assert_allclose(*curves, rtol=2e-6)
    assert curves[0][-1][0] < curves[0][0][0] * 0.8
    assert any(norm > 0.5 for _, norm in curves[0])  # it did clip


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_low_precision_learns_as_float32_does(
    precision: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    losses(1, 3, "float32", tmp_path)
    losses(1, 3, precision, tmp_path)
    lines = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(lines[6:], lines[:6], rtol=0.05)
    assert lines[6:] != lines[:6]


def test_the_scaler_goes_down_where_float16_overflows_and_is_kept() -> None:
    """No step is taken with infinite gradients; the scale is part of the state."""
    with distributed(seed=2) as world:
        model = world.wrap(nn.Linear(1, 1))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        updates = Updates(world, model, optimiser, precision="float16")
        row = torch.full((1, 1), 100.0, device=world.device)
        taken = []
        for _ in range(6):
            with updates.micro_batch(last=True):
                updates.backward(model(row).sum() * 10, 1)
            taken.append(updates.step().taken)
        assert not taken[0] and taken[-1]
        scale = updates.state_dict()["scale"]
        assert scale < SCALE
        other = Updates(world, model, optimiser, precision="float16")
        other.load_state_dict(updates.state_dict())
        assert other.state_dict()["scale"] == scale


def step(updates: Updates, model: nn.Module, *parts: torch.Tensor) -> bool:
    """Whether a step of these micro-batches was taken."""
    for number, part in enumerate(parts, start=1):
        with updates.micro_batch(last=number == len(parts)):
            updates.backward(model(part).square().sum(), len(part))
    return updates.step().taken


def test_a_step_that_is_not_taken_leaves_the_running_means_as_they_were() -> None:
    """Of BatchNorm: one NaN would stay in them for ever, and in each checkpoint."""
    with distributed(seed=2) as world:
        model = world.wrap(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)))
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

        rows = torch.randn(8, 2, device=world.device)
        assert step(updates, model, rows, rows)
        before = {name: of.clone() for name, of in model.named_buffers()}
        assert not step(updates, model, rows, rows * float("nan"))
        after = dict(model.named_buffers())
        assert torch.equal(after["0.running_mean"], before["0.running_mean"])
        assert step(updates, model, rows) and after["0.running_mean"].isfinite().all()
        assert not torch.equal(after["0.running_mean"], before["0.running_mean"])


def test_a_buffer_that_is_another_tensor_is_given_back_too() -> None:
    """And one of whole numbers, as those of batches that BatchNorm saw."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * rows.mean(0)
            self.count += 1
            return rows @ self.weight

    with distributed(seed=2) as world:
        model = world.wrap(Mean())
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

        ones = torch.ones(4, 2, device=world.device)
        none = ones * math.nan
        assert step(updates, model, ones) and not step(updates, model, ones, none)
        assert model.mean.tolist() == pytest.approx([0.1, 0.1]) and int(model.count) == 1
        assert step(updates, model, ones) and model.mean.tolist() == pytest.approx([0.19, 0.19])


def test_what_a_step_cannot_do_is_refused(tmp_path: Path) -> None:
    """A schedule that asks for a metric; a graph that DDP may not see without its sum."""
    with distributed() as world:
        optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser)
        with pytest.raises(ValueError, match="ReduceLROnPlateau needs a metric"):
            Updates(world, nn.Linear(1, 1), optimiser, schedule=plateau)
    ranks.run(with_a_static_graph, 2, tmp_path / "logs")


def with_a_static_graph() -> None:
    with distributed() as world:
        model = world.wrap(nn.Linear(1, 1), static_graph=True)
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
        with (
            pytest.raises(ValueError, match="remove it from `wrap`"),
            updates.micro_batch(last=False),
        ):
            pass


# The micro-batches of a step → why it is refused; `l` is one with last=True, `-` has no backward
# pass, `!` ends with an exception.
STEPS = {
    "": "without a micro-batch",
    "m": "no last=True",
    "mm": "no last=True",
    "lm": "after the one with last=True",
    "ll": "after the one with last=True",
    "ml-": "no backward pass",
    "l-": "no backward pass",
    "ml!": "an exception ended",
    "m!l": "an exception ended",
}


@pytest.mark.parametrize("size", [1, 2])
def test_steps_that_would_let_the_processes_differ_are_refused(size: int, tmp_path: Path) -> None:
    """Alike in one process and in two, also as the second step; no weight changes."""
    ranks.run(with_wrong_steps, size, tmp_path / "logs")


def with_wrong_steps() -> None:
    with distributed(seed=1) as world:
        for micro_batches, reason in STEPS.items():
            model = world.wrap(nn.Linear(1, 1))
            updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
            assert step(updates, model, torch.ones(2, 1, device=world.device))
            before = [weight.detach().clone() for weight in model.parameters()]
            with pytest.raises(ValueError, match=reason):
                run_step(updates, model, micro_batches, world.device)
            assert all(map(torch.equal, before, model.parameters()))


def run_step(updates: Updates, model: nn.Module, micro_batches: str, device: torch.device) -> None:
    """Run the micro-batches that the letters describe and take a step."""
    for kind, how in re.findall("([ml])([-!]?)", micro_batches):
        with suppress(OSError), updates.micro_batch(last=kind == "l"):
            if how != "-":
                loss = model(torch.ones(1, 1, device=device)).sum()
                updates.backward(loss, 1)
            if how == "!":
                raise OSError
    updates.step()


def test_a_step_of_no_items_is_refused() -> None:
    with distributed() as world:
        model = nn.Linear(1, 1)
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ValueError, match="no process has an item"):
            step(updates, model, torch.empty(0, 1))


def test_the_toolkit_is_there_without_torch() -> None:
    """Torch is an extra: the rest of ml.toolkit, and what imports it, never asks for it."""
    code = (
        "import pkgutil, importlib, sys\n"
        "sys.modules['torch'] = None\n"
        "import ml.toolkit\n"
        "for of in pkgutil.walk_packages(ml.toolkit.__path__, 'ml.toolkit.'):\n"
        "    if not of.name.startswith('ml.toolkit.torch.'): importlib.import_module(of.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_job_that_asks_for_a_gpu_fails_without_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And every other one logs the device that it has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="no-gpu"), distributed(device="cuda"):
        raise AssertionError("it has begun")
    for device in ("cpu", "auto"):
        with distributed(device=device) as world:
            assert world.device.type == "cpu"
        assert capfd.readouterr().err == "process 0 of 1: cpu (CPU)\n"


def test_a_machine_with_fewer_gpus_than_processes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of GPUs is what to set."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match=r"too-few-gpus.*\n.*per_instance to 1"), distributed():
        raise AssertionError("it has begun")
