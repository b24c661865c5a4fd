"""Run the processes of a distributed job and end them together. Started as a script.

The argument is a file that `distribution` wrote, with the command, additional environment variables
and log of each process. All start at the same time. The first one that fails ends the others
(SIGTERM, then SIGKILL after the grace period), as losing a node ends the job on Azure ML. Servers
(`waits: false`) end after all others. To end the job, the executor sends SIGTERM to all processes,
and SIGKILL after the grace period.

To preempt a node of an elastic job, `spot` writes its number to the file `evicted` and ends its
processes; the others continue. SIGUSR1 starts the node again.

The exit code is the first failure's. The script imports nothing of the repository, like `reaper`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


class Ranks:
    """The running processes of the job; creating it starts them."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self._grace_s = float(launch["grace_s"])
        self._processes: list[dict[str, Any]] = launch["processes"]
        self._evicted, self._failed = Path(launch["evicted"]), Path(launch["failed"])
        self._away: int | None = None
        self._code, self._ending = 0, False
        self._waited_for: set[int] = set()
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        signal.signal(signal.SIGALRM, lambda *_: self._kill())
        for number in range(len(self._processes)):
            if not self._ending:
                self._start(number)
        signal.signal(signal.SIGUSR1, lambda *_: self._return())

    def _start(self, number: int) -> None:
        process = self._processes[number]
        with Path(process["log"]).open("ab") as log:
            started = subprocess.Popen(
                process["argv"],
                env={**os.environ, **process["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running[started.pid] = number, started
        if process["waits"]:
            self._waited_for.add(started.pid)

    def wait(self) -> int:
        """Wait until all processes have ended; return the first failure's exit code, else 0."""
        while self._running:
            pid, status = os.waitpid(-1, 0)
            number, _ = self._running.pop(pid, (-1, None))
            self._waited_for.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and self._is_evicted(number):
                code, self._away = 0, number
            if code or not self._waited_for:
                self._end(code)
        return self._code

    def _is_evicted(self, number: int) -> bool:
        if not self._evicted.is_file() or self._evicted.read_text() != str(number):
            return False
        self._evicted.unlink()
        self._failed.unlink(missing_ok=True)  # its exit code is no failure
        return True

    def _return(self) -> None:
        if self._away is not None and not self._ending:
            number, self._away = self._away, None
            self._start(number)

    def _leave(self) -> None:
        """Handle SIGTERM: set the exit code; the ranks received the signal too."""
        if not self._ending:
            self._code, self._ending = 128 + signal.SIGTERM, True

    def _end(self, code: int) -> None:
        """End the remaining processes; `code` becomes the exit code, 0 if only servers remain."""
        if self._ending:
            return
        self._code, self._ending = code, True
        # This process is in the group too; its handler ignores the signal now.
        os.killpg(0, signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)

    def _kill(self) -> None:
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the processes in the file argv[1]; exit with the code of the first failed rank."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    launch = json.loads(Path(sys.argv[1]).read_text())
    code = Ranks(launch).wait()
    failed = Path(launch["failed"])
    if code and failed.is_file():
        # mpirun has a different exit code than the failed rank.
        code = int(failed.read_text().split()[1])
    sys.exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
