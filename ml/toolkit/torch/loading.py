"""Rows of sharded, memory-mapped arrays as batches: shuffled, prefetched, resumable in mid-epoch.

`write_shards` writes each column of a chunk as a .npy file; `Shards` maps them. `Batches` gives
each process its part of every step, and reads whole shards ahead of it if asked. Which rows a step
has depends on the seed, the epoch and the step alone: not on the number of processes, nor on how
many threads load, so that a training may go on with others.
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
    """Write columns that come in chunks, one shard for each, and return the number of rows.

    Every chunk has the same columns, each of the same dtype (a text's length, a time's unit and the
    byte order are part of it) and the same shape of a row. ValueError where one differs: numpy
    would cast its values. The index is written last: a folder without it was never finished.
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
    """Columns that `write_shards` wrote, read through the page cache. OSError names a file that is
    missing or cut short, ValueError one whose dtype or row shape is not that of its column.
    """

    def __init__(self, folder: Path) -> None:
        try:
            written = (folder / INDEX).read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder} has no {INDEX}: it was never finished") from None
        index = json.loads(written)
        self.columns: list[str] = index["columns"]
        # Of each shard the first row, and behind the last one the number of all.
        self._begins = np.cumsum([0, *index["rows"]])
        self._folder = folder
        self._files: dict[str, int] = index["files"]
        for name, size in self._files.items():
            path = folder / name
            actual = path.stat().st_size if path.exists() else 0
            if actual != size:
                raise OSError(
                    f"{path} has {actual:,} bytes, expected {size:,}: bring the data there again"
                )
        # A map keeps its file open. This takes a quarter of what the process may still open; those
        # that were not read for the longest time are closed.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = min(limit, 1 << 15) if limit > 0 else 1 << 15
        free = limit - sum(1 for _ in Path("/dev/fd").iterdir())
        share = max(1, free // 4)
        self._opened = lru_cache(share)(partial(np.load, mmap_mode="r"))
        # np.load reads a header by `ast`, which Python 3.11 does not do in two threads at once
        # (SystemError: AST constructor recursion depth mismatch; python/cpython#106905).
        self._opening = Lock()
        # An index of an earlier version has no layouts: then every file is opened once.
        self._layouts: dict[str, str] = index.get("layouts", {})
        for column in self.columns if not self._layouts else ():
            for number in range(len(index["rows"])):
                self._map(column, number)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def digest(self) -> str:
        """Return a sha256 of the layouts and of up to 64 rows, evenly apart: other data of as many
        rows have another one.
        """
        sample = self.take(np.linspace(0, len(self) - 1, min(64, len(self))).astype(np.int64))
        sha256 = hashlib.sha256()
        for name, values in sorted(sample.items()):
            sha256.update(f"{name} {_layout(values)} ".encode() + values.tobytes())
        return sha256.hexdigest()

    def numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the shard of each row."""
        return np.searchsorted(self._begins, rows, side="right") - 1

    def read(self, number: int) -> Rows:
        """Return a whole shard, every file from its beginning to its end, in memory."""
        return {column: self._map(column, number, np.load) for column in self.columns}

    def take(self, rows: NDArray[np.int64], prefetched: Held = MappingProxyType({})) -> Rows:
        """Return the rows of these numbers, of every column, from the `prefetched` shards or else
        from their files.
        """
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
        """Return a whole column, as that of the classes."""
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
            except (ValueError, EOFError) as error:  # cut short, or of another format
                raise OSError(f"{path} cannot be read: {error}") from None
        layout = _layout(values)
        if (expected := self._layouts.setdefault(column, layout)) != layout:
            raise ValueError(
                f"{path} has values of {layout}, expected {expected}, as in the first shard: "
                "write the shards again, with each column of one dtype"
            )
        return values


def _layout(values: NDArray[Any]) -> str:
    """The dtype and the shape of a row, as the shards of a column have in common: `<i8 (3,)`."""
    is_plain = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray)
    if not is_plain or not values.ndim or values.dtype.hasobject:
        kind = f"{type(values).__name__} of {getattr(values, 'dtype', 'no dtype')}"
        raise ValueError(f"{kind} as a column, expected a numpy array of rows without objects")
    return f"{np.lib.format.dtype_to_descr(values.dtype)} {values.shape[1:]}"


def _file(column: str, number: int) -> str:
    return f"{column}-{number:05}.npy"


class ReadAhead:
    """Reads shards in a thread, in the order of the steps, and holds at most `most` in memory.

    shards: the numbers of the shards of each step. A shard is read once and held from the first to
    the last step that needs it. Raises ValueError if more than `most` are held at the same time.
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
        # A shard between two steps that need it stays: this bound is what never waits for itself.
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
        """The shards in memory, or on the way there; what the reader raised comes from them."""
        return self._held

    def has(self, step: int) -> bool:
        """Return whether all shards of a step are held."""
        return all(number in self._held for number in self._shards[step].tolist())

    def release(self, step: int) -> None:
        """Drop the shards that no later step needs, and read others in their place."""
        for number in self._shards[step].tolist():
            if self._last[number] == step:
                del self._held[number]
        self._fill()

    def close(self) -> None:
        """End the thread after the shard that it reads."""
        self._reader.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while self._coming and len(self._held) < self._most:
            number = self._coming.popleft()
            self._held[number] = self._reader.submit(self._read, number)


class Batches:
    """The steps of a training: each a list of micro-batches, those of this process.

    batch: rows of a step, of all processes and micro-batches together. The last step of an epoch
    has what is left, and every row is used once an epoch; where too few are left for a row in each
    micro-batch of each process, they join the step before.
    micro_batches: into how many a process splits its part.
    block, blocks: rows are shuffled by blocks of `block` neighbours, and then within `blocks` of
    them at a time, so that a disk reads neighbours; `block=1` shuffles fully, 0 not at all.
    balanced: a column of classes; each row is then drawn, with repetition, so that all classes come
    equally often. An epoch stays as long.
    transform: what a loading thread makes of the rows, with a generator for whatever it draws.
    threads, ahead: how many load, and how many steps ahead of the loop.
    read_ahead: for a mounted datastore. A thread reads whole shards before steps need them; so many
    are in memory at most. 0 maps the files instead. Set `block` to the rows of a shard: then a step
    needs `blocks` shards, and twice as many where the next ones begin. Each process reads all.
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
        batch, least = int(batch), world.size * micro_batches  # numpy's own numbers are no JSON
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
        # A source of another kind, as one of pictures, has none.
        self._digest = source.digest() if isinstance(source, Shards) else ""
        self._classes = (
            None if balanced is None else np.unique(source.column(balanced), return_inverse=True)[1]
        )

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[Batch]]:
        """The rest of this epoch; the next call begins the next one. `step` counts those given."""
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
        """Return the position: the step after the last that was given."""
        rows: dict[str, Any] = {
            "rows": len(self._source),
            "block": self._block,
            "blocks": self._blocks,
        }
        rows |= {"batch": self._batch, "seed": self._seed, "balanced": self._balanced}
        rows |= {"data": self._digest}
        return {"epoch": self.epoch, "step": self.step, "steps": self._steps, **rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a position; TrainingError where its steps are made of other rows. Another
        number of processes may have no step of the few rows that are left: then these are left out
        where only they were still to come.
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
        """Rows a second of this process, and the share of time that the loop waited for them, since
        the last call; on a GPU also the share in which that had nothing to do between two steps.
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
        """Yield the rows of each step from `first` on, of all processes."""
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
        # Written in place: of hundreds of millions of rows there is one copy. The last block has
        # what is left.
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
    """Return the moment at which the GPU comes to this point of its work."""
    return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))
