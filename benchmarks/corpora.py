"""Prepare a corpus of filings by columns and by a row loop, and stream it from a slow disk.

Both methods read the same file with the same schema, and write the same bytes. They are compared by
CPU seconds, since other programs may use the cores. Two processes are measured by elapsed seconds
and by the CPU seconds of the slower one, which idle cores would take.

The slow disk is a `Shards` that loads a file at a fixed rate, after a delay, when it is first
opened, as a mount with a file cache (blobfuse) does. A training step sleeps, like a program that
waits for a GPU. Page-wise reads of files mapped from a network file system are not simulated.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ml.projects.filings_nlp import filings
from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, read
from ml.projects.filings_nlp.pretraining.prepare import SHARD, prepare
from ml.projects.filings_nlp.pretraining.tokenise import tokenise
from ml.projects.filings_nlp.tokens import SECTIONS, UNKNOWN, Vocabulary, sentences
from ml.toolkit.torch.distributed import World
from ml.toolkit.torch.loading import Batches, Shards, write_shards

ROWS, SHARDS, BATCH = 4096, 32, 1024
# Bytes per second of the slow disk, and seconds before the first byte of a file.
RATE, DELAY_S = 5e6, 0.02


def row_loop(data: Path, folder: Path) -> None:
    """Prepare a corpus text by text, tokenising each text once."""
    corpus = read(data)
    parts = {
        part: [
            [sentences(document[name]) for name in SECTIONS]
            for document in corpus.splits[part].documents
        ]
        for part in (TRAIN, VALIDATION)
    }
    counts: Counter[str] = Counter()
    for document in parts[TRAIN]:
        counts.update({word for section in document for words in section for word in words})
    vocabulary = Vocabulary.frequent(counts)
    folder.mkdir(exist_ok=True)
    vocabulary.save(folder)
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    for part, documents in parts.items():
        different = {
            tuple(numbers.get(word, UNKNOWN) for word in words)
            for document in documents
            for section in document
            for words in section
        }
        table = np.zeros((len(different), max(map(len, different))), np.uint16)
        for row, words in enumerate(sorted(different)):
            table[row, : len(words)] = words
        chunks = ({"target": table[start : start + SHARD]} for start in range(0, len(table), SHARD))
        write_shards(folder / part, chunks)


def _timed(clock: Callable[[], float], action: Callable[[], Any]) -> float:
    began = clock()
    action()
    return clock() - began


def _process(files: list[Path], folder: Path, start: Any, seconds: Any) -> None:
    """Tokenise files in a process and report its CPU seconds; the first file is also a warm-up."""
    tokenise(files[0], folder)
    start.wait()

    def action() -> None:
        for path in files:
            tokenise(path, folder)

    seconds.put(_timed(time.process_time, action))


def _processes(count: int, files: list[Path], folder: Path) -> NDArray[np.float64]:
    """Return (elapsed seconds, CPU seconds of the slowest process) of `count` processes."""
    context = get_context("spawn")
    start, answers = context.Barrier(count + 1), context.Queue()
    processes = [
        context.Process(target=_process, args=(files[index::count], folder, start, answers))
        for index in range(count)
    ]
    for process in processes:
        process.start()
    start.wait()
    began = time.perf_counter()
    cpu = [answers.get(timeout=600) for _ in processes]
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    return np.array([seconds, max(cpu)])


def preparation(quick: bool, folder: Path) -> float:
    """Print the times; return the row loop's CPU time divided by that of columns."""
    companies, rounds = (800, 3) if quick else (3200, 5)
    generated = filings.generate(1, companies)
    single, several = folder / "one", folder / "several"
    filings.write(generated, single / "filings.csv.gz")
    for number in range(8):
        filings.write(generated[number::8], several / f"{number}.csv.gz")
    ways: dict[str, Callable[[], Any]] = {
        "row loop": lambda: row_loop(single, folder / "rows"),
        "columns": lambda: prepare(single, folder / "columns"),
    }
    for action in ways.values():
        action()
    cpu, best = dict.fromkeys(ways, np.inf), {1: np.full(2, np.inf), 2: np.full(2, np.inf)}
    for _ in range(rounds):
        for name, action in ways.items():
            cpu[name] = min(cpu[name], _timed(time.process_time, action))
        for count in best:
            seconds = _processes(count, sorted(several.iterdir()), folder)
            best[count] = np.minimum(best[count], seconds)
    contents = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")}
        for root in (folder / "rows", folder / "columns")
    ]
    assert contents[0] == contents[1], "another corpus"
    size = sum(len(text) for filing in generated for text in filing.sections.values())
    print(f"{len(generated):,} filings of {size / 1e6:.1f} MB, the least of {rounds} rounds")
    for name, least in cpu.items():
        print(f"{name:10} {least:6.2f} s of CPU")
    for count, (clock, busy) in best.items():
        print(f"8 files, processes: {count}: {clock:6.2f} s, {busy:5.2f} s of CPU in the slowest")
    efficiency = best[1] / best[2] / 2
    print(f"efficiency of two processes: {efficiency[0]:.2f}, by CPU {efficiency[1]:.2f}")
    return cpu["row loop"] / cpu["columns"]


class Throttled(Shards):
    """Shards on a simulated disk that loads whole files at a fixed rate, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._brought: set[tuple[str, int]] = set()
        self._disk = Lock()
        super().__init__(folder)

    def digest(self) -> str:
        """Return "", so that no file is loaded for the digest."""
        return ""

    def _map(self, column: str, number: int, load: Any = None) -> Any:
        with self._disk:
            if (column, number) not in self._brought:
                self._brought.add((column, number))
                size = (self._folder / f"{column}-{number:05}.npy").stat().st_size
                time.sleep(DELAY_S + size / RATE)
        return super()._map(column, number, load)


def streaming(quick: bool, folder: Path) -> float:
    """Print the share of time that a training waits for data, by way of reading.

    Returns the share without prefetching divided by the share with read-ahead.
    """
    count = SHARDS if quick else 2 * SHARDS
    row = np.arange(ROWS * count, dtype=np.uint16)[:, None].repeat(48, 1)
    write_shards(folder, ({"target": part} for part in np.split(row, count)))
    world = World(0, 1, torch.device("cpu"))
    disk_s = DELAY_S + ROWS * 96 / RATE
    print(f"{count} shards of {ROWS * 96 / 1e6:.1f} MB, each {disk_s * 1e3:.0f} ms from the disk")
    ways: dict[str, dict[str, Any]] = {
        "no prefetching": {"ahead": 1},
        "4 steps prefetched": {"ahead": 4},
        "12 shards read ahead": {"read_ahead": 12},
    }
    waited: dict[str, float] = {}
    # Time to load the data of a step, divided by the time of the step.
    for load in (0.5, 1.5):
        step_s = disk_s * BATCH / ROWS / load
        print(f"the disk takes {load} of a step; {max(0.0, 1 - 1 / load):.0%} is the least to wait")
        for name, options in ways.items():
            batches = Batches(
                Throttled(folder), world, batch=BATCH, block=ROWS, blocks=4, **options
            )
            for _ in batches:
                time.sleep(step_s)
            share = batches.rates()["waiting_share"]
            waited.setdefault(name, share)
            print(f"  {name:20} waits {share:4.0%} of the time")
    return waited["no prefetching"] / waited["12 shards read ahead"]


def main(quick: bool) -> float:
    """Print both results; return the ratio of `preparation` (goal: at least 4)."""
    with tempfile.TemporaryDirectory() as temporary:
        ratio = preparation(quick, Path(temporary))
        less = streaming(quick, Path(temporary) / "shards")
    print(f"waiting without over with read-ahead {less:.1f}")
    return ratio
