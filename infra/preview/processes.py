"""What a process took, asked of the system as it ends."""

from __future__ import annotations

import os
import subprocess

from infra.preview.captured import Spent


def ended(process: subprocess.Popen[str]) -> Spent:
    """Wait for a process whose output has been read, or is not wanted; sets its return code."""
    for stream in (process.stdout, process.stderr):
        if stream and not stream.closed:
            stream.read()
            stream.close()
    if process.returncode is not None:
        return Spent(0.0, 0.0)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # Linux counts in KiB (getrusage(2)).
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
