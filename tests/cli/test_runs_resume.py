"""`ml runs resume` as a person types it, and what the other commands say of a resumed run."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ml.backends.local.runs import records
from ml.backends.runs import Run
from ml.specs.plan.plans import SweepPlan
from tests.backends.conftest import Sweeps
from tests.backends.conftest import command as command
from tests.backends.conftest import sweep as sweep
from tests.backends.executors import begin, kill, only, settled, start
from tests.backends.test_resume import waiting
from tests.cli.conftest import Ml


def killed(plan: SweepPlan, here: Path) -> Run:
    executor = start(begin(plan))
    while not all((here / f"begun-{number}").exists() for number in (2, 3)):
        assert executor.is_alive()
        time.sleep(0.01)
    kill(executor)
    return only()


def test_a_killed_sweep(home: Path, sweep: Sweeps, tmp_path: Path, ml: Ml) -> None:
    """Said by the list, gone on with, shown with its pause; a second time there is nothing."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    assert "Canceled (executor-killed)" in ml("list").stdout
    assert f"ml runs resume {dead.name}" in ml("show", dead.name).stderr
    (tmp_path / "go").touch()
    done = ml("resume", dead.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (
        f"{dead.name}: 6 trials, {len(dead.trials)} of them started before; resuming" in done.stderr
    )
    assert f"{dead.name}: Completed" in done.stderr
    shown = ml("show", dead.name).stdout
    assert "resumed" in shown and "once; stopped for" in shown
    assert "(executor-killed), resumed" in shown
    assert "attempt 1" in ml("show", f"{dead.name}_2").stdout
    again = ml("resume", dead.name, "--json")
    assert again.returncode == 0
    assert "is complete: there is nothing to resume" in again.stderr
    assert json.loads(again.stdout)["status"] == "Completed"
    said = json.loads(ml("show", dead.name, "--json").stdout)
    assert [pause["ended_by"] for pause in said["pauses"]] == ["executor-killed"]


def test_what_cannot_go_on(home: Path, sweep: Sweeps, tmp_path: Path, ml: Ml) -> None:
    """Exit 2, the problem and what to type; no traceback. The list says which record is torn."""
    assert ml("resume", "nobody").returncode == 2
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    settled(dead)
    part = ml("resume", f"{dead.name}_0")
    assert part.returncode == 2
    assert "error[child-run]" in part.stderr
    (dead.folder / records.FILE).write_text("{")
    assert f"ml runs resume {dead.name}" in ml("list").stderr
    (dead.folder / "plan.json").write_text("{")
    torn = ml("resume", dead.name)
    assert torn.returncode == 2
    assert "error[no-plan]" in torn.stderr
    assert "Traceback" not in torn.stderr
