"""What a process took: seconds of CPU from the system as it ends, memory while it runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra.preview.captured import Spent

_LOOK_S = 0.02


class Peak:
    """The most resident memory of a process, in MiB, looked at until it ends.

    Not what `wait4` says: Linux counts there what the parent held when it started the process.
    """

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while self._read() and not self._ended.wait(_LOOK_S):
            pass

    def _read(self) -> bool:
        """The system keeps the peak itself (proc(5), VmHWM); a zombie has none."""
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return False
        found = [line.split() for line in lines if line.startswith("VmHWM:")]
        if found:
            self.mib = int(found[0][1]) / 1024  # kB
        return bool(found)

    def end(self) -> float:
        """Look no more; the peak."""
        self._ended.set()
        self._thread.join()
        return self.mib


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block at the latest, however that is left.

    `options` are Popen's. A signal that comes while it starts waits until somebody can end it.
    """
    process = None
    try:
        with _postponed():
            process = subprocess.Popen(command, text=True, **options)
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _postponed() -> Iterator[None]:
    """Signals that would end this program come when the block is left; only its main thread has
    any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: came.append(number))
        for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in came:
            signal.raise_signal(number)


def ended(process: subprocess.Popen[str], peak: Peak) -> Spent:
    """Wait for a process whose output has been read, or is not wanted; sets its return code."""
    for stream in (process.stdout, process.stderr):
        if stream and not stream.closed:
            stream.read()
            stream.close()
    if process.returncode is not None:
        return Spent(0.0, peak.end())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Spent(usage.ru_utime + usage.ru_stime, peak.end())
