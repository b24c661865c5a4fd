"""Trials that only import: ours against a subprocess each, two at a time, seconds a trial.

Ours is a whole sweep: the executor's start, the forkserver's, and for every trial its folder,
its working copy, its log, its record and its MLflow run. The peer is the bare process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.trials import AT_ONCE, IMPORTS, run

TRIALS = 600  # of ours; the peer's time a trial does not depend on how many there are
PEERS = 12


def subprocesses(count: int) -> float:
    """Seconds a trial of `python trial.py`, `AT_ONCE` at a time."""
    from ml.backends.local.process_environment import variables

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "trial.py"
        script.write_text(IMPORTS)
        environment = variables("none", "none", 1, {}, {}, Path(folder))

        def one(_: int) -> None:
            subprocess.run([sys.executable, str(script)], env=environment, check=True)

        began = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(one, range(count)))
        return (time.perf_counter() - began) / count


def main(quick: bool) -> float:
    """Print both and return how many times as long a subprocess takes."""
    rounds, trials = (1, 200) if quick else (3, TRIALS)
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(subprocesses(PEERS))
        timed = run(IMPORTS, trials)
        ours.append(timed.seconds / trials)
    print(f"no-op trials, {AT_ONCE} at a time, {rounds} rounds      ms a trial")
    print(f"a subprocess each, {PEERS} trials         {statistics.median(theirs) * 1e3:10.1f}")
    print(f"a sweep of {trials}, its start included {statistics.median(ours) * 1e3:10.1f}")
    print(f"trials were {', '.join(timed.ways)}")
    return statistics.median(their / our for their, our in zip(theirs, ours, strict=True))
