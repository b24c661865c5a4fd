"""Load batches from sharded, memory-mapped arrays: shuffled, prefetched, resumable mid-epoch.

`write_shards` writes each column of a chunk as a .npy file; `Shards` maps them into memory.
`Batches` yields each process's part of every step and can prefetch whole shards. The rows of a step
depend only on the seed, the epoch and the step. A training can therefore resume with another number
of processes or threads.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml.toolkit.torch.distributed import TrainingError, World

INDEX = "index.json"
Rows = dict[str, NDArray[Any]]
Held = Mapping[int, Future[Rows]]
Batch = dict[str, torch.Tensor]


def write_shards(folder: Path, chunks: Iterable[Mapping[str, NDArray[Any]]]) -> int:
    """Write one shard per chunk of columns; return the total number of rows.

    All chunks must have the same columns, dtypes (with text length, time unit and byte order) and
    row shapes; otherwise it raises ValueError, because numpy would cast values silently. The index
    is written last, so a folder without an index is incomplete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    rows: list[int] = []
    layouts: dict[str, str] = {}
    files: dict[str, int] = {}
    for number, chunk in enumerate(chunks):
        if wrong := [name for name in chunk if not re.fullmatch(r"\w[\w .-]*", name)]:
            raise ValueError(f"{wrong[0]!r} as a column name, expected letters and digits")
        layout = {name: _layout(chunk[name]) for name in sorted(chunk)}
        layouts = layouts or layout
        lengths = {len(values) for values in chunk.values()}
        if layout != layouts or len(lengths) != 1:
            raise ValueError(
                f"chunk {number} has the columns {layout} of {sorted(lengths)} rows, expected "
                f"{layouts} of one length: convert each column of all chunks to one dtype "
                "(values.astype), text to the longest (`<U64`)"
            )
        for name, values in chunk.items():
            path = folder / _file(name, number)
            np.save(path, values, allow_pickle=False)
            files[path.name] = path.stat().st_size
        rows += lengths
    index = {"columns": [*layouts], "rows": rows, "files": files, "layouts": layouts}
    (folder / INDEX).write_text(json.dumps(index))
    return sum(rows)


class Shards:
    """The memory-mapped columns of a folder that `write_shards` wrote.

    Raises OSError for a missing or truncated file, and ValueError for a file whose dtype or row
    shape differs from its column's.
    """

    def __init__(self, folder: Path) -> None:
        try:
            written = (folder / INDEX).read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{folder} has no {INDEX}: writing it was interrupted"
            ) from None
        index = json.loads(written)
        self.columns: list[str] = index["columns"]
        # The first row of each shard, followed by the total number of rows.
        self._begins = np.cumsum([0, *index["rows"]])
        self._folder = folder
        self._files: dict[str, int] = index["files"]
        for name, size in self._files.items():
            path = folder / name
            actual = path.stat().st_size if path.exists() else 0
            if actual != size:
                raise OSError(
                    f"{path} has {actual:,} bytes, expected {size:,}: copy the data again"
                )
        # Memory maps keep files open. The LRU cache uses at most a quarter of the process's
        # remaining file descriptors.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = min(limit, 1 << 15) if limit > 0 else 1 << 15
        free = limit - sum(1 for _ in Path("/dev/fd").iterdir())
        share = max(1, free // 4)
        self._opened = lru_cache(share)(partial(np.load, mmap_mode="r"))
        # np.load parses headers with `ast`, which is not thread-safe in Python 3.11 (SystemError:
        # AST constructor recursion depth mismatch; python/cpython#106905).
        self._opening = Lock()
        # An index of an earlier version has no layouts; then check every file by opening it.
        self._layouts: dict[str, str] = index.get("layouts", {})
        for column in self.columns if not self._layouts else ():
            for number in range(len(index["rows"])):
                self._map(column, number)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def digest(self) -> str:
        """Return the sha256 of the layouts and of up to 64 evenly spaced rows.

        It identifies the data among data sets with the same number of rows.
        """
        sample = self.take(np.linspace(0, len(self) - 1, min(64, len(self))).astype(np.int64))
        sha256 = hashlib.sha256()
        for name, values in sorted(sample.items()):
            sha256.update(f"{name} {_layout(values)} ".encode() + values.tobytes())
        return sha256.hexdigest()

    def numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard number of each row index."""
        return np.searchsorted(self._begins, rows, side="right") - 1

    def read(self, number: int) -> Rows:
        """Read a whole shard sequentially into memory."""
        return {column: self._map(column, number, np.load) for column in self.columns}

    def take(self, rows: NDArray[np.int64], prefetched: Held = MappingProxyType({})) -> Rows:
        """Return all columns of the row indices `rows`, from `prefetched` shards or from files."""
        shards = self.numbers(rows)
        within, numbers = rows - self._begins[shards], np.unique(shards)

        def values(column: str, number: int) -> NDArray[Any]:
            return (
                prefetched[number].result()[column]
                if number in prefetched
                else self._map(column, number)
            )

        chosen: Rows = {}
        for column in self.columns:
            first = values(column, int(numbers[0]))
            if len(numbers) == 1:
                chosen[column] = first[within]
                continue
            chosen[column] = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
            for number in numbers:
                in_shard = shards == number
                chosen[column][in_shard] = values(column, int(number))[within[in_shard]]
        return chosen

    def column(self, name: str) -> NDArray[Any]:
        """Return a whole column, such as the labels, in memory."""
        first = self._map(name, 0)
        values = np.empty((len(self), *first.shape[1:]), dtype=first.dtype)
        for number, begin in enumerate(self._begins[:-1]):
            values[begin : self._begins[number + 1]] = self._map(name, number)
        return values

    def _map(
        self, column: str, number: int, load: Callable[[Path], NDArray[Any]] | None = None
    ) -> NDArray[Any]:
        path = self._folder / _file(column, number)
        with self._opening:
            try:
                values = (load or self._opened)(path)
            except (ValueError, EOFError) as error:  # truncated, or of another format
                raise OSError(f"{path} cannot be read: {error}") from None
        layout = _layout(values)
        if (expected := self._layouts.setdefault(column, layout)) != layout:
            raise ValueError(
                f"{path} has values of {layout}, expected {expected}, as in the first shard: "
                "write the shards again, with each column of one dtype"
            )
        return values


def _layout(values: NDArray[Any]) -> str:
    """Return the dtype and row shape, such as `<i8 (3,)`; raise ValueError for other objects."""
    is_plain = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)
    if not is_plain or not values.ndim or values.dtype.hasobject:
        kind = f"{type(values).__name__} of {getattr(values, 'dtype', 'no dtype')}"
        raise ValueError(f"{kind} as a column, expected a numpy array of rows without objects")
    return f"{np.lib.format.dtype_to_descr(values.dtype)} {values.shape[1:]}"


def _file(column: str, number: int) -> str:
    return f"{column}-{number:05}.npy"


class ReadAhead:
    """Prefetches shards in a thread, in the order of the steps, with at most `most` in memory.

    shards: the shard numbers of each step. A shard is read once and kept from the first to the last
    step that needs it. Raises ValueError if that requires more than `most` shards at once.
    """

    def __init__(
        self, read: Callable[[int], Rows], shards: Sequence[NDArray[np.int64]], most: int
    ) -> None:
        self._read, self._shards, self._most = read, shards, most
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for step, numbers in enumerate(shards):
            for number in numbers.tolist():
                first.setdefault(number, step)
                last[number] = step
        # The maximum number of shards needed at once; with fewer, reading would deadlock.
        change = np.zeros(len(shards) + 1, np.int64)
        np.add.at(change, [*first.values()], 1)
        np.add.at(change, [step + 1 for step in last.values()], -1)
        needed = int(np.cumsum(change).max())
        if needed > most:
            raise ValueError(
                f"{most} shards in memory, expected at least {needed}, which a step needs at once: "
                "raise read_ahead, or set `block` to the rows of a shard and lower `blocks`"
            )
        self._last, self._coming = last, deque(first)
        self._held: dict[int, Future[Rows]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._fill()

    @property
    def held(self) -> Mapping[int, Future[Rows]]:
        """The futures of the shards in memory or being read, by number; `result()` may raise."""
        return self._held

    def has(self, step: int) -> bool:
        """Return whether all shards of a step are in memory or being read."""
        return all(number in self._held for number in self._shards[step].tolist())

    def release(self, step: int) -> None:
        """Drop the shards that no step after `step` needs, and start to read further ones."""
        for number in self._shards[step].tolist():
            if self._last[number] == step:
                del self._held[number]
        self._fill()

    def close(self) -> None:
        """Cancel pending reads and end the thread."""
        self._reader.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while self._coming and len(self._held) < self._most:
            number = self._coming.popleft()
            self._held[number] = self._reader.submit(self._read, number)


class Batches:
    """Iterates over the steps of an epoch; each is a list of this process's micro-batches.

    batch: rows per step, over all processes and micro-batches. Every row is used once per epoch.
      The last step has the remaining rows; if they are too few for every micro-batch of every
      process, they join the previous step.
    micro_batches: number of micro-batches per process and step.
    block, blocks: blocks of `block` neighbouring rows are shuffled, then rows within every `blocks`
      blocks, so that disk reads stay local. `block=1` shuffles fully; 0 does not shuffle.
    balanced: a column of classes. Rows are then drawn with replacement, all classes equally often;
      the length of an epoch does not change.
    transform: called in a loading thread with the rows and a random generator; returns new rows.
    threads, ahead: number of loading threads, and of steps loaded ahead.
    read_ahead: for a mounted datastore: maximum number of whole shards that a thread prefetches
      into memory; 0 memory-maps the files instead. Set `block` to the rows of a shard: a step then
      needs up to 2 × `blocks` shards. Each process reads all shards.
    """

    def __init__(
        self,
        source: Shards,
        world: World,
        *,
        batch: int,
        micro_batches: int = 1,
        seed: int = 0,
        block: int = 64,
        blocks: int = 1024,
        balanced: str | None = None,
        transform: Callable[[Rows, np.random.Generator], Rows] | None = None,
        threads: int = 1,
        ahead: int = 4,
        read_ahead: int = 0,
    ) -> None:
        batch, least = int(batch), world.size * micro_batches  # JSON does not support numpy numbers
        if not (least <= batch <= len(source)):
            raise ValueError(
                f"a batch of {batch} rows, expected at least {least} (one for each micro-batch of "
                f"each process) and at most {len(source)}, the number of rows"
            )
        steps, remainder = divmod(len(source), batch)
        self._steps = steps + (remainder >= least)
        self.epoch = self.step = 0
        self.waited_s = self.taken_s = 0.0
        self.samples = 0
        self._idle: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque(maxlen=1000)
        self._source, self._world = source, world
        self._batch, self._micro_batches, self._seed = batch, micro_batches, seed
        self._block, self._blocks, self._balanced = block, blocks, balanced
        self._transform, self._threads, self._ahead = transform, threads, max(1, ahead)
        self._read_ahead = read_ahead
        # Other sources, such as images, have no digest.
        self._digest = source.digest() if isinstance(source, Shards) else ""
        self._classes = (
            None if balanced is None else np.unique(source.column(balanced), return_inverse=True)[1]
        )

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[Batch]]:
        """Yield the remaining steps of this epoch; after its end, the next call starts a new one.

        `step` is the number of yielded steps.
        """
        if self.step >= self._steps:
            self.epoch, self.step = self.epoch + 1, 0
        begin, steps, reader = self.step, iter(self._rows(self.epoch, self.step)), None
        if self._read_ahead:
            mine = map(self._mine, self._rows(self.epoch, begin))
            shards = [np.unique(self._source.numbers(rows)) for rows in mine]
            reader = ReadAhead(self._source.read, shards, self._read_ahead)
        take = partial(self._source.take, prefetched=reader.held) if reader else self._source.take
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="loading")
        waiting: deque[Future[list[Batch]]] = deque()
        try:
            number, idle = self.step, None
            while True:
                while len(waiting) < self._ahead and number < self._steps:
                    if reader and not reader.has(number - begin):
                        break
                    waiting.append(pool.submit(self._load, take, next(steps), self.epoch, number))
                    number += 1
                if not waiting:
                    return
                began = time.perf_counter()
                loaded = waiting.popleft().result()
                resumed = time.perf_counter()
                if reader:
                    reader.release(self.step - begin)
                self.step += 1
                self.samples += sum(len(next(iter(values.values()))) for values in loaded)
                self.waited_s += resumed - began
                if idle is not None:
                    self._idle.append((idle, _event()))
                yield loaded
                idle = _event() if self._world.device.type == "cuda" else None
                self.taken_s += time.perf_counter() - began
        finally:
            if reader:
                reader.close()
            pool.shutdown(cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the position (epoch and number of yielded steps) and the settings."""
        rows: dict[str, Any] = {
            "rows": len(self._source),
            "block": self._block,
            "blocks": self._blocks,
        }
        rows |= {"batch": self._batch, "seed": self._seed, "balanced": self._balanced}
        rows |= {"data": self._digest}
        return {"epoch": self.epoch, "step": self.step, "steps": self._steps, **rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a position; raise TrainingError if data or settings differ.

        With another number of processes, an epoch may lack a last step of few rows. If only that
        step remained, it is skipped.
        """
        for name, mine in self.state_dict().items():
            if name not in ("epoch", "step", "steps") and state.get(name) != mine:
                raise TrainingError(
                    "checkpoint-mismatch",
                    f"the checkpoint has {name} {state.get(name)}, this training {mine}",
                    "train with the data and settings of the checkpoint, or use a new folder",
                )
        self.epoch, self.step = int(state["epoch"]), min(int(state["step"]), self._steps)
        if state["step"] >= state["steps"]:
            self.step = self._steps

    def rates(self) -> dict[str, float]:
        """Return this process's rows per second and share of time waiting for data.

        On a GPU, also return the share of time in which it was idle between steps. The values cover
        the time since the last call.
        """
        total_s = max(self.taken_s, 1e-9)
        rates = {
            "samples_per_second": self.samples / total_s,
            "waiting_share": self.waited_s / total_s,
        }
        if self._idle:
            self._idle[-1][1].synchronize()
            idle_s = sum(done.elapsed_time(resumed) for done, resumed in self._idle) / 1e3
            rates["gpu_waiting_share"] = idle_s / total_s
        self._idle.clear()
        self.samples, self.waited_s, self.taken_s = 0, 0.0, 0.0
        return rates

    def _rows(self, epoch: int, first: int) -> Iterator[NDArray[np.int64]]:
        """Yield the row indices of each step from step `first` on, for all processes."""
        order = self._order(epoch)
        for step in range(first, self._steps):
            last = step == self._steps - 1
            yield order[step * self._batch : None if last else (step + 1) * self._batch]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([self._seed, epoch])
        count = len(self._source)
        if self._classes is not None:
            chances = 1 / np.bincount(self._classes)[self._classes]
            return generator.choice(count, count, p=chances / chances.sum())
        if self._block == 0:
            return np.arange(count, dtype=np.int64)
        starts = generator.permutation(-(-count // self._block)) * self._block
        within, last = np.arange(self._block), int(starts.argmax())
        # Write in place, to have one copy only of hundreds of millions of indices. The block at
        # the end of the data may be shorter.
        order = np.empty(count, dtype=np.int64)
        begin = last * self._block
        end = begin + count - int(starts[last])
        np.add.outer(starts[:last], within, out=order[:begin].reshape(-1, self._block))
        order[begin:end] = np.arange(starts[last], count)
        np.add.outer(starts[last + 1 :], within, out=order[end:].reshape(-1, self._block))
        for start in range(0, count, self._block * self._blocks):
            generator.shuffle(order[start : start + self._block * self._blocks])
        return order

    def _mine(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array_split(rows, self._world.size)[self._world.rank]

    def _load(
        self,
        take: Callable[[NDArray[np.int64]], Rows],
        rows: NDArray[np.int64],
        epoch: int,
        step: int,
    ) -> list[Batch]:
        batches = []
        for number, part in enumerate(np.array_split(self._mine(rows), self._micro_batches)):
            arrays = take(part)
            if self._transform is not None:
                place = [self._seed, epoch, step, self._world.rank, number]
                arrays = self._transform(arrays, np.random.default_rng(place))
            batches.append({name: torch.from_numpy(array) for name, array in arrays.items()})
        return batches


def _event() -> torch.cuda.Event:
    """Record and return a timing event on the current CUDA stream."""
    return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
