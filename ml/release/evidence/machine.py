"""This machine: what a latency was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

# If set, this variable names this machine's Azure instance type (`Standard_DS3_v2`).
INSTANCE_TYPE = "MLOPS_INSTANCE_TYPE"


def hardware() -> str:
    """The instance type in MLOPS_INSTANCE_TYPE; without it the processor, the usable cores and the
    memory of this machine.
    """
    if instance_type := os.environ.get(INSTANCE_TYPE, "").strip():
        return instance_type
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB"
