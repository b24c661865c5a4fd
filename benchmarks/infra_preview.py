"""Compare the CPU time and memory of `infra preview` with that of the Pulumi programs alone.

The bare programs run one by one with the unchanged SDK, against the stand-in engine and without
policies. The CPU time of this process, which serves them, counts only for the preview. The
benchmark also measures how the time grows with the number of clusters.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from infra.preview.capture import Capture
from infra.preview.runner import captures, runner
from ml.core.imports import ROOT

STACKS = ("dev", "staging", "prod")


@dataclass
class Usage:
    """CPU seconds of this process and of its children, and the children's peak memory."""

    own: float = 0.0
    children: float = 0.0
    peak_mib: float = 0.0


@contextlib.contextmanager
def _measured() -> Iterator[Usage]:
    usage, done = Usage(), threading.Event()

    def sample() -> None:
        while not done.wait(0.1):
            mib = 0.0
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    mib += child.memory_full_info().pss / 2**20
            usage.peak_mib = max(usage.peak_mib, mib)
        usage.own -= time.thread_time()

    thread = threading.Thread(target=sample)
    cpu_s, children = time.process_time(), _of_children()
    thread.start()
    try:
        yield usage
    finally:
        done.set()
        thread.join()
        usage.own += time.process_time() - cpu_s
        usage.children = _of_children() - children


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main(*, quick: bool) -> float:
    """Return the CPU time of a preview of three stacks divided by that of the bare programs."""
    print(f"load {os.getloadavg()[0]:.1f} before")
    stacks = STACKS[:1] if quick else STACKS
    with _measured() as bare:
        for stack in stacks:
            with runner() as programs:
                programs.capture(stack, bare=True)
    with _measured() as preview:
        with runner() as programs:
            results = captures(programs, stacks)
        _checked(results)
    cost = preview.own + preview.children
    print(f"bare programs       {bare.children:6.1f} s of CPU, peak {bare.peak_mib:.0f} MiB")
    print(f"preview             {cost:6.1f} s: its processes {preview.children:.1f},", end=" ")
    print(f"this one {preview.own:.1f}; peak of the processes {preview.peak_mib:.0f} MiB")
    _growth((1, 10) if quick else (1, 10, 100))
    return cost / bare.children


def _checked(results: Sequence[Capture]) -> None:
    """Check types, estimate costs and render the report, as a preview does."""
    from infra.cost.estimate import estimate
    from infra.cost.prices import read
    from infra.preview.report import Report, rendered
    from infra.preview.sdk_types import problems
    from infra.settings.loader import load

    prices = read()
    rendered(
        [
            Report(result, estimate(load(result.stack), prices), tuple(problems(result.provided)))
            for result in results
        ],
        "md",
    )


def _growth(counts: Sequence[int]) -> None:
    """Print the CPU time per resource by number of clusters; it is constant for linear growth."""
    document = yaml.safe_load((ROOT / "infra" / "Pulumi.dev.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(ROOT / "infra", root / "infra")
        shutil.copytree(ROOT / "ml" / "core", root / "ml" / "core")
        for count in counts:
            document["config"]["platform:clusters"] = [
                {"name": f"cluster{number}", "preset": "cpu"} for number in range(count)
            ]
            (root / "infra" / "Pulumi.many.yaml").write_text(yaml.safe_dump(document))
            with _measured() as usage, runner() as programs:
                size = len(programs.capture("many", root=root).provided)
            print(f"{count:4} clusters       {size:4} resources", end="")
            print(f" {usage.children:6.1f} s of CPU, {usage.peak_mib:.0f} MiB,", end="")
            print(f" {usage.children / size * 1000:.0f} ms a resource")
