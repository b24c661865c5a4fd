"""A process that works on mini-batches, as the one that drives the job sees it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ml.backends.local.environment import THREADS
from ml.backends.local.parallel import batch_worker


class BatchProcess:
    """`batch_worker` under the interpreter of the job. `settings` name it and its time limits.

    `batch` is what it works on, `since` when it began to. `error` is why init() failed.
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
        """Whether it waits for something to do."""
        free = self.was_ready and not self._leaves and self.batch is None
        return free and self._process.poll() is None

    def give(self, batch: dict[str, Any]) -> None:
        """Let it work on a mini-batch; one that has just died is found out by `ended`."""
        self.batch, self.since = batch, time.monotonic()
        limit = self._settings["overhead_timeout_s"]
        self._deadline, self._late = self.since + limit, f"reading it took more than {limit:g} s"
        with contextlib.suppress(BrokenPipeError):
            self._sink.write(json.dumps(batch) + "\n")
            self._sink.flush()

    def taken(self) -> dict[str, Any]:
        """What it worked on, and does not any more."""
        assert self.batch is not None
        batch, self.batch = self.batch, None
        return batch

    def said(self, patience_s: float) -> Iterator[dict[str, Any]]:
        """What it has answered since; waits a moment when that is nothing."""
        if not select.select([self._answers], [], [], patience_s)[0]:
            return
        self._buffer += os.read(self._answers, 1 << 16)
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            said: dict[str, Any] = json.loads(line)
            self._heard(said)
            yield said

    def _heard(self, said: dict[str, Any]) -> None:
        self.was_ready = self.was_ready or "ready" in said
        self._leaves = self._leaves or bool(said.get("leaves"))
        self.error = str(said.get("failed", ""))
        if "running" in said:
            limit = self._settings["run_timeout_s"]
            self._deadline, self._late = (
                time.monotonic() + limit,
                f"run() took more than {limit:g} s",
            )

    def ended(self) -> str:
        """Why it has ended, "" while it goes on. One that is too late is ended."""
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
        """No more work: shutdown() is called; what it does wrong is in its log alone."""
        with contextlib.suppress(OSError):
            self._sink.close()

    def wait(self) -> None:
        """Until it has ended, after `dismiss`; not for ever."""
        try:
            self._process.wait(self._settings["overhead_timeout_s"])
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, and close what led to it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._sink.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
