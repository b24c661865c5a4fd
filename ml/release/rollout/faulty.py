"""A scoring script with a deliberate fault, which `ml release drill` serves as green.

It wraps the real script, which SCRIPT names; FAULT names the fault. The inference server runs it as
a file, so it imports nothing of this repository.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import time
from pathlib import Path
from types import ModuleType

SCRIPT, FAULT = "MLOPS_DRILL_SCRIPT", "MLOPS_DRILL_FAULT"
# SLOW_S exceeds the tolerance of the organisation policy on canaries (`tolerances.latency_ms`).
EVERY, SLOW_S = 10, 0.2
FAULTS = {
    "errors": "one request in ten fails",
    "slow": "every answer takes a fifth of a second longer",
    "constant": "every question gets the first one's answer",
}

_real: ModuleType
_first: object = None
_numbers = itertools.count(1)


def init() -> None:
    """Load the real scoring script."""
    global _real
    path = Path(os.environ[SCRIPT])
    spec = importlib.util.spec_from_file_location("drilled_score", path)
    assert spec is not None and spec.loader is not None
    _real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_real)
    _real.init()


def run(body: str) -> object:
    """Return the real answer with the fault."""
    global _first
    fault, number = os.environ[FAULT], next(_numbers)
    if fault == "errors" and number % EVERY == 0:
        raise RuntimeError("a fault that `ml release drill` injected")
    answer = _real.run(body)
    if fault == "slow":
        time.sleep(SLOW_S)
    if fault == "constant":
        _first = answer if _first is None else _first
        return _first
    return answer
