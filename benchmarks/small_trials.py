"""Compare the time of trials that only import packages with that of plain subprocesses.

Two run at a time. Ours is a whole sweep: start of the executor and the forkserver, and each trial's
folder, working copy, log, record and MLflow run. The peer is `python trial.py` only.
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

TRIALS = 600  # for ours; the peer needs fewer, since its time per trial is constant
PEERS = 12


def subprocesses(count: int) -> float:
    """Return the seconds per trial of `python trial.py`, with AT_ONCE at a time."""
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
    """Print both times per trial; return the subprocess's divided by ours."""
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
