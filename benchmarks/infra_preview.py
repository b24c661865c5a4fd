"""What a preview costs over the programs that it runs, in CPU; memory; growth with clusters.

The bare programs run once with the SDK as it is, against the stand-in engine with nobody looking;
what this process spends on answering them is not counted for them, and is counted for the preview.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from infra.preview.analyzer import captures
from infra.preview.capture import Capture
from infra.preview.runner import ROOT, capture

STACKS = ("dev", "staging", "prod")


def main(*, quick: bool) -> float:
    """CPU of previewing three stacks with one analyzer over that of the three bare programs."""
    print(f"load {os.getloadavg()[0]:.1f} before")
    stacks = STACKS[:1] if quick else STACKS
    bare = [capture(stack, bare=True) for stack in stacks]
    alone = sum(one.spent.cpu_seconds for one in bare)
    before = time.process_time()
    found, analyzer = captures(stacks)
    _checked(found)
    here = time.process_time() - before
    assert analyzer
    programs = sum(one.spent.cpu_seconds for one in found)
    whole = programs + analyzer.spent.cpu_seconds + here
    print(f"bare programs       {alone:6.1f} s of CPU")
    print(f"preview             {whole:6.1f} s: programs {programs:.1f}, analyzer", end=" ")
    print(f"{analyzer.spent.cpu_seconds:.1f}, this process {here:.1f}")
    print(f"preview             {whole / programs:6.2f} times the CPU of its own programs")
    peaks = {f"bare {one.stack}": one.spent.peak_mib for one in bare}
    peaks |= {one.stack: one.spent.peak_mib for one in found}
    peaks["analyzer"] = analyzer.spent.peak_mib
    peaks["preview"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("peak MiB            " + ", ".join(f"{name} {mib:.0f}" for name, mib in peaks.items()))
    _growth((1, 10) if quick else (1, 10, 100))
    return whole / alone


def _checked(found: Sequence[Capture]) -> None:
    """The rest of what a preview does to them."""
    from infra.catalog.prices import read
    from infra.cost.estimate import estimate
    from infra.preview.rendering import rendered
    from infra.preview.report import Report
    from infra.preview.sdk_types import problems
    from infra.settings.loader import load

    prices = read()
    rendered(
        [
            Report(one, estimate(load(one.stack), prices), tuple(problems(one.provided)))
            for one in found
        ],
        "md",
    )


def _growth(counts: Sequence[int]) -> None:
    """CPU a resource as clusters are added: level when growth is linear."""
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
            one = capture("many", root=root)
            size = len(one.provided)
            print(f"{count:4} clusters       {size:4} resources", end="")
            print(f" {one.spent.cpu_seconds:6.1f} s of CPU, {one.spent.peak_mib:.0f} MiB,", end="")
            print(f" {one.spent.cpu_seconds / size * 1000:.0f} ms a resource")
