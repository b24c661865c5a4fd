"""End the processes of a killed executor. Each executor starts this script once.

The executor writes `+ <run id>` before it starts a run's processes, `+ <run id> <process group>`
afterwards, and `- <run id>` when they have ended. When the executor ends, even by SIGKILL, the pipe
closes and every registered run is terminated. A child between fork and exec keeps the pipe open
until it has the run's environment, so none is missed.

It imports nothing of the repository, so it starts in 20 ms and later edits do not affect it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

# Grace period between SIGTERM and SIGKILL. Azure ML's is not documented, and Kubernetes' is 30 s;
# a person at a terminal waits less.
GRACE_S = 5.0


def processes_of(run_id: str, group: int | None = None, node: int | None = None) -> list[int]:
    """Return the ids of processes in the session `group` or with the run's MLFLOW_RUN_ID.

    The latter finds processes that left the session. With `node`, it needs that NODE_RANK too. The
    list comes from /proc, so it is empty on other systems than Linux.
    """
    marks, numbers = {f"MLFLOW_RUN_ID={run_id}".encode()}, []
    if node is not None:
        marks.add(f"NODE_RANK={node}".encode())
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables, pid = (entry / "environ").read_bytes().split(b"\0"), int(entry.name)
            # A zombie process has no variables.
            if marks <= {*variables} or (variables != [b""] and os.getsid(pid) == group):
                numbers.append(pid)
    return [pid for pid in numbers if pid != os.getpid()]


def send(signum: int, run_id: str, group: int | None, node: int | None = None) -> list[int]:
    """Send the signal to every process of the run; return their ids (`processes_of`).

    Processes that have ended meanwhile are ignored.
    """
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signum)
    numbers = processes_of(run_id, group, node)
    for pid in numbers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return numbers


def kill(run_id: str, group: int | None, node: int | None = None) -> None:
    """Send SIGKILL to every process of the run until none is left, for at most GRACE_S.

    Repeated, because a killed process remains visible for a moment and others may have been forked
    meanwhile. A process in a system call that never returns remains.
    """
    gone_by = time.monotonic() + GRACE_S
    while send(signal.SIGKILL, run_id, group, node) and time.monotonic() < gone_by:
        time.sleep(0.01)


def main() -> None:
    """Read run ids from stdin until the executor ends, then end the registered runs."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    runs: dict[str, int | None] = {}
    for line in sys.stdin:
        what, run_id, *group = line.split()
        if what == "+":
            runs[run_id] = int(group[0]) if group else None
        else:
            runs.pop(run_id, None)
    for run_id, pgid in runs.items():
        send(signal.SIGTERM, run_id, pgid)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(processes_of(*run) for run in runs.items()):
        time.sleep(0.1)
    for run_id, pgid in runs.items():
        kill(run_id, pgid)


if __name__ == "__main__":
    main()
