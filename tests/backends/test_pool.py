"""The pool: what it leaves to a shell, what it survives, and that trials end as others do."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.pool import forkserver
from ml.backends.local.pool.pool import FORKED, SINGLE
from ml.backends.local.processes import reaper
from ml.backends.local.processes.reaper import processes_of
from ml.backends.runs import Event, Run
from ml.core import home as homes
from ml.specs.plan.plans import EarlyTermination, SweepPlan
from tests.backends.conftest import LOG, Sweeps
from tests.backends.executors import begin, kill, start
from tests.backends.test_pool_faithful import log, start_method

WAITS = "import os, time, numpy\nprint('ready', flush=True)\ntime.sleep(600)\n"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def variant(plan: SweepPlan, **files: str) -> SweepPlan:
    assert plan.trial.code is not None
    for name, text in files.items():
        path = plan.trial.code / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return plan


@pytest.mark.parametrize(
    ("script", "changes", "why"),
    [
        ("print(1)", {"command": "python script.py && true"}, "the command needs a shell"),
        ("import os\nos.environ['A'] = '1'", {}, "script.py:2 changes the environment"),
        ("print(1)", {"environment_variables": {"PYTHONPATH": "x"}}, "PYTHONPATH is set"),
        ("print(1)", {"environment_variables": {"PYTHONOPTIMIZE": "1"}}, "PYTHONOPTIMIZE is set"),
        ("print(1)", {"environment_variables": {"PATH": "/usr/bin:/bin"}}, "another interpreter"),
        ("print(1)", {"command": "python none.py"}, "is not a file of the code"),
        ("print(1)", {"command": "python ../script.py"}, "is not a file of the code"),
    ],
)
def test_what_goes_the_plain_way(
    home: Path, sweep: Sweeps, script: str, changes: dict[str, Any], why: str
) -> None:
    """The record says why; the trial runs as it always did."""
    plan = sweep(script, max_total_trials=1)
    run = LocalBackend().run(replace(plan, trial=replace(plan.trial, **changes)))
    assert why in start_method(run.trials[0])
    assert start_method(run.trials[0]) != FORKED


def test_a_single_job_starts_no_forkserver(home: Path, sweep: Sweeps) -> None:
    """It would wait for the same imports."""
    trial = sweep("import numpy").trial
    run = LocalBackend().run(replace(trial, command="python script.py"))
    assert start_method(run) == f"started by itself: {SINGLE}"


@pytest.mark.slow
def test_code_that_hides_a_package(home: Path, sweep: Sweeps) -> None:
    """`import numpy` means the code's own, and a package that imports `html` gets the code's."""
    for name in ("numpy", "html"):
        plan = variant(
            sweep("import numpy\nimport pandas.io.html as t\nprint('own')", max_total_trials=1),
            **{f"{name}_py": "print('mine')\n"},
        )
        run = LocalBackend().run(plan)
        assert "mine" in log(run.trials[0])
        assert "` shadows an installed module" in start_method(run.trials[0])


@pytest.mark.parametrize(
    "text",
    [
        "print('hello')",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import socket\nkept = socket.socket()",
    ],
)
def test_what_may_not_be_imported_before_a_fork(
    home: Path, sweep: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A package that prints, or starts a thread, is imported by every trial for itself."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "busy_package.py").write_text(text)
    addition = f"import runpy, site; site.addsitedir({str(tmp_path / 'site')!r})\n"
    addition += f"runpy.run_path({forkserver.__file__!r}, run_name='__main__')"
    (tmp_path / "server.py").write_text(addition)
    monkeypatch.setattr(forkserver, "__file__", str(tmp_path / "server.py"))
    run = LocalBackend().run(
        sweep(
            "import site, numpy\n"
            f"site.addsitedir({str(tmp_path / 'site')!r})\nimport busy_package\nprint('end')",
            max_total_trials=2,
        )
    )
    for trial in run.trials:
        assert log(trial) == ("hello\nend\n" if "hello" in text else "end\n")
        assert "importing `busy_package` prints something, starts a thread or" in start_method(
            trial
        )


def test_onnx_runtime_is_imported_before_a_fork(home: Path, sweep: Sweeps) -> None:
    """Its telemetry, which opens a database and starts threads on import, is off."""
    run = LocalBackend().run(sweep("import onnxruntime\nprint('end')", max_total_trials=2))
    assert [(start_method(trial), log(trial)) for trial in run.trials] == [(FORKED, "end\n")] * 2


def test_a_package_that_cannot_be_imported(home: Path, sweep: Sweeps) -> None:
    """The script meets the same error, and may go on without it."""
    script = (
        "try:\n    import no_such_package\nexcept ImportError as e:\n    print(e)\nimport numpy\n"
    )
    run = LocalBackend().run(sweep(script, max_total_trials=1))
    assert start_method(run.trials[0]) == FORKED
    assert log(run.trials[0]) == "No module named 'no_such_package'\n"


def test_a_forkserver_that_ends_at_once(
    home: Path, sweep: Sweeps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trial is lost: each is started by itself, and the record says what happened."""
    code = "import os, sys; print('out of memory', file=sys.stderr); os._exit(3)"
    (tmp_path / "server.py").write_text(code)
    monkeypatch.setattr(forkserver, "__file__", str(tmp_path / "server.py"))
    run = LocalBackend().run(sweep("import numpy\nprint('fine')\n", max_total_trials=2))
    assert [log(trial) for trial in run.trials] == ["fine\n"] * 2
    expected = "started by itself: the forkserver ended (exit code 3: out of memory)"
    assert {start_method(trial) for trial in run.trials} == {expected}


def test_a_forkserver_that_cannot_be_started(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, say: what a forkserver would need, a trial may not."""

    def full() -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    run = LocalBackend().run(sweep("import numpy\nprint('fine')\n", max_total_trials=1))
    assert log(run.trials[0]) == "fine\n"
    assert start_method(run.trials[0]).endswith("could be started (No space left on device)")


def test_a_forkserver_that_is_killed(home: Path, sweep: Sweeps) -> None:
    """The trial that runs ends with it, since nobody could tell how it ends; later ones are
    started by themselves."""
    script = "import numpy, time, sys\nfrom pathlib import Path\n" + (
        "time.sleep(600 if Path.cwd().parent.name == '0' else 0)\n"
    )
    plan = sweep(script, max_total_trials=4, max_concurrent_trials=1)
    killed: list[int] = []

    def watch(event: Event) -> None:
        if event.kind == "trial_started" and not killed:
            killed.append(os.fork())
            if killed == [0]:  # kills the forkserver from outside when the trial runs
                until(lambda: in_home(home))
                os.kill(parent(in_home(home)[0]), signal.SIGKILL)
                os._exit(0)

    run = LocalBackend().run(plan, watch)
    os.waitpid(killed[0], 0)
    assert [trial.status for trial in run.trials] == ["Failed", *["Completed"] * 3]
    assert run.trials[0].error is not None and "SIGKILL" in run.trials[0].error.actual
    assert start_method(run.trials[0]) == FORKED
    assert in_home(home) == []
    expected = "started by itself: the forkserver ended (exit code -9)"
    assert {start_method(trial) for trial in run.trials[1:]} == {expected}


def test_a_killed_executor_leaves_no_warm_process(home: Path, sweep: Sweeps) -> None:
    """Neither a trial nor the interpreter that it was forked from."""
    executor = start(begin(sweep(WAITS, max_total_trials=2)))

    def logs() -> list[Path]:
        found = homes.jobs().glob("*/trials/*/logs/std_log.txt")
        return [path for path in found if "ready" in path.read_text()]

    until(lambda: len(logs()) == 2)
    assert executor.pid is not None
    trials = set(in_home(home))
    interpreter = {parent(pid) for pid in trials}
    assert len(trials) == 2
    assert len(interpreter) == 1
    kill(executor)
    until(lambda: not [pid for pid in trials | interpreter if alive(pid)])


def in_home(home: Path) -> list[int]:
    """The processes that work in a run's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(home / "jobs"):
                found.append(int(entry.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forked_trial_holds_no_lock_of_the_executor(home: Path, sweep: Sweeps) -> None:
    """A lock that outlived the executor would make the run look alive."""
    script = "import os, numpy\nprint(len(os.listdir('/proc/self/fd')))\n"
    run = LocalBackend().run(sweep(script, max_total_trials=1))
    assert log(run.trials[0]) == "4\n"  # the three streams, and the listing's own
    assert list(homes.run_locks().iterdir()) == []


@pytest.mark.slow
def test_time_limits_and_policies_end_forked_trials(home: Path, sweep: Sweeps) -> None:
    """SIGTERM, then SIGKILL for one that is deaf to it and has children elsewhere."""
    stubborn = (
        "import signal, subprocess, numpy, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
    )
    plan = sweep(stubborn, max_total_trials=1, trial_timeout_s=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reaper, "GRACE_S", 0.5)
        run = LocalBackend().run(plan)
    (trial,) = run.trials
    assert (trial.status, trial.ended_by, start_method(trial)) == (
        "Canceled",
        "trial_timeout",
        FORKED,
    )
    assert processes_of(trial.id) == in_home(home) == []
    policy = EarlyTermination("median_stopping", plan.place)
    script = LOG + (
        "import numpy\nbad = Path.cwd().parent.name != '0'\n"
        "for step in range(3):\n    log('score', 0.0 if bad else 1.0, step)\n"
        "if bad:\n    time.sleep(600)\n"
    )
    plan = sweep(script, max_total_trials=2, max_concurrent_trials=1, early_termination=policy)
    run = LocalBackend().run(plan)
    assert [t.ended_by for t in run.trials] == ["", "median_stopping"]
    assert {start_method(t) for t in run.trials} == {FORKED}


def test_what_a_forked_trial_leaves_behind_ends_with_it(home: Path, sweep: Sweeps) -> None:
    """Also a process that went its own way."""
    script = (
        "import subprocess, numpy\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "subprocess.Popen(['bash', '-c', 'setsid sleep 600 & disown'])\n"
        "import os, signal, time\n"
        "for leave in (os.getpid, os.setpgrp, os.setsid):\n"
        "    if os.fork() == 0:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "        leave()\n        time.sleep(600)\n"
    )
    run = LocalBackend().run(sweep(script, max_total_trials=2))
    assert [processes_of(trial.id) for trial in run.trials] == [[], []]
    assert in_home(home) == []
    assert {start_method(trial) for trial in run.trials} == {FORKED}


def test_two_sweeps_at_once(home: Path, sweep: Sweeps) -> None:
    """Two executors in one home, each with an interpreter of its own."""
    plan = sweep(LOG + "import numpy\nlog('score', float(sys.argv[1]))", max_total_trials=6)
    executors = [start(begin(plan)) for _ in range(2)]
    for executor in executors:
        executor.join()
    assert [executor.exitcode for executor in executors] == [0, 0]
    from ml.backends.local.runs.store import LocalRuns

    found: list[Run] = [LocalRuns().find(folder.name) for folder in homes.jobs().iterdir()]
    assert [len(run.trials) for run in found] == [6, 6]
    assert {run.status for run in found} == {"Completed"}


@pytest.mark.slow
def test_trials_log_by_mlflow(home: Path, sweep: Sweeps) -> None:
    """Parameters and metrics of four trials that log with one imported MLflow, each in its run."""
    script = (
        "import sys, mlflow\nfrom pathlib import Path\n"
        "print('mlflow.store.tracking.sqlalchemy_store' in vars(sys)['modules'])\n"
        "with mlflow.start_run():\n    mlflow.log_param('mine', Path.cwd().parent.name)\n"
        "    for step in range(5):\n        mlflow.log_metric('score', step, step=step)\n"
        "    mlflow.set_tag('tag', sys.argv[1])\n"
    )
    run = LocalBackend().run(sweep(script, max_total_trials=4))
    assert run.status == "Completed", log(run.trials[0])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(homes.tracking_uri())
    for number, trial in enumerate(run.trials):
        found = client.get_run(trial.id)
        assert found.data.params["mine"] == str(number)
        assert found.data.tags["tag"] == found.data.params["x"]
        assert [m.value for m in client.get_metric_history(trial.id, "score")] == [0, 1, 2, 3, 4]
        assert found.info.status == "FINISHED"
        assert start_method(trial) == FORKED
        assert "True" in log(trial)  # what MLflow imports when it is first used is there, too
