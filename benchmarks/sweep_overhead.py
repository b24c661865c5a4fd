"""Compare a sweep of 24 trials of 0.5 s with two plain worker processes.

The peer imports the same packages once and forks two workers, which each do half of the computing
without folders, records or MLflow. Both are timed as whole processes, including their start.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.trials import AT_ONCE, COMPUTE, IMPORTS, run

TRIALS, SECONDS = 24, 0.5
PEER = f"""
import os
{IMPORTS}{COMPUTE}
for _ in range({AT_ONCE}):
    if os.fork() == 0:
        for _ in range({TRIALS // AT_ONCE}):
            compute({SECONDS})
        os._exit(0)
for _ in range({AT_ONCE}):
    os.wait()
os._exit(0)
"""
TRIAL = f"{IMPORTS}{COMPUTE}\ncompute({SECONDS})\n"
LOGGING = f"{TRIAL}\nmlflow.log_metric('score', 1.0)\n"


def workers() -> float:
    """Run the peer; return its seconds."""
    from pathlib import Path

    from ml.backends.local.process_environment import variables

    began = time.perf_counter()
    environment = variables("none", "none", 1, {}, {}, Path())
    subprocess.run([sys.executable, "-c", PEER], env=environment, check=True)
    return time.perf_counter() - began


def main(quick: bool) -> float:
    """Print both times; return the median ratio of ours to the peer's."""
    rounds = 1 if quick else 3
    theirs, ours, logging = [], [], []
    for _ in range(rounds):
        theirs.append(workers())
        timed = run(TRIAL, TRIALS)
        ours.append(timed.seconds)
        logging.append(run(LOGGING, TRIALS).seconds)
    print(
        f"{TRIALS} trials of {SECONDS} s computing, {AT_ONCE} at a time, {rounds} rounds  seconds"
    )
    for name, seconds in (
        ("two workers forked after the imports", theirs),
        ("a sweep", ours),
        ("the same, each trial logs by mlflow.log_metric", logging),
    ):
        print(f"{name:55} {statistics.median(seconds):8.2f}")
    print(f"trials were {', '.join(timed.ways)}")
    return statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
