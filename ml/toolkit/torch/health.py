"""Health checks of machines before training, and of the training's progress and loss.

`check_machines` runs before training, `Watchdog` in parallel to it, `Guard` after each step.
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

# Dense float32 TFLOP/s by NVIDIA's data sheets (T4, V100 SXM2, A100, H100 SXM, H200). torch
# multiplies float32 matrices in plain float32 by default (precision "highest").
FLOAT32_TFLOPS = {"T4": 8.1, "V100": 15.7, "A100": 19.5, "H100": 67.0, "H200": 67.0}
# Minimum speed relative to the data sheet and to the median process. A healthy GPU reaches 80 to
# 95 % of its data sheet; half of it means a defect or throttling.
OF_SHEET, OF_MEDIAN = 0.5, 0.67
FREE_GIGABYTES = 1.0  # minimum free space of the disk with the checkpoints
EXPLOSION = 10.0  # see `Guard`
RETURNS = 3  # maximum number of returns to an earlier checkpoint


@dataclass(frozen=True)
class Reading:
    """One measurement on one process's machine."""

    rank: int
    what: str
    value: float  # in `unit`
    unit: str
    least: float = math.nan  # the minimum; NaN for none

    @property
    def ok(self) -> bool:
        """Whether the value reaches the minimum."""
        return math.isnan(self.least) or self.value >= self.least

    def text(self) -> str:
        """Return the measurement as a log line."""
        least = "" if math.isnan(self.least) else f", at least {self.least:.3g}"
        state = "ok" if self.ok else "NOT OK"
        return (
            f"health: process {self.rank}: {self.what} {self.value:.3g} {self.unit}{least}: {state}"
        )


class Unhealthy(TrainingError):
    """Raised if a machine fails a health check."""


class Diverged(TrainingError):
    """Raised if the loss is not finite or has exploded, and no earlier checkpoint helps."""


def check_machines(world: World, folder: Path) -> list[Reading]:
    """Measure memory, ECC errors, matrix product speed, all-reduce and the disk of `folder`.

    Return the measurements of all processes. Every process must call it; it takes a second or two
    and creates `folder`. The matrix product is compared with the GPU's data sheet, if known, and
    with the median of all processes. Raises Unhealthy in every process with all failed checks.
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
    """Return the TFLOP/s of a float32 matrix product, the best of five; on a CPU by one thread.

    One thread, because the processes of a machine share its cores.
    """
    width, threads = 4096 if world.device.type == "cuda" else 512, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _product_speed(world, width)
    finally:
        torch.set_num_threads(threads)


def _product_speed(world: World, width: int) -> float:
    matrix = torch.ones(width, width, device=world.device)
    # On a CPU, measure thread time, so that other processes on the machine do not count.
    clock = time.perf_counter if world.device.type == "cuda" else time.thread_time
    seconds = []
    for _ in range(5):
        began = clock()
        total = float((matrix @ matrix)[0, 0])  # reading it waits for the device
        seconds.append(clock() - began)
        if total != width:
            return 0.0  # the result is wrong
    return 2 * width**3 / min(seconds) / 1e12


def _all_reduce(world: World) -> float:
    """Return the GB/s of an all-reduce of 16 MB, or -1 if the sum is wrong."""
    speed = 0.0
    for _ in range(2):  # the first is a warm-up, in which NCCL connects
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
    """Return the free GB of the disk with `folder`, or -1 if a test file cannot be read back."""
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
    """Return the GPU's uncorrected ECC errors since boot, or None if they are not available."""
    query = ["--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={index}", *query], capture_output=True, text=True, timeout=20
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


# Timeout in seconds for a response of process 0's store.
_STORE_S = 10.0


class _Silent(RuntimeError):
    """Raised if process 0's store does not respond in time."""


class Watchdog:
    """Ends all processes of a stalled training, with a message that names the blocking process.

    Call `beat` at each step, and `alive` within long parts. `timeout_s` must exceed the longest
    step plus validation. A process without either for `timeout_s` logs the stack traces of its
    threads and publishes its state. Once no process makes progress, it exits with code 70. The
    message names the process without a heartbeat, else the one with the fewest beats, else one that
    does not wait in a collective. If C code holds the GIL, no Python thread runs; the process then
    logs its stack traces after 2 × `timeout_s` and exits with code 1.
    """

    EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, world: World, timeout_s: float = 300.0) -> None:
        self._world, self._timeout_s = world, timeout_s
        self._beats, self._last = 0, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        # A separate store, because a process waiting in a collective may block the group's store.
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
            self._world.barrier()  # the first process hosts the store, so it must not end early
        self._stop.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """Report that a step is complete."""
        self._beats += 1
        self._last = time.monotonic()

    def alive(self) -> None:
        """Report progress within a step, such as a written piece of a checkpoint."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        period = self._timeout_s / 10
        while not self._stop.wait(period):
            stalled = self._is_stalled()
            try:
                # faulthandler's timer is a C thread, which runs even if the GIL is blocked.
                with suppress(OSError, ValueError, AttributeError):  # stderr that is no file
                    faulthandler.dump_traceback_later(2 * self._timeout_s, exit=True)
                self._in_time(partial(self._tell, stalled))
                if not stalled:
                    continue
                with suppress(OSError, ValueError, AttributeError):
                    faulthandler.dump_traceback(sys.stderr)
                before = self._in_time(self._others)
                if self._stop.wait(3 * period):  # until the others have published their state
                    return
                later = self._in_time(self._others)
                # A process about to stall does not count as moving. Otherwise a process that times
                # out later would report the ended processes instead of the blocking one.
                moves = any(
                    entry["at"] != earlier["at"] and entry["idle"] < self._timeout_s - 3 * period
                    for entry, earlier in zip(later, before, strict=True)
                )
                if moves or not self._is_stalled():
                    continue  # another process is still making progress, such as reading a file
                sentence = self._sentence(before, later)
            except _Silent:
                if not stalled:
                    continue
                sentence = "process 0: no heartbeat"
            except RuntimeError as error:
                if not stalled:
                    continue  # a process that ended has reported its own error
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
        """Call `ask`, a request to process 0's store; raise _Silent if it takes too long.

        TCPStore's own timeout does not apply: it waits forever for the response to its cancel
        request.
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
        # A stalled process publishes its state once and then waits, so it is not silent.
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
    """Return the main thread's innermost line outside torch, and whether it is in a collective."""
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
    """Restores an earlier checkpoint if the loss is not finite or has exploded.

    A step is bad if its loss or gradient is not finite, or its loss is too high: above the median m
    of the last 100 losses by more than EXPLOSION × (|m| + mean absolute deviation). After
    `patience` bad steps in a row, the training returns to the newest checkpoint before the first of
    them, or to an earlier one if that return did not help. The position in the data does not
    change, so that other rows follow. Later checkpoints are renamed. After RETURNS returns, or
    without a checkpoint, it raises Diverged in every process.
    """

    def __init__(self, checkpoints: Checkpoints, *, patience: int = 10) -> None:
        self._checkpoints, self._patience = checkpoints, patience
        self._losses: deque[float] = deque(maxlen=100)
        self._bad: list[tuple[int, Update]] = []
        self._left = RETURNS
        # The step of the restored checkpoint, until `patience` good steps have followed.
        self._returned: int | None = None
        self._good = 0

    def check(self, step: int, update: Update) -> bool:
        """Return True if a checkpoint was restored. Call after each step, before `after_step`."""
        if update.taken and not self._is_explosion(update.loss):
            self._losses.append(update.loss)
            self._bad.clear()
            self._good += 1
            if self._good >= self._patience:
                self._returned = None
            self._checkpoints.hold(self._returned)
            return False
        self._bad.append((step, update))
        # If steps are bad soon after a return, the restored weights were bad: go back further.
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
