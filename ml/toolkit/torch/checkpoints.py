"""Checkpoints of a training: complete, whole or not there, checked before anything opens them.

A checkpoint is a folder `step-00000120` with torch.distributed.checkpoint's files (tensors; each
process writes its share), `state.json` (all else), `rank-N.json` (the random state of a process)
and `manifest.json`: the sha256 of every file. It is written elsewhere and renamed. On a mounted
container a rename is not one act, so the manifest decides what is whole. If two trainings write one
folder, every change by the older one fails (`generations`).

A snapshot is copied while the next forward and backward passes run, and is joined before the
optimiser's next step, which a hook of the optimiser sees to. Buffers (as BatchNorm's), which a
forward pass changes, are copied at once. Nothing else may change weights in between. A sharded
model (`fsdp`) waits until its checkpoint is written.
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
_FULL = 1 << 20  # so few free bytes are a full disk: blocks of less are left behind a failed write


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read."""


class Checkpoints:
    """The checkpoints of one training in `folder`, a declared output that survives a restart.

    state: what is kept, by name: each has `state_dict` and `load_state_dict` (models, optimisers,
    schedules, `Updates`, `Batches`, `Metrics`). What is no model's or optimiser's has to be alike
    in every process. The random states of every process are kept besides. A model's buffers are
    those of the first process, which DDP gives to all at each pass; where it does not (`fsdp`, or
    `broadcast_buffers=False`) those of the others are not kept.
    every_steps, every_s: when a checkpoint is due, besides after each step that has a metric.
    keep_last: how many stay.
    events: the address of Azure's Scheduled Events, or None.
    progress: called while files are read or written, from any thread, as `Watchdog.alive` wants.

    Every process makes one, alike, and calls its methods at the same steps.
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
        # Threads of one process must not meet others' in one group: each needs its own.
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
                self._world.barrier()  # a process may still read what this one has sent
                dist.destroy_process_group(self._writing)
        except (CheckpointError, RuntimeError):
            if kind is None:
                raise
        finally:
            self._preemption.__exit__()
            self._finisher.shutdown()
            self._stager.close()

    def after(self, step: int, metric: float | None = None) -> None:
        """Save what is due after `step` steps; with a `metric`, which the manifest states, always.

        After SIGTERM to any process, all save and Preempted ends them with exit code 143.
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
        """Save now, unless this step was saved, and wait until it is there."""
        if self._saved_step != step or metric is not None:
            self._begin(step, metric)
        self.finish()

    def join(self) -> None:
        """Wait until the snapshot is copied: weights may change afterwards."""
        if self._staging is not None:
            began = time.perf_counter()
            self._staging.result()
            self._staging = None
            self.blocked_s += time.perf_counter() - began

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is there; raises CheckpointError."""
        self.join()
        published, self._published = self._published, None
        if published is not None:
            published.result()

    def hold(self, before: int | None) -> None:
        """Keep the `keep_last` newest checkpoints before this step, too, until told None."""
        self._held = before

    def restore(self) -> int:
        """Load the newest intact checkpoint and return its step; 0 without any.

        Damaged checkpoints are set aside with a warning. Raises CheckpointError for an intact
        checkpoint of another model: the folder belongs to another training.
        """
        return self._restore(None) or 0

    def go_back(self, before: int) -> int | None:
        """Load the newest intact checkpoint before step `before` and return its step.

        Later checkpoints are set aside; the position in the data (`Batches`) does not change.
        Returns None, and sets nothing aside, if there is no earlier checkpoint.
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
        """Raises CheckpointError where a process does not see what the first one writes."""
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
        metric = None if metric is None else float(metric)  # numpy's own numbers are no JSON
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
            self.join()  # no hook sees that the copy is there before weights change
        if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
            # With torch 2.13 on CPUs a backward pass of fully_shard fails where another thread
            # saves at the same time ("setStorage: … out of bounds"), in 9 of 12 trainings.
            self.finish()

    def _finish(
        self,
        unfinished: Path,
        step: int,
        metric: float | None,
        texts: Mapping[str, str],
        upload: Future[Any],
    ) -> None:
        """In a thread: wait for DCP's files, then manifest, rename, and forget old ones."""
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
        files = {name: sha256 for part in self._together(done) for name, sha256 in part.items()}
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
        self._together(done)

    def _together(self, done: dict[str, str] | BaseException) -> list[dict[str, str]]:
        """Return the results of all processes; if one failed, fail in all.

        The unfinished checkpoint is then removed.
        """
        parts: list[Any] = [None] * self._world.size
        mine = self._sentence(done) if isinstance(done, BaseException) else done
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

    def _sentence(self, problem: BaseException) -> tuple[str, str]:
        """See `_sentence`; a newer generation is the cause of whatever failed."""
        try:
            self._generation.demand()
        except Superseded as superseded:
            return Superseded.__name__, str(superseded)
        return _sentence(problem, self.folder)

    def _superseded(self, sentence: str) -> CheckpointError:
        return CheckpointError(
            "checkpoint-generation",
            f"{self.folder}: {sentence}",
            "end this process, unless torchrun restarts it; the newer start continues from the "
            "last checkpoint",
        )

    def _forget(self) -> None:
        """Remove all but the last ones and those that are held, of those that can be read."""
        steps = []
        for step in sorted(_steps(self.folder)):
            with suppress(stored.Unusable):
                stored.read_manifest(self._place(step))
                steps.append(step)
        durable = [step for step in steps if self._held is not None and step < self._held]
        for step in {*steps} - {*steps[-self._keep_last :], *durable[-self._keep_last :]}:
            self._generation.remove(self._place(step).name)

    def _tensors(self) -> tuple[dict[str, Any], dict[str, torch.Tensor], set[str]]:
        """Return what is kept: facts as JSON, this process's tensors, and which to copy at once."""
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
                # Buffers differ between processes; those of the first are what DDP goes on with.
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
        """Return what is wrong with a checkpoint, or its manifest; the processes share the reading,
        and agree.
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
    """Yield where DCP is to put each tensor of a part: a model's are read in place, and those of an
    optimiser are sharded as their parameters are.
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
    """Whether a saved optimiser has groups as this one's; newer torch may know more settings."""
    groups, current_groups = facts["param_groups"], optimiser.param_groups
    return len(groups) == len(current_groups) and all(
        group.keys() <= current.keys() and len(group["params"]) == len(current["params"])
        for group, current in zip(groups, current_groups, strict=True)
    )


def _sentence(problem: BaseException, folder: Path) -> tuple[str, str]:
    """Return the code and the sentence of a failed write; DCP wraps what its processes raised."""
    causes = [*getattr(problem, "failures", {}).values()]
    cause = causes[0][0] if causes else problem
    number = getattr(cause, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk-full", str(cause)
    lines = str(cause).strip().splitlines()
    sentence = f"{type(cause).__name__}: {lines[-1] if lines else ''}"
    # torch's own writer of files does not say why it failed.
    with suppress(OSError):
        if shutil.disk_usage(folder).free < _FULL:
            return "disk-full", sentence
    return "checkpoint-failed", sentence
