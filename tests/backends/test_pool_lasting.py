"""The pool that lasts: a run is forked from what the run before it has warmed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.base import Run
from ml.backends.local.backend import LocalBackend
from ml.backends.local.pool.lasting import lasting
from ml.backends.local.pool.pool import _adopting
from ml.backends.local.pool.warm import FORKED
from ml.specs.plan.plan import CommandPlan
from tests.backends.conftest import Sweeps
from tests.backends.test_pool_faithful import log, way

SAYS_WHO = "import os\nprint(os.getppid())\n"
LOGS = f"import mlflow\nmlflow.log_metric('score', 1.0)\n{SAYS_WHO}"


def command(sweep: Sweeps, script: str) -> CommandPlan:
    return replace(sweep(script).trial, command="python script.py")


def forked_from(run: Run) -> Path:
    """The process that forked it, as /proc shows it."""
    assert (run.status, way(run)) == ("Completed", FORKED), log(run)
    return Path("/proc", log(run).split()[-1])


@pytest.mark.slow
def test_runs_share_what_one_has_warmed(home: Path, sweep: Sweeps) -> None:
    """Two jobs that log come from one interpreter, which ends with the context."""
    job = command(sweep, LOGS)
    with lasting():
        first = forked_from(LocalBackend().run(job))
        assert not _adopting()  # orphans are for the runs alone
        second = LocalBackend().run(job)
        assert forked_from(second) == first and first.exists()
        assert second.metrics["score"] == 1.0
    assert not first.exists()


@pytest.mark.slow
def test_one_that_was_killed_loses_no_run(home: Path, sweep: Sweeps) -> None:
    """The next run is started by itself."""
    job = command(sweep, LOGS)
    with lasting():
        warm = forked_from(LocalBackend().run(job))
        os.kill(int(warm.name), signal.SIGKILL)
        run = LocalBackend().run(job)
    assert run.status == "Completed" and "started by itself" in way(run)


def test_nothing_is_warmed_for_what_does_not_log(home: Path, sweep: Sweeps) -> None:
    """It would start no sooner; nor after the context, whatever a job imports."""
    with lasting():
        assert "no interpreter is warm" in way(LocalBackend().run(command(sweep, SAYS_WHO)))
    job = command(sweep, f"{SAYS_WHO}if 0:\n    import mlflow\n")
    assert "no interpreter is warm" in way(LocalBackend().run(job))
