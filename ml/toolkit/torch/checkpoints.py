"""Asynchronous, atomic checkpoints of a training, verified before they are loaded.

A checkpoint is a folder `step-00000120` with torch.distributed.checkpoint's (DCP) files (tensors;
each process writes its share), `state.json` (other state), `rank-N.json` (the random state of a
process) and `manifest.json` (the sha256 of every file). It is written in another folder and
renamed. On a mounted container a rename is not atomic, so the manifest decides whether a checkpoint
is complete. If two trainings write to one folder, every change by the older one fails
(`generations`).

The snapshot is copied during the next forward and backward passes. A hook of the optimiser waits
for the copy before its next step. Buffers (such as BatchNorm's) change in a forward pass, so they
are copied at once. Nothing else may change weights in between. An FSDP model waits until its
checkpoint is written.
"""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ml.toolkit.torch import snapshot, stored
from ml.toolkit.torch.distributed import TrainingError, World
from ml.toolkit.torch.generations import Generation, Superseded
from ml.toolkit.torch.loading import Batches
from ml.toolkit.torch.preemption import SCHEDULED_EVENTS, Preempted, PreemptionMonitor

PREFIX = "step-"
_ASIDE = ".set-aside"
_FULL = 1 << 20  # with fewer free bytes, a failed write counts as a full disk


class CheckpointError(TrainingError):
    """Raised if a checkpoint cannot be written or read."""


class Checkpoints:
    """The checkpoints of one training in `folder`, a job output that survives a restart.

    state: name → part with `state_dict` and `load_state_dict` (models, optimisers, schedules,
      `Updates`, `Batches`, `Metrics`). Parts that are neither models nor optimisers must be equal
      in all processes. Buffers are saved from the first process only; those of the others are lost
      with `fsdp` or `broadcast_buffers=False`. Random states are saved per process.
    every_steps, every_s: interval of checkpoints in steps or seconds; a step with a metric always
      has one.
    keep_last: number of checkpoints to keep.
    events: the URL of Azure's Scheduled Events, or None.
    progress: called from any thread while files are read or written, such as `Watchdog.alive`.

    Every process creates one with the same arguments, and calls its methods at the same steps.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        state: Mapping[str, Any],
        *,
        every_steps: int | None = None,
        every_s: float | None = None,
        keep_last: int = 2,
        events: str | None = SCHEDULED_EVENTS,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        if keep_last < 1:
            raise ValueError("keep_last is at least 1")
        self.folder, self.blocked_s = Path(folder), 0.0
        self._world, self._every_steps, self._every_s = world, every_steps, every_s
        self._keep_last = keep_last
        self._state = {name: _bare(part) for name, part in state.items()}
        self._preemption = PreemptionMonitor(events)
        # The writer thread needs its own process group, apart from the training's collectives.
        self._writing = dist.new_group(backend="gloo", timeout=timedelta(seconds=world.timeout_s))
        self._stager = snapshot.Stager()
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._staging: Future[None] | None = None
        self._published: Future[None] | None = None
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._noticed = False
        self._progress = progress
        self._held: int | None = None

    def __enter__(self) -> Self:
        claimed = Generation.claim(self.folder).number if self._world.first else 0
        self._generation = Generation(self.folder, self._world.gather(claimed)[0])
        self._demand_shared()
        self._preemption.__enter__()
        self._hooks = [
            part.register_step_pre_hook(lambda *_: self.join())
            for part in self._state.values()
            if isinstance(part, torch.optim.Optimizer)
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        try:
            self.finish()
            if kind is None:
                self._world.barrier()  # another process may still be receiving data from this one
                dist.destroy_process_group(self._writing)
        except (CheckpointError, RuntimeError):
            if kind is None:
                raise
        finally:
            self._preemption.__exit__()
            self._finisher.shutdown()
            self._stager.close()

    def after_step(self, step: int, metric: float | None = None) -> None:
        """Call after each step: save a checkpoint if one is due, and always with a `metric`.

        The manifest records the metric. After SIGTERM to any process, all processes save and raise
        Preempted (exit code 143). Raises CheckpointError if an earlier save failed.
        """
        began = time.perf_counter()
        late = self._every_s is not None and time.monotonic() - self._saved_at >= self._every_s
        published = self._published
        failed = published is not None and published.done() and bool(published.exception())
        preemption = self._preemption
        agreed = torch.tensor(
            [preemption.shutting_down, bool(preemption.noticed), late, failed], dtype=torch.int32
        )
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        shutting_down, noticed, late, failed = agreed.bool().tolist()
        if failed:
            self.finish()  # raises, in every process
        due = late or metric is not None
        due |= self._every_steps is not None and step % self._every_steps == 0
        if noticed and not self._noticed:
            self._say(
                f"step {step}: preemption notice ({self._preemption.noticed}); saving a checkpoint"
            )
            self._noticed = due = True
        if due or (shutting_down and self._saved_step != step):
            self._begin(step, metric)
        self.blocked_s += time.perf_counter() - began
        if shutting_down:
            self.finish()
            self._say(f"step {step}: received SIGTERM; saved a checkpoint")
            raise Preempted(step)

    def save(self, step: int, metric: float | None = None) -> None:
        """Save a checkpoint and wait for it; skip if this step is saved and `metric` is None."""
        if self._saved_step != step or metric is not None:
            self._begin(step, metric)
        self.finish()

    def join(self) -> None:
        """Wait until the snapshot is copied; weights may then change."""
        if self._staging is not None:
            began = time.perf_counter()
            self._staging.result()
            self._staging = None
            self.blocked_s += time.perf_counter() - began

    def finish(self) -> None:
        """Wait for the checkpoint in progress; raise CheckpointError if it failed."""
        self.join()
        published, self._published = self._published, None
        if published is not None:
            published.result()

    def hold(self, before: int | None) -> None:
        """Also keep the `keep_last` newest checkpoints before step `before`; None ends that."""
        self._held = before

    def restore(self) -> int:
        """Load the newest intact checkpoint and return its step, or 0 without any.

        Damaged checkpoints are renamed with a warning. Raises CheckpointError for an intact
        checkpoint of another model.
        """
        return self._restore(None) or 0

    def go_back(self, before: int) -> int | None:
        """Load the newest intact checkpoint before step `before` and return its step.

        Later checkpoints are renamed; the position in the data (`Batches`) does not change.
        Returns None, and keeps later checkpoints, if there is no earlier one.
        """
        return self._restore(before)

    def _restore(self, before: int | None) -> int | None:
        self.finish()
        numbers: list[int] = self._world.gather(sorted(_steps(self.folder), reverse=True))[0]
        later = [step for step in numbers if before is not None and step >= before]
        for step in numbers[len(later) :]:
            folder = self._place(step)
            problem, manifest = self._checked(folder)
            if isinstance(problem, stored.Foreign):
                raise CheckpointError(
                    "checkpoint-mismatch",
                    f"{folder} is a checkpoint of another model: {problem}",
                    "use a new folder for this training, or delete that model's checkpoints",
                )
            if manifest is None:
                self._set_aside(folder, str(problem))
                continue
            for later_step in later:
                self._set_aside(self._place(later_step), "the training returned to an earlier step")
            self._load(folder, manifest, onwards=before is not None)
            self._say(f"resuming from {folder.name}")
            self._saved_step = step
            return step
        return None

    def _demand_shared(self) -> None:
        """Raise CheckpointError if a process does not see files that the first process writes."""
        seen = self._world.gather(self._generation.newest >= self._generation.number)
        if not all(seen):
            blind = ", ".join(str(rank) for rank, sees in enumerate(seen) if not sees)
            raise CheckpointError(
                "folder-not-shared",
                f"process {blind} does not see {self.folder} of process 0",
                "give all processes one folder, as a mounted output of the job is",
            )

    def _begin(self, step: int, metric: float | None) -> None:
        self.finish()
        metric = None if metric is None else float(metric)  # JSON does not support numpy numbers
        facts, tensors, volatile = self._tensors()
        texts = {stored.rank_file(self._world.rank): json.dumps(snapshot.random_state())}
        if self._world.first:
            texts[stored.STATE] = json.dumps(facts)
        unfinished = self._generation.path / self._place(step).name
        self._stager.volatile = volatile
        response = dcp.async_save(
            tensors,
            storage_writer=dcp.FileSystemWriter(unfinished),
            process_group=self._writing,
            async_stager=self._stager,
            planner=stored.SavePlanner(self._progress),
        )
        assert isinstance(response, AsyncSaveResponse)
        self._staging = response.staging_completion
        self._published = self._finisher.submit(
            self._finish, unfinished, step, metric, texts, response.upload_completion
        )
        self._saved_step, self._saved_at = step, time.monotonic()
        if not any(isinstance(part, torch.optim.Optimizer) for part in self._state.values()):
            self.join()  # without an optimiser, no hook waits for the copy
        if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
            # With torch 2.13 on CPUs, a backward pass of fully_shard fails if another thread saves
            # at the same time ("setStorage: … out of bounds"), in 9 of 12 trainings.
            self.finish()

    def _finish(
        self,
        unfinished: Path,
        step: int,
        metric: float | None,
        texts: Mapping[str, str],
        upload: Future[Any],
    ) -> None:
        """Wait for DCP's files, write the manifest, rename the folder, delete old checkpoints.

        Runs in a thread.
        """
        done: dict[str, str] | BaseException
        try:
            upload.result()
            for name, text in texts.items():
                stored.write_file(unfinished / name, text)
            written = [
                *unfinished.glob(f"__{self._world.rank}_*"),
                *map(unfinished.joinpath, texts),
            ]
            written += [unfinished / ".metadata"] if self._world.first else []
            done = {path.name: stored.digest(path, self._progress) for path in written}
        except BaseException as error:
            done = error
        files = {
            name: sha256 for part in self._gather_results(done) for name, sha256 in part.items()
        }
        done = {}
        if self._world.first:
            try:
                manifest = stored.Manifest(step, metric, self._world.size, self._weights(), files)
                stored.write_manifest(unfinished, manifest)
                stored.sync_folder(unfinished)
                self._generation.publish(unfinished, unfinished.name)
                stored.sync_folder(self.folder)
                self._forget()
            except (OSError, Superseded) as error:
                done = error
        self._gather_results(done)

    def _gather_results(self, done: dict[str, str] | BaseException) -> list[dict[str, str]]:
        """Return the results of all processes; raise CheckpointError in all if one failed.

        A failure removes the unfinished checkpoint.
        """
        parts: list[Any] = [None] * self._world.size
        mine = self._describe_failure(done) if isinstance(done, BaseException) else done
        dist.all_gather_object(parts, mine, group=self._writing)
        for rank, part in enumerate(parts):
            if isinstance(part, tuple):
                if self._world.first:
                    self._generation.clear()
                code, sentence = part
                if code == Superseded.__name__:
                    raise self._superseded(sentence)
                raise CheckpointError(
                    code,
                    f"{self.folder}: process {rank} did not write the checkpoint: {sentence}",
                    "earlier checkpoints are intact: free space, then start the training again",
                )
        return parts

    def _describe_failure(self, problem: BaseException) -> tuple[str, str]:
        """Return (code, message) of a failure; a newer generation takes precedence as the cause."""
        try:
            self._generation.demand()
        except Superseded as superseded:
            return Superseded.__name__, str(superseded)
        return _describe_failure(problem, self.folder)

    def _superseded(self, sentence: str) -> CheckpointError:
        return CheckpointError(
            "checkpoint-generation",
            f"{self.folder}: {sentence}",
            "end this process, unless torchrun restarts it; the newer start continues from the "
            "last checkpoint",
        )

    def _forget(self) -> None:
        """Delete readable checkpoints except the newest `keep_last` and the held ones."""
        steps = []
        for step in sorted(_steps(self.folder)):
            with suppress(stored.Unusable):
                stored.read_manifest(self._place(step))
                steps.append(step)
        durable = [step for step in steps if self._held is not None and step < self._held]
        for step in {*steps} - {*steps[-self._keep_last :], *durable[-self._keep_last :]}:
            self._generation.remove(self._place(step).name)

    def _tensors(self) -> tuple[dict[str, Any], dict[str, torch.Tensor], set[str]]:
        """Return (JSON state, this process's tensors, names of tensors to copy synchronously)."""
        facts: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        volatile: set[str] = set()
        for name, part in self._state.items():
            mine: dict[str, torch.Tensor] = {}
            try:
                facts[name] = snapshot.pack(part.state_dict(), name, mine)
            except TypeError as error:
                raise CheckpointError(
                    "unsaved-state",
                    str(error),
                    "give it a state_dict of numbers, texts and tensors",
                ) from None
            lasting = set(mine)
            if isinstance(part, nn.Module):
                lasting = {
                    f"{name}/{parameter}"
                    for parameter, _ in part.named_parameters(remove_duplicate=False)
                }
            elif not isinstance(part, torch.optim.Optimizer):
                lasting = set()
            for key in mine.keys() - lasting:
                # Save the first process's buffers only, which DDP broadcasts.
                if not self._world.first and not isinstance(mine[key], DTensor):
                    del mine[key]
                else:
                    volatile.add(key)
            tensors |= mine
        return facts, tensors, volatile

    def _weights(self) -> dict[str, list[Any]]:
        return {
            f"{name}/{key}": [list(value.shape), str(value.dtype)]
            for name, part in self._state.items()
            if isinstance(part, nn.Module)
            for key, value in part.state_dict().items()
            if isinstance(value, torch.Tensor)
        }

    def _checked(self, folder: Path) -> tuple[stored.Unusable | None, stored.Manifest | None]:
        """Verify a checkpoint; return (problem, None) or (None, manifest), equal in all processes.

        Each process verifies a share of the files.
        """
        problem: stored.Unusable | None = None
        manifest = None
        try:
            manifest = stored.read_manifest(folder)
            share = self._world.rank, self._world.size
            stored.check_files(folder, manifest, *share, self._progress)
            stored.check_weights(manifest, self._weights())
        except stored.Unusable as error:
            problem = error
        problem = next(filter(None, self._world.gather(problem)), None)
        return problem, manifest if problem is None else None

    def _load(self, folder: Path, manifest: stored.Manifest, onwards: bool) -> None:
        facts = json.loads((folder / stored.STATE).read_text(encoding="utf-8"))
        if facts.keys() != self._state.keys():
            raise CheckpointError(
                "checkpoint-mismatch",
                f"{folder} holds {', '.join(sorted(facts))}; this training saves "
                f"{', '.join(sorted(self._state))}",
                "use a new folder for this training",
            )
        for name, part in self._state.items():
            if isinstance(part, torch.optim.Optimizer) and not _is_alike(facts[name], part):
                raise CheckpointError(
                    "checkpoint-mismatch",
                    f"{folder}: {name} was saved by another optimiser than {type(part).__name__}, "
                    "or with other parameter groups",
                    "use a new folder for this training",
                )
        reader = stored.Reader(folder)
        kinds = reader.read_metadata().state_dict_metadata
        tensors: dict[str, torch.Tensor] = {}
        parts = {
            name: part
            for name, part in self._state.items()
            if not (onwards and isinstance(part, Batches))
        }
        for name, part in parts.items():
            tensors |= dict(_places(part, name, facts[name], kinds))
        dcp.load(
            tensors,
            storage_reader=reader,
            process_group=self._writing,
            planner=stored.LoadPlanner(self._progress),
        )
        for name, part in parts.items():
            part.load_state_dict(snapshot.unpack(facts[name], tensors))
        if manifest.processes == self._world.size:
            mine = folder / stored.rank_file(self._world.rank)
            snapshot.set_random_state(json.loads(mine.read_text(encoding="utf-8")))
        else:
            self._say(
                f"{manifest.processes} processes wrote {folder.name}, this job has "
                f"{self._world.size}: the random states are seeded from the step"
            )
            self._world.seed(manifest.step)

    def _set_aside(self, folder: Path, why: str) -> None:
        self._say(f"skipped {folder.name}: {why}")
        superseded = ""
        if self._world.first:
            names = (f"{folder.name}{_ASIDE}-{number}" for number in itertools.count(1))
            target = next(path for path in map(folder.with_name, names) if not path.exists())
            try:
                self._generation.publish(self._generation.withdraw(folder.name), target.name)
            except Superseded as error:
                superseded = str(error)
        if superseded := self._world.gather(superseded)[0]:
            raise self._superseded(superseded)

    def _place(self, step: int) -> Path:
        return self.folder / f"{PREFIX}{step:08}"

    def _say(self, sentence: str) -> None:
        if self._world.first:
            print(f"checkpoints: {sentence}", file=sys.stderr, flush=True)


def _bare(part: Any) -> Any:
    return part.module if isinstance(part, DistributedDataParallel) else part


def _steps(folder: Path) -> list[int]:
    names = [path.name.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*") if path.is_dir()]
    return [int(name) for name in names if name.isdecimal()]


def _places(
    part: Any, name: str, facts: snapshot.Facts, kinds: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, destination tensor) for DCP to load a part.

    A model's tensors are loaded in place; an optimiser's are sharded like their parameters.
    """
    if isinstance(part, nn.Module):
        for key, tensor in part.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                yield f"{name}/{key}", tensor
        return
    parameters: list[torch.Tensor] = []
    if isinstance(part, torch.optim.Optimizer):
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    for key in snapshot.names(facts):
        kind = kinds[key]
        words = key.removeprefix(f"{name}/").split("/")
        parameter = parameters[int(words[1])] if parameters and words[0] == "state" else None
        if (
            parameter is not None
            and parameter.shape == kind.size
            and isinstance(parameter, DTensor)
        ):
            yield key, torch.zeros_like(parameter, dtype=kind.properties.dtype)
        else:
            yield key, torch.empty(kind.size, dtype=kind.properties.dtype)


def _is_alike(facts: snapshot.Facts, optimiser: torch.optim.Optimizer) -> bool:
    """Return whether a saved optimiser's parameter groups match `optimiser`.

    `optimiser` may have more settings, from a newer torch.
    """
    groups, current_groups = facts["param_groups"], optimiser.param_groups
    return len(groups) == len(current_groups) and all(
        group.keys() <= current.keys() and len(group["params"]) == len(current["params"])
        for group, current in zip(groups, current_groups, strict=True)
    )


def _describe_failure(problem: BaseException, folder: Path) -> tuple[str, str]:
    """Return (error code, message) of a failed write; unwrap the exceptions of DCP's processes."""
    causes = [*getattr(problem, "failures", {}).values()]
    cause = causes[0][0] if causes else problem
    number = getattr(cause, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk-full", str(cause)
    lines = str(cause).strip().splitlines()
    sentence = f"{type(cause).__name__}: {lines[-1] if lines else ''}"
    # torch's file writer does not report why it failed.
    with suppress(OSError):
        if shutil.disk_usage(folder).free < _FULL:
            return "disk-full", sentence
    return "checkpoint-failed", sentence
