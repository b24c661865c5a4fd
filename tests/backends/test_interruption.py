"""Ctrl-C, SIGTERM and SIGKILL of the executor, with real processes and real signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes import reaper
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core.home import tracking_uri
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.forks import Program

# Children and grandchildren, one of them in a session of its own, one deaf to SIGTERM.
STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen(['sleep', '600'])\n"
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open('/dev/stdout', 'w').write('ready\\n')\n"
    "time.sleep(600)\n"
)
COMMAND = """
type: command
code: ../code
command: python script.py
environment: azureml:ml-cpu:1
experiment_name: tests
"""
SWEEP = """
type: sweep
trial:
  code: ../code
  command: python script.py ${{search_space.x}}
  environment: azureml:ml-cpu:1
sampling_algorithm: random
search_space: {x: {type: uniform, min_value: 0, max_value: 1}}
objective: {goal: maximize, primary_metric: score}
limits: {max_total_trials: 6, max_concurrent_trials: 2}
experiment_name: tests
"""


@pytest.fixture
def ml_run(home: Path, tmp_path: Path) -> Callable[[str, str], Program]:
    """Starts `ml run` on a spec and a script, as a person would."""

    def start(spec: str, script: str) -> Program:
        for folder in ("code", "jobs"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "code" / "script.py").write_text(script)
        (tmp_path / "jobs" / "job.yml").write_text(spec)
        return Program("run", "jobs/job.yml", cwd=tmp_path)

    return start


def wait_for(what: Callable[[], object], executor: Program) -> None:
    """Until `what` is true; fails when the executor has ended before."""
    while not what():
        assert executor.poll() is None, executor.communicate()[1]
        time.sleep(0.05)


def trial_logs(home: Path) -> list[Path]:
    """The logs of trials and commands that have said that they are ready."""
    # Not by rglob: working folders vanish while it walks.
    found = (
        path
        for folder in ("*", "*/trials/*")
        for path in (home / "jobs").glob(f"{folder}/logs/std_log.txt")
    )
    return [path for path in found if "ready" in path.read_text()]


def everything(run: Run) -> list[Run]:
    return [run, *run.trials]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_and_all_its_children(
    home: Path, ml_run: Callable[..., Program], number: signal.Signals
) -> None:
    """The run is Canceled, MLflow's KILLED, and nothing is left running; Ctrl-C exits with 130."""
    executor = ml_run(COMMAND, STUBBORN)
    wait_for(lambda: trial_logs(home), executor)
    executor.send_signal(number)
    said = executor.communicate(timeout=60)[1]
    assert executor.returncode == (130 if number == signal.SIGINT else 1), said
    run = LocalRuns().find("latest")
    assert (run.status, run.ended_by) == ("Canceled", number.name)
    assert MlflowClient(tracking_uri()).get_run(run.id).info.status == "KILLED"
    assert processes_of(run.id) == []
    assert "error[canceled]" in said
    assert "logs and outputs are kept" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_ctrl_c_ends_every_trial_of_a_sweep(home: Path, ml_run: Callable[..., Program]) -> None:
    """Completed trials are kept, the best of them is named."""
    script = (
        LOG
        + "log('score', 1.0)\n"
        + (
            "if os.environ['AZUREML_SWEEP_x'] and run_number() > 1:\n"
            "    print('ready', flush=True); time.sleep(600)\n"
        )
    )
    script = "import os\ndef run_number(): return int(os.getcwd().split('/')[-2])\n" + script
    executor = ml_run(SWEEP, script)
    wait_for(lambda: len(trial_logs(home)) == 2, executor)
    executor.send_signal(signal.SIGINT)
    said = executor.communicate(timeout=60)[1]
    assert executor.returncode == 130, said
    run = LocalRuns().find("latest")
    statuses = [trial.status for trial in run.trials]
    assert statuses == ["Completed", "Completed", "Canceled", "Canceled"]
    client = MlflowClient(tracking_uri())
    tracked = [client.get_run(one.id).info.status for one in everything(run)]
    assert tracked == ["KILLED", "FINISHED", "FINISHED", "KILLED", "KILLED"]
    assert all(processes_of(one.id) == [] for one in everything(run))
    assert "2 completed trials are kept" in said
    assert run.best == run.trials[0].name


@pytest.mark.slow
@pytest.mark.attack("The executor of a job is killed")
def test_a_killed_executor_leaves_no_orphan_and_no_damage(
    home: Path, ml_run: Callable[..., Program], command: Plans, sweep: Sweeps
) -> None:
    """SIGKILL in mid-sweep: earlier runs stay readable, the next run works and closes the dead."""
    earlier = LocalBackend().run(sweep(LOG + "log('score', float(sys.argv[1]))"))
    executor = ml_run(SWEEP, STUBBORN)
    wait_for(lambda: len(trial_logs(home)) == 2, executor)
    executor.kill()
    executor.wait()
    dead = LocalRuns().find("latest")
    assert dead.id != earlier.id
    assert dead.status == "Canceled"
    assert dead.error is not None
    assert dead.error.code == "executor-killed"
    assert LocalRuns().find(earlier.name) == earlier
    deadline = time.monotonic() + 30
    while any(processes_of(one.id) for one in everything(dead)):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.1)
    client = MlflowClient(tracking_uri())
    assert client.get_run(dead.id).info.status == "RUNNING"
    later = LocalBackend().run(command("print('on we go')"))
    assert later.status == "Completed"
    assert [client.get_run(one.id).info.status for one in everything(dead)] == ["KILLED"] * 3
    assert [one.status for one in everything(LocalRuns().find(dead.name))] == ["Canceled"] * 3
    assert [file.name for file in (home / "live").iterdir()] == []


def test_what_a_command_leaves_in_the_background_ends_with_it(home: Path, command: Plans) -> None:
    """A node goes away with its job; so does everything that the job had started."""
    run = LocalBackend().run(command("", "sleep 600 & setsid sleep 600 & echo started"))
    assert run.status == "Completed"
    assert processes_of(run.id) == []


def test_what_was_missed_by_the_first_signal_is_ended_too(
    home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was just forked, or takes a moment to die: the run ends when it is gone."""
    send, signals = reaper.send, list[int]()

    def miss(signum: int, run_id: str, group: int | None, node: int | None) -> list[int]:
        signals.append(signum)
        return send(signum, run_id, group, node) if len(signals) > 1 else processes_of(run_id)

    monkeypatch.setattr(reaper, "send", miss)
    # A process in the middle of exec has no environment to be known by: this one stays a shell.
    background = "setsid sh -c 'touch ready; while :; do sleep 1; done' & "
    run = LocalBackend().run(command("", background + "until [ -e ready ]; do sleep 0.1; done"))
    assert run.status == "Completed"
    assert len(signals) > 1
    assert processes_of(run.id) == []


def test_a_process_that_no_signal_reaches_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One whose disk has gone away, say: it is signalled for the grace period, then left."""
    signals = []
    monkeypatch.setattr(reaper, "GRACE_S", 0.1)
    monkeypatch.setattr(reaper, "send", lambda *call: signals.append(call) or [1])
    reaper.kill("0" * 32, None)
    assert len(signals) > 1
