"""Drive a parallel job: divide data, dispatch mini-batches, retry, count failures.

This is the process of the job's command: its output is the job's log, and its exit code the job's.
The entry script runs in other processes (`batch_worker`), with separate logs. The semantics follow
reference-yaml-job-parallel and how-to-debug-parallel-run-step:

- A run() that raises, exceeds the timeout or loses its process is retried. If all retries fail, the
  mini-batch and all of its items count as failed.
- Items without a result of run() count as failed, and so does their mini-batch. It is not retried
  ("a run() is failed if an exception is thrown, or nothing is returned when the timeout is
  reached"). With partition_keys this is not checked: public examples return one result per
  partition.
- More failures than a threshold allows abort the job at once; -1 allows any number.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ml.backends.local.parallel import batch_worker
from ml.backends.local.process_environment import THREADS
from ml.toolkit.data import mltables
from ml.toolkit.data.mltables import Unreadable, frame

# Default mini_batch_size: for files "The default value is 1" (reference-yaml-job-parallel); for
# tables, where it is a size in bytes, azure-ai-ml's default is 1 MB.
FILES = 1
TABLE_BYTES = 1 << 20


def describe(data: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the description (`mltables.describe`) of a folder, a file or an MLTable.

    Raise Unreadable if it cannot be read, or if there are `keys` and it is not a table.
    """
    table = mltables.describe(data)
    if keys and not table["read"]:
        raise Unreadable(f"{data}: only the rows of a table are divided by {', '.join(keys)} here")
    return table


def divide(table: Mapping[str, Any], size: int, keys: list[str]) -> list[dict[str, Any]]:
    """Return the mini-batches: each has its `id` from 0, its location, and the number of `items`.

    "If both partition_keys and mini_batch_size are specified, the partition keys take effect."
    A mini-batch of a table never crosses the boundary of a file (how-to-debug-parallel-run-step).
    """
    if table["read"]:
        batches = _groups(table, keys) if keys else _rows(table, size or TABLE_BYTES)
    else:
        size = size or FILES
        files = table["files"]
        batches = [
            {"files": files[start : start + size], "items": len(files[start : start + size])}
            for start in range(0, len(files), size)
        ]
    return [{"id": number, **batch} for number, batch in enumerate(batches)]


def _rows(table: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Divide each file's rows evenly into mini-batches of about `size` bytes."""
    batches = []
    for part, file in enumerate(table["files"]):
        rows = len(frame(table, part))
        count = min(rows, math.ceil(Path(file).stat().st_size / size))
        for number in range(count):
            start, stop = rows * number // count, rows * (number + 1) // count
            batches.append({"part": part, "start": start, "stop": stop, "items": stop - start})
    return batches


def _groups(table: Mapping[str, Any], keys: list[str]) -> list[dict[str, Any]]:
    """Divide the rows by equal values in the key columns, ordered by value."""
    rows_of_all = frame(table, None)
    lacking = [key for key in keys if key not in rows_of_all.columns]
    if lacking:
        raise Unreadable(f"the table has no column `{lacking[0]}` to divide it by")
    batches = []
    for number, (values, rows) in enumerate(rows_of_all.groupby(keys, sort=True)):
        named = dict(zip(keys, map(_plain, values), strict=True))
        batches.append({"group": number, "keys": named, "items": len(rows)})
    return batches


def _plain(value: Any) -> Any:
    """Return a column's value as a JSON value; a date as text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, str | int | float | bool) else str(value)


# Abort the job after this many consecutive processes that end before init() returns.
STARTS = 3
TABLE = ("mini_batch", "items", "returned", "tries", "seconds", "process", "error")


class Aborted(Exception):
    """The job has failed; the text says why."""


class Batches:
    """The mini-batches of one job, and the processes that work on them."""

    def __init__(self, settings: dict[str, Any], path: Path) -> None:
        self._settings, self._path = settings, path
        self._results = Path(settings["results"])
        self._processes: list[BatchProcess] = []
        self._waiting: list[dict[str, Any]] = []
        self._total = self._failed = self._failed_items = self._lost = 0
        self._tries: dict[int, int] = {}
        self._rows: list[tuple[Any, ...]] = []

    def run(self) -> None:
        """Process all mini-batches. Raise Aborted or mltables.Unreadable."""
        settings = self._settings
        keys = settings["partition_keys"]
        table = describe(Path(settings["data"]), keys)
        self._waiting = divide(table, settings["mini_batch_size"], keys)
        self._total = len(self._waiting)
        if not self._total:
            raise Aborted(f"there is nothing to process in {settings['data']}")
        if table["read"]:
            settings["table"], settings["reader"] = table, mltables.__file__
        self._path.write_text(json.dumps(settings, indent=1))
        items = sum(batch["items"] for batch in self._waiting)
        count = min(settings["processes"], self._total)
        batches = f"{_many(self._total, 'mini-batch')} of {_many(items, 'item')}"
        _say(f"{batches} for {_many(count, 'process')}")
        try:
            for number in range(count):
                self._processes.append(BatchProcess(number, self._path, settings))
            while self._waiting or any(process.batch for process in self._processes):
                self._turn()
            for process in self._processes:
                process.dismiss()
            for process in self._processes:
                process.wait()
        finally:
            for process in self._processes:
                process.kill()
            self._report(items)
        self._judge(at_the_end=True)
        self._gather()

    def _turn(self) -> None:
        for place, process in enumerate(self._processes):
            if process.is_idle and self._waiting:
                process.give(self._waiting.pop(0))
            self._listen(process, 0.02 / len(self._processes))
            if error := process.failure():
                self._listen(process, 0)  # read its last messages
                if process.batch is not None:
                    self._retry(process, error)
                elif not process.was_ready:
                    self._lost += 1
                    _say(
                        f"process {process.number} ended before init() was done: {error} "
                        f"({process.log})"
                    )
                    if process.error or self._lost >= STARTS:
                        raise Aborted(f"init() failed: {error}")
                process.kill()
                self._processes[place] = BatchProcess(process.number, self._path, self._settings)

    def _listen(self, process: BatchProcess, patience_s: float) -> None:
        for answer in process.answers(patience_s):
            if "done" in answer:
                self._lost = 0
                self._done(process, answer["count"])
            elif "raised" in answer:
                self._retry(process, answer["error"])

    def _done(self, process: BatchProcess, count: int) -> None:
        batch, short = process.release(), 0
        if not self._settings["partition_keys"]:
            short = max(0, batch["items"] - count)
        self._failed_items += short
        self._failed += bool(short)
        error = f"run() returned {count} of {batch['items']} items" if short else ""
        if short:
            _say(f"mini-batch {batch['id']}: {error} ({process.log})")
        self._note(batch, count, process, error, self._tries.get(batch["id"], 0) + 1)

    def _retry(self, process: BatchProcess, error: str) -> None:
        """Try the mini-batch again, or count it as failed after the last try."""
        batch = process.release()
        tries = self._tries[batch["id"]] = self._tries.get(batch["id"], 0) + 1
        most = self._settings["max_retries"] + 1
        _say(f"mini-batch {batch['id']}, try {tries} of {most}: {error} ({process.log})")
        if tries < most:
            self._waiting.append(batch)
            return
        self._failed += 1
        self._failed_items += batch["items"]
        self._note(batch, 0, process, error, tries)

    def _note(
        self, batch: dict[str, Any], count: int, process: BatchProcess, error: str, tries: int
    ) -> None:
        spent = f"{time.monotonic() - process.since:.2f}"
        self._rows.append((batch["id"], batch["items"], count, tries, spent, process.number, error))
        self._judge(at_the_end=False)

    def _judge(self, at_the_end: bool) -> None:
        """Raise Aborted if more failed than the thresholds allow."""
        for name, count, allowed in (
            ("mini_batch_error_threshold", self._failed, self._settings["mini_batches_allowed"]),
            ("error_threshold", self._failed_items, self._settings["items_allowed"]),
        ):
            if 0 <= allowed < count:
                what = "item" if name == "error_threshold" else "mini-batch"
                raise Aborted(f"{_many(count, what)} failed, more than {name} allows ({allowed:g})")
        percent = 100 * self._failed / max(1, self._total)
        if percent > self._settings["percent_allowed"]:
            allowed = f"{self._settings['percent_allowed']:g}"
            raise Aborted(
                f"{percent:.0f} % of the mini-batches failed, more than --allowed_failed_percent "
                f"allows ({allowed})"
            )
        if at_the_end and self._failed:
            _say(f"{_many(self._failed, 'mini-batch')} failed, which the thresholds allow")

    def _report(self, items: int) -> None:
        """Write mini_batches.csv for the user, and counts.json for `parallel.warnings`."""
        with (self._results.parent / "logs" / "mini_batches.csv").open("w", newline="") as sink:
            writer = csv.writer(sink)
            writer.writerow(TABLE)
            writer.writerows(sorted(self._rows))
        counts = {"total": self._total, "failed": self._failed}
        counts |= {"items": items, "failed_items": self._failed_items}
        (self._results / "counts.json").write_text(json.dumps(counts))
        _say(f"{len(self._rows)} of {self._total} mini-batches done, {self._failed} failed")

    def _gather(self) -> None:
        """Write the results of run() to the output file, in the order of the mini-batches."""
        if not self._settings["append_to"]:
            return
        target = Path(self._settings["append_to"])
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished, header = target.with_name(f".{target.name}.unfinished"), ""
        with unfinished.open("w") as sink:
            for number in range(self._total):
                with contextlib.suppress(FileNotFoundError):
                    text = (self._results / str(number)).read_text()
                    if self._settings["header"]:
                        first, _, text = text.partition("\n")
                        sink.write("" if header else f"{first}\n")
                        header = first
                    sink.write(text)
        unfinished.replace(target)


def _many(count: int, what: str) -> str:
    plural = {"process": "processes", "mini-batch": "mini-batches"}.get(what, f"{what}s")
    return f"{count} {what if count == 1 else plural}"


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Run the job with the settings file in argv[1]; exit with 1 if the job fails."""
    path = Path(sys.argv[1])
    try:
        Batches(json.loads(path.read_text()), path).run()
    except (Aborted, mltables.Unreadable) as error:
        _say(f"the job fails: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()


class BatchProcess:
    """A process that runs `batch_worker` with the job's interpreter.

    `batch` is its current mini-batch or None, `since` the start of that in monotonic seconds, and
    `error` the reason if init() failed.
    """

    def __init__(self, number: int, path: Path, settings: dict[str, Any]) -> None:
        self.number, self._settings = number, settings
        self.log = f"logs/process_{number}.txt"
        self.batch: dict[str, Any] | None = None
        self.error, self.was_ready, self.since = "", False, time.monotonic()
        self._leaves = False
        self._buffer, self._deadline = b"", time.monotonic() + settings["start_timeout_s"]
        self._late = f"init() took more than {settings['start_timeout_s']:g} s"
        tasks, self._tasks = os.pipe()
        self._answers, answers = os.pipe()
        with Path(settings["folder"], self.log).open("ab") as sink:
            self._process = subprocess.Popen(
                [settings["python"], batch_worker.__file__, str(path), str(tasks), str(answers)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=(tasks, answers),
                env=os.environ | dict.fromkeys(THREADS, str(settings["threads"])),
            )
        os.close(tasks)
        os.close(answers)
        self._sink: IO[str] = os.fdopen(self._tasks, "w")

    @property
    def is_idle(self) -> bool:
        """Whether the process is ready and has no mini-batch."""
        free = self.was_ready and not self._leaves and self.batch is None
        return free and self._process.poll() is None

    def give(self, batch: dict[str, Any]) -> None:
        """Send a mini-batch to the process; if the process has died, `failure` reports it."""
        self.batch, self.since = batch, time.monotonic()
        limit = self._settings["overhead_timeout_s"]
        self._deadline, self._late = self.since + limit, f"reading it took more than {limit:g} s"
        with contextlib.suppress(BrokenPipeError):
            self._sink.write(json.dumps(batch) + "\n")
            self._sink.flush()

    def release(self) -> dict[str, Any]:
        """Take the current mini-batch from the process and return it."""
        assert self.batch is not None
        batch, self.batch = self.batch, None
        return batch

    def answers(self, patience_s: float) -> Iterator[dict[str, Any]]:
        """Yield the messages since the last call; wait up to `patience_s` seconds for the first."""
        if not select.select([self._answers], [], [], patience_s)[0]:
            return
        self._buffer += os.read(self._answers, 1 << 16)
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            self._take_in(answer)
            yield answer

    def _take_in(self, answer: dict[str, Any]) -> None:
        self.was_ready = self.was_ready or "ready" in answer
        self._leaves = self._leaves or bool(answer.get("leaves"))
        self.error = str(answer.get("failed", ""))
        if "running" in answer:
            limit = self._settings["run_timeout_s"]
            self._deadline, self._late = (
                time.monotonic() + limit,
                f"run() took more than {limit:g} s",
            )

    def failure(self) -> str:
        """Return why the process has ended, "" while it runs; kill it after its deadline."""
        code = self._process.poll()
        if code is None:
            busy = self.batch is not None or not self.was_ready
            if not busy or time.monotonic() < self._deadline:
                return ""
            self._process.kill()
            self._process.wait()
            return self._late
        if self.error:
            return self.error
        if code < 0:
            return f"the process was ended by {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def dismiss(self) -> None:
        """Close the task pipe, so that the process calls shutdown() and exits."""
        with contextlib.suppress(OSError):
            self._sink.close()

    def wait(self) -> None:
        """Wait for the process to end after `dismiss`; kill it after the timeout."""
        try:
            self._process.wait(self._settings["overhead_timeout_s"])
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the process and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._sink.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
