"""Measure `ml release rollback --approved-by` until the previous version's first response.

In the tests' tiny project, version 2 replaces version 1 by a canary, and version 1's server stops.
A caller sends requests all the time; none may fail.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from statistics import median

from ml.backends.local.backend import LocalBackend
from ml.backends.local.serving import endpoint
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from ml.release.rollout.invoke import ask

AT_ONCE_S = 5.0
REPEATS = 3
ML = Path(__file__).parents[1] / ".venv/bin/ml"


def main(quick: bool) -> float:
    from tests.release import tiny

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLOPS_HOME"] = str(Path(folder) / "home")
        project = tiny.make(Path(folder) / "repository")
        with chdir(project.root):
            try:
                first, second = (project.train(skill).name for skill in (0.8, 0.95))
                _promote(first)
                seconds = []
                for _ in range(1 if quick else REPEATS):
                    _promote(second)
                    seconds.append(_roll_back())
            finally:
                endpoint.stop("tiny")
    print("seconds to the first answer: " + ", ".join(f"{value:.1f}" for value in seconds))
    return median(seconds) / AT_ONCE_S


def _promote(run: str) -> None:
    propose(LocalBackend(), "tiny", run)
    apply(LocalBackend(), "tiny", "local", "ana")


def _roll_back() -> float:
    """Return the seconds from the command to the first response of version 1."""
    began = time.perf_counter()
    rollback = subprocess.Popen(
        [ML, "release", "rollback", "tiny", "--approved-by", "ana"], stderr=subprocess.DEVNULL
    )
    while ask(LocalBackend(), "tiny", {"question": "how?"}).version != "1":
        assert rollback.poll() in (None, 0), "the rollback failed"
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    assert rollback.wait() == 0
    return seconds
