"""Print the logs of a run and its parts: all lines, the last ones, or new ones as they arrive."""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TextIO

from ml.backends.runs import OPEN, Patience, Run, RunStore
from ml.core.errors import Problem, UserError

BLOCK_BYTES = 1 << 16


def write(
    store: RunStore,
    run: Run,
    tail: int | None,
    follow: bool,
    rank: str = "0",
    on: str = "",
) -> bool:
    """Write the logs of the run and its parts to stdout; return False if they are empty.

    `tail` is the number of last lines of each log; None for all. `follow` polls until the run ends.
    `rank` selects the process of a distributed job; UserError if no part has it. `on` is the `--on`
    option for suggested commands.
    """
    printer = LogPrinter(sys.stdout)
    again = f"ml runs logs --follow {run.name}{on}"
    patience = Patience(store, run.name, again, lambda line: print(line, file=sys.stderr))
    while True:
        try:
            printer.headed = printer.headed or bool(run.steps or run.trials)
            for part, log in _logs(store, run, rank):
                printer.write(part.name, log, tail)
            if not follow or run.status not in OPEN:
                break
            time.sleep(store.poll_s)
            run = store.find(run.id)
            patience.seen()
        except UserError as refused:
            if not follow:
                raise
            patience.endure(refused)
            time.sleep(store.poll_s)
    if not printer.last:
        _check_rank(store, run, rank)
    return printer.last != ""


def _logs(store: RunStore, run: Run, rank: str) -> Iterator[tuple[Run, Path]]:
    for part in (run, *run.below()):
        if log := store.logs(part).get(rank):
            yield part, log


def _check_rank(store: RunStore, run: Run, rank: str) -> None:
    if rank == "0" or any(_logs(store, run, rank)):
        return
    ranks = sorted({name for part in (run, *run.below()) for name in store.logs(part)} - {"0"})
    problem = Problem(
        "no-such-rank",
        f"{run.name} has no process {rank}",
        f"one of {', '.join(ranks)}" if ranks else "a distributed job",
        f"ml runs logs {run.name}",
    )
    raise UserError(problem)


@dataclass
class LogPrinter:
    """Writes several logs; `headed` prints `==> name <==` when the log changes, as `tail` does."""

    sink: TextIO
    headed: bool = False
    last: str = ""
    _at: dict[str, int] = field(default_factory=dict)
    _decoders: dict[str, codecs.IncrementalDecoder] = field(default_factory=dict)

    def write(self, name: str, log: Path, tail: int | None) -> None:
        """Write the bytes appended since the last call; first the last `tail` lines (None: all)."""
        with log.open("rb") as file:
            if name not in self._at:
                self._at[name] = 0 if tail is None else tail_offset(file, tail)
            file.seek(self._at[name])
            while block := file.read(BLOCK_BYTES):
                if self.headed and self.last != name:
                    blank = "\n" if self.last else ""
                    self.sink.write(f"{blank}==> {name} <==\n")
                self.last = name
                # A block may end in the middle of a multi-byte character.
                self.sink.write(self._decoders.setdefault(name, _decoder()).decode(block))
            self._at[name] = file.tell()
        self.sink.flush()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def tail_offset(file: BinaryIO, lines: int) -> int:
    """Return the byte offset of the last `lines` lines, reading only the end of the file."""
    end = position = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    remaining = lines
    while position > 0:
        start = max(0, position - BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        if position == end:
            block = block[:-1]  # ignore the newline at the end of the file
        while (newline := block.rfind(b"\n")) >= 0:
            remaining -= 1
            if remaining == 0:
                return start + newline + 1
            block = block[:newline]
        position = start
    return 0
