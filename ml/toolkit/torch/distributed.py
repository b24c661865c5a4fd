"""The processes of a distributed job: how they find one another, wrap a model and sum a metric.

Azure ML gives a process of `distribution: pytorch` the variables RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT, and one of `mpi` Open MPI's OMPI_COMM_WORLD_* and AZ_BATCH_MASTER_NODE
(how-to-train-distributed-gpu). A process without any of them is a world of one: the same code runs.
"""

from __future__ import annotations

import os
import random
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

Strategy = Literal["ddp", "fsdp"]
Device = Literal["auto", "cpu", "cuda"]
# Where AZ_BATCH_MASTER_NODE is absent, and for its port, which is the one of the batch node.
MASTER_PORT = "29500"


@dataclass(frozen=True)
class World:
    """All processes of the job, and which of them this is."""

    rank: int
    size: int
    device: torch.device
    timeout_s: float = 600

    @property
    def first(self) -> bool:
        """Whether this process is the one that logs, and writes what is written once."""
        return self.rank == 0

    def wrap(
        self,
        model: nn.Module,
        strategy: Strategy = "ddp",
        *,
        groups: Sequence[nn.Module] | None = None,
        **options: Any,
    ) -> nn.Module:
        """Return the model on this process's device, its gradients averaged over all processes.

        `ddp` keeps the whole model in every process (DistributedDataParallel; one process trains
        the bare model). `fsdp` shards parameters, gradients and optimiser states: `fully_shard` of
        each of `groups`, inner modules first, then of the rest. Without them these are the members
        of every nn.ModuleList, as the layers of a transformer, and each child with parameters. A
        module that shares a parameter with others (tied embeddings) belongs to the rest. Both take
        `options` of DistributedDataParallel or fully_shard. Compile the model before this
        (`torch.compile` around DDP all-reduces several times a step), make the optimiser after it.
        """
        model = model.to(self.device)
        if strategy == "fsdp":
            mesh = dist.init_device_mesh(self.device.type, (self.size,))
            for block in (*(_fsdp_groups(model) if groups is None else groups), model):
                fully_shard(block, mesh=mesh, **options)
            return model
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, **options)
        # gloo's threads need the interpreter's lock to let go of a tensor. A group's own object
        # waits for them without that lock; a Reducer that dies as the last one to know the group
        # waits with it, for ever (pytorch/pytorch#56297).
        for part in (wrapped.reducer, wrapped.logger):  # which knows the Reducer
            weakref.finalize(part, _let_go, wrapped.process_group).atexit = False
        return wrapped

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the state_dict of the bare, whole model on the CPU, as to write it once; every
        process has to call it. Of a sharded model the first process alone has it.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: dict[str, Any] = get_model_state_dict(model, options=options)
        return weights

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every process, by rank, in every process."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all processes."""
        self.gather(None)

    def seed(self, seed: int, *, shared: bool = False) -> None:
        """Seed Python's, numpy's and torch's generators: with `shared` alike in every process, as
        the first weights need, else each by its rank, as dropout needs.
        """
        # Seeds of neighbouring jobs and ranks must not meet: both are spread over all 64 bits.
        words = np.random.SeedSequence([seed, 0 if shared else self.rank + 1]).generate_state(2)
        torch.manual_seed(int(words[0]))
        random.seed(int(words[1]))
        np.random.seed(int(words[1]))


class TrainingError(SystemExit):
    """Ends a script that does not catch it with the sentence and no traceback."""

    def __init__(self, code: str, actual: str, hint: str) -> None:
        super().__init__(f"error[{code}]: {actual}\n  hint: {hint}")


class RankLost(TrainingError):
    """Another process of the job is gone."""


# What gloo, NCCL and the store say of a process that has died or no longer answers.
_LOST = ("closed by peer", "reset by peer", "likely closed", "Broken pipe", "remote process")
_LATE = ("Timed out", "timed out", "timeout")


class Metrics:
    """Means and ratios of a metric's parts, right with batches and ranks of different sizes.

    A mean of means is wrong as soon as the last batch is smaller: what is added up is numerators
    and denominators, and they are divided once, over all processes.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, numerator: float, denominator: float = 1.0) -> None:
        """Count a part: the sum of a batch's losses and its rows, or hits and tries."""
        above, below = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = above + float(numerator), below + float(denominator)

    def reduce(self) -> dict[str, float]:
        """Each name's ratio over all processes, alike in every one, and start again from nothing.

        A name without any denominator is left out. Every process has to call it.
        """
        mine, self._sums = self._sums, {}
        for part in self._world.gather(mine):
            for name, sums in part.items():
                self.add(name, *sums)
        total, self._sums = self._sums, {}
        return {name: above / below for name, (above, below) in total.items() if below}

    def state_dict(self) -> dict[str, Any]:
        """Return what all processes have counted since `reduce`; every process has to call it."""
        mine = self._sums
        self._sums = {}
        for part in self._world.gather(mine):
            for name, sums in part.items():
                self.add(name, *sums)
        total, self._sums = self._sums, mine
        return total

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: the first process counts what all had."""
        self._sums = {
            name: (parts[0], parts[1]) for name, parts in state.items() if self._world.first
        }


@contextmanager
def distributed(
    seed: int | None = None, *, device: Device = "auto", timeout_s: float = 600
) -> Iterator[World]:
    """Yield the world of this job; its process group is closed after the context.

    gloo connects processes on CPUs; on GPUs NCCL sums gradients and gloo does the rest. Each
    process gets the GPU of its local rank. With `seed` the initial weights are the same in every
    process; `World.seed` then gives each its own. `device` is what the job requires: "cuda" raises
    TrainingError without a visible GPU, "auto" then uses the CPU; each process logs its device.
    Raises RankLost if another process died or did not join a collective within `timeout_s`;
    TrainingError if a machine has GPUs, but fewer than processes.
    """
    rank, size, local_rank = _ranks(os.environ)
    # Azure ML sets them for pytorch; Open MPI's processes find the master by another name.
    if size > 1 and "MASTER_ADDR" not in os.environ:
        address, _, port = os.environ.get("AZ_BATCH_MASTER_NODE", "127.0.0.1").partition(":")
        os.environ["MASTER_ADDR"] = address
        os.environ.setdefault("MASTER_PORT", port or MASTER_PORT)
    place, name = torch.device("cpu"), "CPU"
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError(
            "no-gpu",
            f"the job requests a GPU; process {rank}, with PyTorch {torch.__version__}, sees none",
            "on a GPU node use an environment with a CUDA build, such as ml-torch-gpu; elsewhere "
            "give the job the device cpu or auto, as `--set inputs.device=cpu`",
        )
    if device != "cpu" and torch.cuda.is_available():
        if local_rank >= (gpus := torch.cuda.device_count()):
            raise TrainingError(
                "too-few-gpus",
                f"process {rank} needs GPU {local_rank + 1}, and the machine has {gpus}",
                f"set distribution.process_count_per_instance to {gpus}, one process for each GPU",
            )
        place, name = torch.device("cuda", local_rank), torch.cuda.get_device_name(local_rank)
        torch.cuda.set_device(place)
    print(f"process {rank} of {size}: {place} ({name})", file=sys.stderr, flush=True)
    has_begun = is_over = False
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
            store=dist.HashStore() if size == 1 else _store(rank, size, timeout_s),
        )
        has_begun = True
        world = World(rank, size, place, timeout_s)
        if seed is not None:
            world.seed(seed, shared=True)
        yield world
        is_over = True
    except RuntimeError as error:
        cause = str(error).partition("\n")[0]
        if size > 1 and not has_begun and isinstance(error, dist.DistError):
            address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise RankLost(
                "rendezvous-failed",
                f"process {rank} did not connect to the other {size - 1} at {address}: {cause}",
                "read the log of the process that ended first, and of process 0, which listens "
                "there",
            ) from error
        if size > 1 and _is_loss(error, cause):
            raise RankLost(
                "rank-lost",
                f"process {rank} lost another process of the job: {cause}",
                "read the log of the process that ended first; a restarted job resumes from the "
                "last checkpoint",
            ) from error
        raise
    finally:
        # After an error NCCL would wait here for processes that wait for this one, and nobody
        # would read what the error was (pytorch/torchtitan#1342).
        if dist.is_initialized() and (is_over or size == 1 or place.type == "cpu"):
            dist.destroy_process_group()


def _is_loss(error: RuntimeError, cause: str) -> bool:
    """Whether an error is of the connection to other processes, and not of the training's own."""
    is_theirs = isinstance(error, dist.DistError) or "/gloo/" in cause
    return is_theirs and any(word in cause for word in (*_LOST, *_LATE))


# The store of all processes, which the first one has until it ends; and the groups that used it.
_stores: dict[tuple[str, str], dist.Store] = {}
_groups = count()


def _store(rank: int, size: int, timeout_s: float) -> dist.Store:
    """Return a store for one group. The master's port is one: a process that begins its next group
    while another still ends the one before would join a store that goes, or find the port taken.
    """
    address, port = (os.environ.get(f"MASTER_{name}", "") for name in ("ADDR", "PORT"))
    number, wait = next(_groups), timedelta(seconds=timeout_s)
    if (address, port) not in _stores:
        _stores[address, port] = next(dist.rendezvous("env://", rank, size, timeout=wait))[0]
    store = dist.PrefixStore(f"distributed-{number}", _stores[address, port])
    store.set_timeout(wait)
    return store


def _let_go(group: dist.ProcessGroup) -> None:
    """Called once a Reducer is gone: only then the group's object may go, too."""


def _fsdp_groups(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are sharded one by one, without those that share a parameter."""
    counts = Counter(map(id, _parameters(model)))
    return [
        block
        for block in _blocks(model)
        if all(counts[key] == count for key, count in Counter(map(id, _parameters(block))).items())
    ]


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """Each as often as it has a name."""
    return [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the children that have parameters, each after the members of the lists in it; of a
    list, which has no forward pass, its members.
    """
    for child in model.children():
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if is_list or any(isinstance(part, nn.ModuleList) for part in child.modules()):
            yield from _blocks(child)
        if not is_list and next(child.parameters(), None) is not None:
            yield child


def _ranks(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, size and local rank by the environment; ValueError where a part lacks."""
    for size, prefix in (("WORLD_SIZE", ""), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_")):
        if size in environment:
            try:
                rank, local = (
                    int(environment[f"{prefix}{name}"]) for name in ("RANK", "LOCAL_RANK")
                )
            except KeyError as missing:
                raise ValueError(f"{size} is set, and {missing} is not") from None
            return rank, int(environment[size]), local
    return 0, 1, 0
