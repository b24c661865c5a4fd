"""Compare the time of `ml --help` with the start of Python."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def _median_s(command: list[str], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main(quick: bool) -> float:
    """Print both medians in seconds; return their ratio."""
    repeats = 5 if quick else 21
    bare = _median_s([sys.executable, "-c", "pass"], repeats)
    code = "from ml.cli.app import main; main(['--help'])"
    helped = _median_s([sys.executable, "-c", code], repeats)
    print(f"python -c pass  {bare:.3f} s")
    print(f"ml --help       {helped:.3f} s (goal: at most 0.3)")
    return helped / bare
