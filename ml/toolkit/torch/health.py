"""Whether the machines are fit to train on, and a training still moves and still learns.

`check_machines` before training, `Watchdog` beside it, `Guard` in it.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import TrainingError, World
from ml.toolkit.torch.updates import Update

T = TypeVar("T")

# Dense TFLOP/s by the makers' data sheets, of the precision in which a matrix product of float32
# runs by torch's default ("highest"): plain float32. (NVIDIA: T4, V100 SXM2, A100, H100 SXM, H200.)
FLOAT32_TFLOPS = {"T4": 8.1, "V100": 15.7, "A100": 19.5, "H100": 67.0, "H200": 67.0}
# A sound card reaches 80 to 95 % of its sheet in a large product; half of it is a broken or
# throttled one. Between alike machines a third less than the median is not noise.
OF_SHEET, OF_MEDIAN = 0.5, 0.67
FREE_GIGABYTES = 1.0  # of the disk with the checkpoints
EXPLOSION = 10.0
RETURNS = 3  # of a training to an earlier checkpoint


@dataclass(frozen=True)
class Reading:
    """One thing that was looked at on one process's machine."""

    rank: int
    what: str
    value: float  # in `unit`
    unit: str
    least: float = math.nan  # what it has to be at least; NaN where nothing is expected

    @property
    def ok(self) -> bool:
        """Whether it is as it has to be."""
        return math.isnan(self.least) or self.value >= self.least

    def text(self) -> str:
        """Return the finding as a line."""
        least = "" if math.isnan(self.least) else f", at least {self.least:.3g}"
        state = "ok" if self.ok else "NOT OK"
        return (
            f"health: process {self.rank}: {self.what} {self.value:.3g} {self.unit}{least}: {state}"
        )


class Unhealthy(TrainingError):
    """A machine is not fit."""


class Diverged(TrainingError):
    """The training does not learn any more."""


def check_machines(world: World, folder: Path) -> list[Reading]:
    """Look at the device, its memory and ECC errors, the speed of a matrix product, an all-reduce
    and the disk under `folder`, which is made; takes a second or two. Every process calls it.

    A product is compared with the card's data sheet where it is known, and with the median of all
    processes. Raises Unhealthy, in every process, with all that is not as it has to be.
    """
    mine: list[Reading] = []

    def read(what: str, value: float, unit: str, least: float = math.nan) -> None:
        mine.append(Reading(world.rank, what, value, unit, least))

    speed, sheet = _product_tflops(world), math.nan
    if world.device.type == "cuda":
        name = torch.cuda.get_device_name(world.device)
        free, total = torch.cuda.mem_get_info(world.device)
        read("free share of the GPU's memory", free / total, "", 0.5)
        errors = _ecc_errors(world.device.index)
        if errors is not None:
            read("uncorrected ECC errors, as a negative number", -errors, "", 0.0)
        sheets = [speed for card, speed in FLOAT32_TFLOPS.items() if card in name]
        sheet = OF_SHEET * sheets[0] if sheets else math.nan
    else:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        read("free memory", pages / 1e9, "GB")
    read("matrix product", speed, "TFLOP/s", sheet)
    median = statistics.median(world.gather(speed))
    read("matrix product relative to the median", speed / median, "", OF_MEDIAN)
    read("all-reduce", _all_reduce(world), "GB/s", 0.0)
    read("free disk", _free_gigabytes(folder), "GB", FREE_GIGABYTES)
    everywhere = [reading for part in world.gather(mine) for reading in part]
    if bad := [reading for reading in everywhere if not reading.ok]:
        lines = "\n  ".join(reading.text() for reading in bad)
        raise Unhealthy(
            "unhealthy",
            f"{len(bad)} machine checks failed\n  {lines}",
            "restart the job; use other nodes if it fails again",
        )
    return everywhere


def _product_tflops(world: World) -> float:
    """Return the best of five products of square matrices; by one thread of a CPU, whose cores the
    processes of a machine share.
    """
    width, threads = 4096 if world.device.type == "cuda" else 512, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _product_speed(world, width)
    finally:
        torch.set_num_threads(threads)


def _product_speed(world: World, width: int) -> float:
    matrix = torch.ones(width, width, device=world.device)
    # Of a CPU the time of this thread: other processes on a busy machine are no fault of its cores.
    clock = time.perf_counter if world.device.type == "cuda" else time.thread_time
    seconds = []
    for _ in range(5):
        began = clock()
        total = float((matrix @ matrix)[0, 0])  # reading it waits for the device
        seconds.append(clock() - began)
        if total != width:
            return 0.0  # a wrong product is no product
    return 2 * width**3 / min(seconds) / 1e12


def _all_reduce(world: World) -> float:
    """Gigabytes a second of 16 MB; less than nothing where the sum is wrong."""
    speed = 0.0
    for _ in range(2):  # in the first one NCCL makes its connections
        numbers = torch.full((4_000_000,), float(world.rank + 1), device=world.device)
        world.barrier()
        began = time.perf_counter()
        dist.all_reduce(numbers)
        total = float(numbers[0])  # reading it waits for the device
        speed = 4 * numbers.numel() / (time.perf_counter() - began) / 1e9
        if total != world.size * (world.size + 1) / 2:
            return -1.0
    return speed


def _free_gigabytes(folder: Path) -> float:
    """Under the folder; minus one where what was written is not read back."""
    content = os.urandom(1 << 20)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            stream.seek(0)
            is_intact = stream.read() == content
        state = os.statvfs(folder)
    except OSError:
        return -1.0
    return state.f_bavail * state.f_frsize / 1e9 if is_intact else -1.0


def _ecc_errors(index: int) -> int | None:
    """Uncorrected ECC errors since the machine began, or None where nobody counts them."""
    query = ["--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={index}", *query], capture_output=True, text=True, timeout=20
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


# Within which the store of process 0 answers.
_STORE_S = 10.0


class _Silent(RuntimeError):
    """Process 0 does not answer."""


class Watchdog:
    """Ends all processes if one stalls, naming which and where, so that the job fails at once.

    Call `beat` at each step. A process without a beat for `timeout_s` (longer than the longest step
    plus evaluation; `alive` reports progress within a long part) writes its threads' stacks to its
    log and tells the others where it is. Once none of them moves, it exits with code 70 after a
    message that names the process that blocks the others: one without a sign of life, else the one
    with the fewest beats, else one that does not wait in a collective. If C code holds the
    interpreter lock, no Python thread runs: then the process writes the stacks after twice that
    time and exits with code 1.
    """

    EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, world: World, timeout_s: float = 300.0) -> None:
        self._world, self._timeout_s = world, timeout_s
        self._beats, self._last = 0, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        # A store of its own: a process that waits in a collective may hold the group's.
        wait = timedelta(seconds=_STORE_S)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if world.first:
            self._store = dist.TCPStore(
                host, 0, is_master=True, wait_for_workers=False, timeout=wait
            )
        port = world.gather(self._store.port if world.first else None)[0]
        if not world.first:
            self._store = dist.TCPStore(host, port, is_master=False, timeout=wait)

    def __enter__(self) -> Self:
        self._tell(stalled=False)
        self._world.barrier()
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._world.barrier()  # the first process has the store of all
        self._stop.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """The training moves."""
        self._beats += 1
        self._last = time.monotonic()

    def alive(self) -> None:
        """A part of a step is done, as the next piece of a checkpoint."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        period = self._timeout_s / 10
        while not self._stop.wait(period):
            stalled = self._is_stalled()
            try:
                # Of C's own clock and thread: nothing of Python's has to run for it.
                with suppress(OSError, ValueError, AttributeError):  # stderr that is no file
                    faulthandler.dump_traceback_later(2 * self._timeout_s, exit=True)
                self._in_time(partial(self._tell, stalled))
                if not stalled:
                    continue
                with suppress(OSError, ValueError, AttributeError):
                    faulthandler.dump_traceback(sys.stderr)
                before = self._in_time(self._others)
                if self._stop.wait(3 * period):  # until the others have told of themselves too
                    return
                later = self._in_time(self._others)
                # One that is about to stall does not move: who ended later would see the others
                # gone, and say so in place of who stands still.
                moves = any(
                    entry["at"] != earlier["at"] and entry["idle"] < self._timeout_s - 3 * period
                    for entry, earlier in zip(later, before, strict=True)
                )
                if moves or not self._is_stalled():
                    continue  # who waits for one that reads a checkpoint has not stalled
                sentence = self._sentence(before, later)
            except _Silent:
                if not stalled:
                    continue
                sentence = "process 0: no heartbeat"
            except RuntimeError as error:
                if not stalled:
                    continue  # a process that ended says why itself
                sentence = f"process 0 has ended ({str(error).splitlines()[0]})"
            print(
                f"error[stalled]: no step for {self._timeout_s:g} s: {sentence}\n"
                "  hint: read the stack traces in the log of each process; a restarted job "
                "resumes from the last checkpoint",
                file=sys.stderr,
                flush=True,
            )
            os._exit(self.EXIT_CODE)

    def _is_stalled(self) -> bool:
        return time.monotonic() - self._last > self._timeout_s

    def _in_time(self, ask: Callable[[], T]) -> T:
        """Return the answer of process 0's store; raise _Silent if it does not come in time.

        TCPStore's timeout ends with a request to that process, whose response it awaits forever.
        """
        answers: list[T] = []
        errors: list[RuntimeError] = []

        def wait() -> None:
            try:
                answers.append(ask())
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=wait, name="watchdog asks", daemon=True)
        thread.start()
        thread.join(min(self._timeout_s, _STORE_S))
        if errors:
            raise errors[0]
        if not answers:
            raise _Silent
        return answers[0]

    def _tell(self, stalled: bool) -> None:
        where, waits = _where()
        entry: dict[str, Any] = {"at": time.monotonic(), "beats": self._beats, "stalled": stalled}
        entry |= {"where": where, "waits": waits, "idle": time.monotonic() - self._last}
        self._store.set(f"rank {self._world.rank}", json.dumps(entry))

    def _others(self) -> list[dict[str, Any]]:
        return [json.loads(self._store.get(f"rank {rank}")) for rank in range(self._world.size)]

    def _sentence(self, before: list[dict[str, Any]], later: list[dict[str, Any]]) -> str:
        ranks = range(self._world.size)
        # Who has stalled told so once, and then waits, as this process does.
        silent = [
            rank
            for rank in ranks
            if later[rank]["at"] == before[rank]["at"] and not later[rank]["stalled"]
        ]
        if silent:
            numbers = " and ".join(map(str, silent))
            return f"process {numbers}: no heartbeat (at step {later[silent[0]]['beats']})"
        fewest = min(entry["beats"] for entry in later)
        behind = [rank for rank in ranks if later[rank]["beats"] == fewest]
        not_waiting = [rank for rank in ranks if not later[rank]["waits"]]
        culprits = behind if len(behind) < len(ranks) else not_waiting or behind
        where = "; ".join(
            f"process {rank} is blocked at {later[rank]['where']}" for rank in culprits
        )
        return f"{where} (at step {fewest})"


def _where() -> tuple[str, bool]:
    """Where the main thread stands in code that is not torch's, and whether it waits for others."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    frames = traceback.extract_stack(frame)
    waits = any(
        "/torch/distributed/" in frame.filename or frame.name == "_engine_run_backward"
        for frame in frames
    )
    ours = [frame for frame in frames if "/site-packages/torch/" not in frame.filename]
    last = ours[-1] if ours else frames[-1]
    return f"{last.filename}:{last.lineno} in {last.name}: {last.line}", waits


class Guard:
    """Takes a training whose loss is no number, or has exploded, back to a good checkpoint.

    `patience` steps in a row that were not taken (a loss or gradient that is not finite), or whose
    loss lies above the median of the last 100 by more than EXPLOSION times (the median's size plus
    their mean distance from it), take everything back to the newest checkpoint
    from before the first of them (where that has led to nothing else, to one before it), except the
    position in the data, so that the same rows do not do it again. Later checkpoints are set aside.
    After RETURNS such ways back, or where there is no checkpoint, it raises Diverged, in every
    process.
    """

    def __init__(self, checkpoints: Checkpoints, *, patience: int = 10) -> None:
        self._checkpoints, self._patience = checkpoints, patience
        self._losses: deque[float] = deque(maxlen=100)
        self._bad: list[tuple[int, Update]] = []
        self._left = RETURNS
        # The step that was gone back to, until `patience` good steps have followed it.
        self._returned: int | None = None
        self._good = 0

    def check(self, step: int, update: Update) -> bool:
        """Return whether it went back; call it after each step, before `Checkpoints.after`."""
        if update.taken and not self._is_explosion(update.loss):
            self._losses.append(update.loss)
            self._bad.clear()
            self._good += 1
            if self._good >= self._patience:
                self._returned = None
            self._checkpoints.hold(self._returned)
            return False
        self._bad.append((step, update))
        # One that is bad again at once was saved with the weights that made it so.
        before = self._bad[0][0] if self._returned is None else min(self._bad[0][0], self._returned)
        self._checkpoints.hold(before)
        if len(self._bad) < self._patience:
            return False
        first = self._bad[0][0]
        sources = sorted({rank for _, earlier in self._bad for rank in earlier.not_finite_in})
        of_ranks = f", not finite in process {', '.join(map(str, sources))}" if sources else ""
        actual = f"the loss is {update.loss:g} since step {first}{of_ranks}"
        self._left -= 1
        returned = self._checkpoints.go_back(before) if self._left >= 0 else None
        if returned is None:
            raise Diverged(
                "diverged",
                f"{actual}; no checkpoint without the problem is left",
                "lower the learning rate or set `clip` of Updates; check the rows of these steps",
            )
        self._bad.clear()
        self._returned, self._good = returned, 0
        self._checkpoints.hold(returned)
        return True

    def _is_explosion(self, loss: float) -> bool:
        if len(self._losses) < self._patience:
            return False
        usual = statistics.median(self._losses)
        spread = statistics.fmean(abs(value - usual) for value in self._losses) + abs(usual)
        return spread > 0 and loss > usual + EXPLOSION * spread
