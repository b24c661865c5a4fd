"""Ending a run of another process: a real executor, real children, a real signal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.processes.interruption import cancel
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs import jobs
from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import UserError
from ml.core.home import tracking_uri
from tests.backends.made_runs import made, made_sweep
from tests.backends.test_interruption import COMMAND, STUBBORN, SWEEP, trial_logs, wait_for
from tests.forks import Program

Start = Callable[[str], Program]


@pytest.fixture
def start(home: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts `ml run` on a spec whose script is deaf to SIGTERM."""
    started: list[Program] = []

    def go(spec: str) -> Program:
        for folder in ("code", "jobs"):
            (tmp_path / folder).mkdir()
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "code" / "script.py").write_text(STUBBORN)
        (tmp_path / "jobs" / "job.yml").write_text(spec)
        started.append(Program("run", "jobs/job.yml", cwd=tmp_path))
        return started[-1]

    yield go
    for one in started:
        one.kill()
        one.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "ready"), [(COMMAND, 1), (SWEEP, 2)])
def test_a_run_is_ended_and_closed_by_its_executor(
    home: Path, start: Start, spec: str, ready: int
) -> None:
    """Canceled, MLflow's KILLED, nothing is left running, and its lock is gone."""
    executor = start(spec)
    wait_for(lambda: len(trial_logs(home)) == ready, executor)
    name = LocalRuns().find("latest").name
    assert jobs.executor(name) == executor.pid
    run = cancel(name)
    assert (run.status, run.ended_by) == ("Canceled", "SIGTERM")
    said = executor.communicate(timeout=60)[1]
    assert executor.returncode == 1
    assert "Traceback" not in said
    client = MlflowClient(tracking_uri())
    for one in (run, *run.below()):
        assert client.get_run(one.id).info.status == "KILLED"
        assert processes_of(one.id) == []
    assert list((home / "live").iterdir()) == []
    with pytest.raises(UserError) as refused:
        cancel(name)
    assert refused.value.problems[0].code == "not-running"


@pytest.mark.slow
def test_a_process_that_took_over_the_number_is_left_alone(home: Path) -> None:
    """The lock names a process that does not hold it, as after a change of container."""
    run = made("odd_oak_01", status="Running", ended=None)
    bystander = subprocess.Popen(["sleep", "60"])
    script = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(60)"
    )
    (home / "live").mkdir()
    (home / "live" / run.name).write_text(f"{bystander.pid}\n")
    holder = subprocess.Popen(
        [sys.executable, "-c", script, home / "live" / run.name], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError):
            cancel(run.name)
        assert bystander.poll() is None
    finally:
        for process in (bystander, holder):
            process.kill()
            process.communicate()


def test_what_cannot_be_canceled() -> None:
    """A run that ended, one whose executor is gone, a trial by itself, one that is not there."""
    done, sweep = made("done_oak_01"), made_sweep("sweep_oak_02", 0.5)
    dead = made("dead_oak_03", status="Running", ended=None, started=time.time())
    for wanted, code in (
        (done.name, "not-running"),
        (dead.name, "not-running"),
        (sweep.trials[0].name, "child-run"),
        ("no_such_run_00", "no-such-run"),
    ):
        with pytest.raises(UserError) as refused:
            cancel(wanted)
        assert refused.value.problems[0].code == code
