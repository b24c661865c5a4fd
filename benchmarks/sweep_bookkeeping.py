"""Measure the overhead of a sweep of 1,000 trials: time per trial, memory, bytes written.

The local backend does its real work: sampling, records, MLflow's tables, early termination. Only
the trials' processes are fakes, which have logged their values and ended when they are polled. The
ratio is of CPU time, which other programs hardly affect; elapsed time is printed, too.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ml.backends.runs import Event, Run, Watch, unwatched

VALUES = 20  # values of the primary metric per trial
BUDGET_MS = 25.0
PLACE = ("sweep.yml", 1)


class Ended:
    """A fake process that has ended successfully."""

    start_method = "ended at once"

    def poll(self) -> int:
        """Return the exit status 0."""
        return 0

    def terminate(self) -> None:
        """It has ended."""

    def kill(self) -> None:
        """It has ended."""


class Instant:
    """A fake process pool: `start` writes a job's values to MLflow's tables."""

    def __init__(self) -> None:
        from ml.core.home import database

        self._store = sqlite3.connect(database(), timeout=20)
        self._started = 0
        # CPU and elapsed seconds of the fake, which do not count.
        self.seconds, self.passed = 0.0, 0.0

    def start(self, job: Any, *how: object) -> Ended:
        """Log the trial's curve, a sawtooth that differs by trial; return its ended process."""
        began, wall = time.process_time(), time.perf_counter()
        self._started += 1
        level = (self._started * 37 % 101) / 101
        rows = [("score", level + n / 1000, n, job.run_id, n, 0) for n in range(VALUES)]
        names = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
        with self._store:
            self._store.executemany(f"INSERT INTO metrics {names}", rows)
            self._store.execute(f"INSERT INTO latest_metrics {names}", rows[-1])
        self.seconds += time.process_time() - began
        self.passed += time.perf_counter() - wall
        return Ended()

    def warm(self, job: Any, *how: object) -> None:
        """Do nothing: there is nothing to import."""

    def wait(self, seconds: float) -> None:
        """Do nothing: all processes have ended."""

    def close(self) -> None:
        """Close the store."""
        self._store.close()


@dataclass
class Measured:
    """The measurements of a sweep by trial: milliseconds (CPU, elapsed), memory (bytes)
    and files (bytes) after each."""

    run: Run | None = None
    milliseconds: list[float] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def mean(self, first: int, last: int) -> float:
        """Return the mean milliseconds of the trials from `first` until before `last`."""
        chosen = self.milliseconds[first:last]
        return sum(chosen) / len(chosen)


@contextmanager
def home() -> Iterator[Path]:
    """Yield a temporary home with a new tracking store."""
    with tempfile.TemporaryDirectory() as temporary:
        before = os.environ.get("MLOPS_HOME")
        os.environ["MLOPS_HOME"] = temporary
        try:
            yield Path(temporary)
        finally:
            del os.environ["MLOPS_HOME"]
            if before is not None:
                os.environ["MLOPS_HOME"] = before


def plan(algorithm: str, trials: int) -> Any:
    """Return a sweep over ten parameters, with a policy that evaluates every value."""
    from ml.core.errors import Place
    from ml.specs.plan.plans import CommandPlan, Dimension, EarlyTermination, Environment, SweepPlan

    here = Place(*PLACE)
    numbers = {f"f{n}": Dimension(f"f{n}", "uniform", (0.0, 1.0), here) for n in range(6)}
    words = {f"c{n}": Dimension(f"c{n}", "choice", (1, 2, 4, 8), here) for n in range(4)}
    return SweepPlan(
        here,
        "bookkeeping",
        "benchmark",
        CommandPlan(here, "trial", "benchmark", "true", None, Environment("e")),
        numbers | words,
        algorithm,  # type: ignore[arg-type]
        "maximize",
        "score",
        seed=1,
        max_total_trials=trials,
        max_concurrent_trials=1,
        early_termination=EarlyTermination("median_stopping", here, 1, 5),
    )


def measure(algorithm: str, trials: int, also: Watch = unwatched) -> Measured:
    """Run a sweep in the current home; `also` is notified, without counting its time."""
    from ml.backends.local.execution.command import Session
    from ml.backends.local.execution.sweep import Sweep
    from ml.backends.local.runs import jobs, records
    from ml.backends.local.tracking.tracking import Tracking

    sweep_plan, found = plan(algorithm, trials), Measured()
    process, began, wall = psutil.Process(), 0.0, 0.0

    def watch(event: Event) -> None:
        nonlocal began, wall
        if event.kind == "trial_ended" and event.trial is not None:
            found.milliseconds.append(1000 * (time.process_time() - began - pool.seconds))
            found.passed.append(1000 * (time.perf_counter() - wall - pool.passed))
            pool.seconds = pool.passed = 0.0
            found.memory.append(process.memory_info().rss)
            folder = event.trial.folder
            found.written.append(sum(path.stat().st_size for path in folder.rglob("*.json")))
        also(event)
        if event.kind == "trial_ended":
            began, wall = time.process_time(), time.perf_counter()

    tracking, pool = Tracking(), Instant()
    with jobs.new() as folder, closing(pool):
        origin = records.lineage_of(sweep_plan.trial, None)
        session = Session(tracking, pool, None, origin, 1)  # type: ignore[arg-type]
        sweep = Sweep(sweep_plan, session, folder, watch, folder.name, 1)
        gc.collect()
        began, wall = time.process_time(), time.perf_counter()
        while not sweep.turn("", False):
            pass
        found.run = sweep.finish()
    return found


def main(quick: bool) -> float:
    """Print time and peak memory for both sampling algorithms.

    Returns the larger CPU milliseconds per trial, divided by 25."""
    trials = 300 if quick else 1000
    part = trials // 10
    worst = 0.0
    head = f"{trials} trials, {VALUES} values"
    print(
        f"{head:24} ms a trial  first tenth  last tenth  passed  kB written  MB by a tenth"
        "  MB at the end"
    )
    for algorithm in ("random", "bayesian"):
        with home():
            measure(algorithm, 30)  # warm-up: imports, first pages of the store
            found = measure(algorithm, trials)
        mean, first = found.mean(0, trials), found.mean(0, part)
        last = found.mean(trials - part, trials)
        wrote = sum(found.written) / trials / 1000
        passed = sum(found.passed) / trials
        early, late = (max(some) / 1e6 for some in (found.memory[:part], found.memory))
        print(
            f"{algorithm:24} {mean:10.2f} {first:12.2f} {last:11.2f} {passed:7.2f} {wrote:11.1f}"
            f" {early:14.1f} {late:14.1f}"
        )
        worst = max(worst, mean)
    return worst / BUDGET_MS
