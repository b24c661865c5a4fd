"""Measure how often canaries reject healthy deployments, and how often and how soon bad ones.

Simulated canaries draw the statistics that a router would record, and pass them to the functions
that decide in real canaries. Two thirds of the servers get slower with fewer requests; processes of
a third lose their core for a moment, once a minute on average. Real canaries have three inference
servers behind a router, with replayed requests. The ratio is the upper end of the 95 % interval of
the simulated false-alarm rate divided by the stated level.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.stats import beta

from benchmarks.simulated_canary import (
    STRATEGY,
    Simulated,
    healthy,
    shifted_share,
    simulate,
    with_defect,
)

HEALTHY, BAD, REAL = 10_000, 400, 200
CHUNK = 50  # canaries per task of a process pool
PAIRS_OF_SERVERS = 10
CONSTANT = "a constant prediction"
MEANS = ("requests", "seconds")


def main(quick: bool) -> float:
    count, worse = (HEALTHY // 20, BAD // 8) if quick else (HEALTHY, BAD)
    with ProcessPoolExecutor() as pool:
        found = [run for part in pool.map(healthy_ones, range(count // CHUNK)) for run in part]
        spoilt_ones = {
            name: pool.map(bad_ones, [name] * (worse // CHUNK), range(worse // CHUNK))
            for name in bad()
        }
        refused = [run.why for run in found if not run.passed]
        low, high = interval(len(refused), count)
        level = STRATEGY.false_alarms
        share = len(refused) / count
        print(f"{count} simulated healthy canaries: {len(refused)} refused, {share:.2%}")
        print(f"  95 % interval {low:.3%} to {high:.3%}; stated level {level:.0%}")
        for why, times in Counter(why.partition(":")[0] for why in refused).most_common():
            print(f"  {times} for {why}")
        requests, seconds = (np.mean([getattr(run, name) for run in found]) for name in MEANS)
        print(f"  on average {requests:.0f} requests to green in {seconds:.0f} s", flush=True)
        for name, parts in spoilt_ones.items():
            _report(name, [run for part in parts for run in part])
    real(5 if quick else REAL)
    return high / level


def _report(name: str, found: list[tuple[Simulated, float]]) -> None:
    """Print how many canaries with one kind of defect were rolled back, and how soon."""
    caught = [run for run, _ in found if not run.passed]
    missed = [share for run, share in found if run.passed]
    middle = [f"{np.median([getattr(run, what) for run in caught] or [0]):.0f}" for what in MEANS]
    print(
        f"{name:22} refused {len(caught)} of {len(found)}, "
        f"after {middle[0]} requests to green, {middle[1]} s",
        flush=True,
    )
    if missed and name == CONSTANT:
        allowed = STRATEGY.tolerances.drift
        within = sum(share <= allowed for share in missed)
        print(
            f"  of the {len(missed)} others {within} move no more predictions than the "
            f"tolerated {allowed:.0%}, since blue mostly gives that answer; the most that any "
            f"moves is {max(missed):.0%}"
        )


def healthy_ones(chunk: int) -> list[Simulated]:
    """Simulate CHUNK canaries in which green behaves like blue."""
    draw, found = np.random.default_rng([20, chunk]), []
    for _ in range(CHUNK):
        kind = healthy(draw)
        found.append(simulate(kind, kind, draw))
    return found


def bad_ones(name: str, chunk: int) -> list[tuple[Simulated, float]]:
    """Simulate CHUNK canaries of greens with a defect of `bad`; add `shifted_share`."""
    draw, found = np.random.default_rng([21, list(bad()).index(name), chunk]), []
    for _ in range(CHUNK):
        blue = replace(healthy(draw), errors=0.0)
        green = with_defect(blue, bad()[name], draw)
        found.append((simulate(green, blue, draw), shifted_share(green, blue)))
    return found


def bad() -> Mapping[str, Mapping[str, object]]:
    """Return each defect → the fields of a healthy `Kind` that it changes."""
    return {
        "errors 2 %": {"errors": 0.02},
        "errors 10 %": {"errors": 0.10},
        "errors 100 %": {"errors": 1.0},
        "twice the latency": {"median_s": 2.0},
        CONSTANT: {"bins": (1.0,)},
        "a memory leak": {"leak_mib": 0.2},
        "another schema": {"unknown_shapes": 1.0},
    }


def real(count: int) -> None:
    """Run complete canaries of healthy greens on real servers, and print their verdicts."""
    from tests.release.canary.greens import STRATEGY as EVERY
    from tests.release.canary.greens import pair

    short = replace(EVERY, requests=(20, 40, 20))
    refused, requests, seconds, failed = [], 0, 0.0, 0
    done = 0
    while done < count:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["MLOPS_HOME"] = f"{folder}/home"
            with pair(Path(folder)) as made:
                for _ in range(min(max(count // PAIRS_OF_SERVERS, 1), count - done)):
                    outcome = made.run_canary(short)
                    done += 1
                    requests += sum(outcome.requests.values())
                    failed += sum(outcome.errors.values())
                    seconds += outcome.seconds
                    if outcome.kind != "passed":
                        refused.append(outcome.why)
        print(f"  {done} of {count} real ones, {len(refused)} refused", flush=True)
    _low, high = interval(len(refused), count)
    print(f"{count} real healthy canaries: {len(refused)} refused, 95 % interval to {high:.1%}")
    print(f"  {requests} requests, {failed} failed, {seconds / count:.1f} s a canary")
    for why in refused:
        print(f"  refused: {why}")


def interval(events: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Clopper-Pearson interval of a share."""
    low = float(beta.ppf(0.025, events, trials - events + 1)) if events else 0.0
    return low, float(beta.ppf(0.975, events + 1, trials - events)) if events < trials else 1.0
