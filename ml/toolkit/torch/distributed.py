"""The processes of a distributed job: rendezvous, model wrapping and metric reduction.

Azure ML sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for `distribution: pytorch`,
and OMPI_COMM_WORLD_* and AZ_BATCH_MASTER_NODE for `mpi` (how-to-train-distributed-gpu). Without
these environment variables, the world has one process and the same code runs.
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
# Default port if AZ_BATCH_MASTER_NODE is absent or has none.
MASTER_PORT = "29500"


@dataclass(frozen=True)
class World:
    """The processes of the job, and this process's place among them."""

    rank: int  # of this process, from 0
    size: int  # number of processes
    device: torch.device  # of this process
    timeout_s: float = 600  # of collectives

    @property
    def first(self) -> bool:
        """Whether this is the first process, the only one that logs and writes shared files."""
        return self.rank == 0

    def wrap(
        self,
        model: nn.Module,
        strategy: Strategy = "ddp",
        *,
        groups: Sequence[nn.Module] | None = None,
        **options: Any,
    ) -> nn.Module:
        """Return the model on this process's device, with gradients averaged over all processes.

        `ddp` replicates the model (DistributedDataParallel; a single process gets the bare model).
        `fsdp` shards parameters, gradients and optimiser states: it applies `fully_shard` to each
        of `groups`, inner modules first, then to the rest. Default groups are the members of every
        nn.ModuleList (such as transformer layers) and each child with parameters, except modules
        with shared parameters (tied embeddings). `options` are those of DistributedDataParallel or
        fully_shard. Compile the model before this call (`torch.compile` around DDP all-reduces
        several times per step); create the optimiser after it.
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
        # Avoid a deadlock: gloo's threads need the GIL to release a tensor. The process group's
        # destructor waits for them without the GIL, but a Reducer with the last reference to the
        # group waits while it holds the GIL (pytorch/pytorch#56297). So keep a reference.
        for part in (wrapped.reducer, wrapped.logger):  # the logger references the Reducer
            weakref.finalize(part, _let_go, wrapped.process_group).atexit = False
        return wrapped

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the full, unsharded state_dict of the bare model on the CPU.

        Every process must call it. For an FSDP model, only the first process gets the weights.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: dict[str, Any] = get_model_state_dict(model, options=options)
        return weights

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, ordered by rank, in every process."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all processes."""
        self.gather(None)

    def seed(self, seed: int, *, shared: bool = False) -> None:
        """Seed the generators of Python, numpy and torch.

        With `shared`, all processes get the same seed, for initial weights; otherwise each rank
        gets its own, for dropout.
        """
        # SeedSequence avoids equal seeds of neighbouring jobs and ranks.
        words = np.random.SeedSequence([seed, 0 if shared else self.rank + 1]).generate_state(2)
        torch.manual_seed(int(words[0]))
        random.seed(int(words[1]))
        np.random.seed(int(words[1]))


class TrainingError(SystemExit):
    """An error that exits with its message, without a traceback, unless it is caught."""

    def __init__(self, code: str, actual: str, hint: str) -> None:
        super().__init__(f"error[{code}]: {actual}\n  hint: {hint}")


class RankLost(TrainingError):
    """Raised if another process of the job has ended or does not respond."""


# Texts in errors of gloo, NCCL and the store about a process that has ended or does not respond.
_LOST = ("closed by peer", "reset by peer", "likely closed", "Broken pipe", "remote process")
_LATE = ("Timed out", "timed out", "timeout")


class Metrics:
    """Means and ratios over all processes, exact for batches and ranks of different sizes.

    It sums numerators and denominators and divides once, because a mean of means is wrong if the
    last batch is smaller.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, numerator: float, denominator: float = 1.0) -> None:
        """Add to the sums of a metric: such as a batch's summed loss and its number of rows."""
        above, below = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = above + float(numerator), below + float(denominator)

    def reduce(self) -> dict[str, float]:
        """Return the ratio of each metric over all processes, and reset the sums.

        Metrics with a zero denominator are left out. Every process must call it; all get the same
        result.
        """
        mine, self._sums = self._sums, {}
        for part in self._world.gather(mine):
            for name, sums in part.items():
                self.add(name, *sums)
        total, self._sums = self._sums, {}
        return {name: above / below for name, (above, below) in total.items() if below}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of all processes since `reduce`; every process must call it."""
        mine = self._sums
        self._sums = {}
        for part in self._world.gather(mine):
            for name, sums in part.items():
                self.add(name, *sums)
        total, self._sums = self._sums, mine
        return total

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums of all processes into the first process."""
        self._sums = {
            name: (parts[0], parts[1]) for name, parts in state.items() if self._world.first
        }


@contextmanager
def distributed(
    seed: int | None = None, *, device: Device = "auto", timeout_s: float = 600
) -> Iterator[World]:
    """Yield the world of this job, and destroy its process group afterwards.

    The backend is gloo on CPUs, and NCCL on GPUs with gloo for CPU tensors. Each process gets the
    GPU of its local rank and logs its device. `seed` seeds all processes alike, for equal initial
    weights; call `World.seed` later for a seed per rank. `device="cuda"` raises TrainingError
    without a visible GPU; "auto" then uses the CPU.

    Raises RankLost if another process died or did not join a collective within `timeout_s`, and
    TrainingError if a machine has fewer GPUs than processes.
    """
    rank, size, local_rank = _ranks(os.environ)
    # Azure ML sets MASTER_ADDR for pytorch; Open MPI's processes get AZ_BATCH_MASTER_NODE instead.
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
        # After an error, NCCL would deadlock here and hide the error (pytorch/torchtitan#1342).
        if dist.is_initialized() and (is_over or size == 1 or place.type == "cpu"):
            dist.destroy_process_group()


def _is_loss(error: RuntimeError, cause: str) -> bool:
    """Return whether an error is a lost connection to other processes, not one of the training."""
    is_theirs = isinstance(error, dist.DistError) or "/gloo/" in cause
    return is_theirs and any(word in cause for word in (*_LOST, *_LATE))


# The TCP store of all processes by (address, port), hosted by the first process until it exits; the
# number of groups that used it.
_stores: dict[tuple[str, str], dist.Store] = {}
_groups = count()


def _store(rank: int, size: int, timeout_s: float) -> dist.Store:
    """Return a store for one process group.

    All groups share one TCP store with a prefix per group. A new TCP store per group would race
    with the previous one for the port.
    """
    address, port = (os.environ.get(f"MASTER_{name}", "") for name in ("ADDR", "PORT"))
    number, wait = next(_groups), timedelta(seconds=timeout_s)
    if (address, port) not in _stores:
        _stores[address, port] = next(dist.rendezvous("env://", rank, size, timeout=wait))[0]
    store = dist.PrefixStore(f"distributed-{number}", _stores[address, port])
    store.set_timeout(wait)
    return store


def _let_go(group: dist.ProcessGroup) -> None:
    """Hold a reference to the group until its Reducer is destroyed; see `World.wrap`."""


def _fsdp_groups(model: nn.Module) -> list[nn.Module]:
    """Return the default modules to shard separately, without those with shared parameters."""
    counts = Counter(map(id, _parameters(model)))
    return [
        block
        for block in _blocks(model)
        if all(counts[key] == count for key, count in Counter(map(id, _parameters(block))).items())
    ]


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters; one with several names occurs several times."""
    return [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the children with parameters, inner modules first.

    Instead of a ModuleList or ModuleDict, which has no forward pass, its members are yielded.
    """
    for child in model.children():
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if is_list or any(isinstance(part, nn.ModuleList) for part in child.modules()):
            yield from _blocks(child)
        if not is_list and next(child.parameters(), None) is not None:
            yield child


def _ranks(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Return (rank, size, local rank) from environment variables.

    Raises ValueError if RANK or LOCAL_RANK is missing.
    """
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
