"""The logs of a run and of its parts, whole or while they grow."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ml.backends.runs import OPEN, Run, RunStore
from ml.core.errors import Problem, Refused

POLL_S = 0.2
BLOCK_BYTES = 1 << 16


def write(store: RunStore, run: Run, tail: int | None, follow: bool, rank: str = "0") -> bool:
    """Write what the run and its parts printed to stdout; whether that was anything.

    `tail` is the number of lines of each log to begin with, None for all; with `follow` a run that
    goes on is followed until it has ended. `rank` is the process of a distributed job whose log it
    is (Refused when no part has one).
    """
    printed = LogPrinter(sys.stdout.buffer)
    while True:
        printed.headed = printed.headed or bool(run.steps or run.trials)
        for part, log in _logs(store, run, rank):
            printed.pump(part.name, log, tail)
        if not follow or run.status not in OPEN:
            if not printed.last:
                _demand_rank(store, run, rank)
            return printed.last != ""
        time.sleep(POLL_S)
        run = store.find(run.id)


def _logs(store: RunStore, run: Run, rank: str) -> Iterator[tuple[Run, Path]]:
    for part in (run, *run.below()):
        if log := store.logs(part).get(rank):
            yield part, log


def _demand_rank(store: RunStore, run: Run, rank: str) -> None:
    if rank == "0" or any(_logs(store, run, rank)):
        return
    ranks = sorted({name for part in (run, *run.below()) for name in store.logs(part)} - {"0"})
    problem = Problem(
        "no-such-rank",
        f"{run.name} has no process {rank}",
        f"one of {', '.join(ranks)}" if ranks else "no --rank: it was one process",
    )
    raise Refused(problem)


@dataclass
class LogPrinter:
    """What was printed so far; `==> name <==` stands where another log goes on, as `tail` does."""

    sink: BinaryIO
    headed: bool = False
    last: str = ""
    _at: dict[str, int] = field(default_factory=dict)

    def pump(self, name: str, log: Path, tail: int | None) -> None:
        """Print what the log of that name has gained; at first its last `tail` lines."""
        with log.open("rb") as file:
            if name not in self._at:
                self._at[name] = 0 if tail is None else tail_offset(file, tail)
            file.seek(self._at[name])
            while gained := file.read(BLOCK_BYTES):
                if self.headed and self.last != name:
                    blank = "\n" if self.last else ""
                    self.sink.write(f"{blank}==> {name} <==\n".encode())
                self.last = name
                self.sink.write(gained)
            self._at[name] = file.tell()
        self.sink.flush()


def tail_offset(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines of the file begin; a log of gigabytes is not read whole."""
    end = at = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    remaining = lines
    while at > 0:
        start = max(0, at - BLOCK_BYTES)
        file.seek(start)
        block = file.read(at - start)
        if at == end:
            block = block[:-1]  # the end of the last line begins no other
        while (newline := block.rfind(b"\n")) >= 0:
            remaining -= 1
            if remaining == 0:
                return start + newline + 1
            block = block[:newline]
        at = start
    return 0
