"""A sweep that was stopped goes on where it stood: the same run, the same trials."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sqlite3
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ml.backends import snapshot
from ml.backends.local.backend import LocalBackend
from ml.backends.local.execution import resumption, saved_plan
from ml.backends.local.runs import jobs, records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.tracking import reader
from ml.backends.runs import Run
from ml.core import home as homes
from ml.core.errors import Exit, Place, UserError
from ml.specs.plan.plans import EarlyTermination, InputPlan, SweepPlan
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.backends.executors import begin, kill, locks, only, settled, start

# Every trial logs its value; those from the second on wait until the file `go` is there.
WAITING = LOG + (
    "log('score', float(sys.argv[1]))\n"
    "number = int(Path.cwd().parent.name)\n"
    "Path(f'HERE/begun-{number}').touch()\n"
    "while number >= 2 and not Path('HERE/go').exists(): time.sleep(0.01)\n"
    "log('score', float(sys.argv[1]) + 1)\n"
)


def waiting(sweep: Sweeps, here: Path, **changes: object) -> SweepPlan:
    return sweep(WAITING.replace("HERE", str(here)), max_total_trials=6, **changes)


def killed(plan: SweepPlan, here: Path) -> Run:
    """The plan's run, its executor killed while trials 2 and 3 run."""
    executor = start(begin(plan))
    while not all((here / f"begun-{number}").exists() for number in (2, 3)):
        assert executor.is_alive()
        time.sleep(0.01)
    kill(executor)
    return only()


def values(run: Run) -> list[object]:
    return [trial.parameters["x"] for trial in run.trials]


def tracked(run: Run) -> list[tuple[str, str]]:
    """(name, status) of the runs below it in MLflow's store, by name."""
    from ml.core.home import database

    with sqlite3.connect(database()) as connection:
        return connection.execute(
            "SELECT name, status FROM runs JOIN tags USING (run_uuid)"
            " WHERE key = 'mlflow.parentRunId' AND value = ? ORDER BY name",
            (run.id,),
        ).fetchall()


def test_a_killed_sweep_goes_on_where_it_stood(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """Finished trials are kept; those that ran are run again with their values; new ones follow.

    First attempts count nowhere. They are in the records, in the folder and in MLflow, where they
    are KILLED under their own names.
    """
    plan = waiting(sweep, tmp_path)
    dead = killed(plan, tmp_path)
    assert (dead.status, dead.ended_by) == ("Canceled", "executor-killed")
    done = [trial for trial in dead.trials if trial.status == "Completed"]
    (tmp_path / "go").touch()
    run = resumption.resume(dead)
    first_attempts = {2, 3}
    for number in first_attempts:
        trial = run.trials[number]
        (first,) = trial.former
        assert first.id == dead.trials[number].id != trial.id
        assert first.status == "Canceled"
        assert first.folder == run.folder / "attempts" / f"{number}.1"
        assert records.read(first.folder).parameters == trial.parameters
        value = trial.parameters["x"]
        assert reader.curve(trial.id, "score") == [value, value + 1]
    assert tracked(run) == sorted(
        [(f"{run.name}_{number}", "FINISHED") for number in range(6)]
        + [(f"{run.name}_{number}, attempt 1", "KILLED") for number in first_attempts]
    )
    assert (run.status, run.id, run.name) == ("Completed", dead.id, dead.name)
    assert [trial.name for trial in run.trials] == [f"{run.name}_{n}" for n in range(6)]
    assert {trial.status for trial in run.trials} == {"Completed"}
    assert [run.trial(one.name).id for one in done] == [one.id for one in done]
    whole = LocalBackend().run(plan)
    assert values(run) == values(whole)
    assert run.best == f"{run.name}_{whole.best.rpartition('_')[2]}"
    (pause,) = run.pauses
    assert pause.ended_by == "executor-killed"
    assert 0 <= run.active_s < (run.ended or 0) - run.started
    assert LocalRuns().find(run.name) == run
    assert locks(home) == []
    settled(run)


def refused(run: Run, timeout_s: float | None = None) -> str:
    """The code of the problem for which the run is not gone on with."""
    with pytest.raises(UserError) as caught:
        resumption.resume(run, timeout_s=timeout_s)
    assert caught.value.exit_code == Exit.WRONG_CALL
    return caught.value.problems[0].code


def test_what_is_complete_is_left_as_it_is(home: Path, sweep: Sweeps) -> None:
    """Nothing is run again, in no store."""
    run = LocalBackend().run(sweep(LOG + "log('score', 1.0)"))
    before = (run.folder / records.FILE).read_bytes()
    assert run.status == "Completed"
    assert resumption.resume(run) == run
    assert (run.folder / records.FILE).read_bytes() == before


def test_what_failed_by_itself_is_refused(home: Path, sweep: Sweeps) -> None:
    """Its scripts failed: running them again on the same plan comes to the same."""
    run = LocalBackend().run(sweep("raise SystemExit(3)"))
    assert run.status == "Failed"
    assert refused(run) == "not-interrupted"


def test_a_killed_command_goes_on_in_its_folder(home: Path, command: Plans, tmp_path: Path) -> None:
    """As on a spot node: the same run and log, the mounted output as it was, a fresh copy of the
    code.
    """
    go = tmp_path / "go"
    plan = command(
        "import os, sys, time\nfrom pathlib import Path\n"
        "Path('left').mkdir()\nPath('left/behind').touch()\n"
        "place = Path(sys.argv[1]) / 'steps'\n"
        "done = place.read_text() if place.exists() else ''\n"
        "print('begins after', done or 'nothing', flush=True)\n"
        "place.write_text(done + 'x')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n",
        "python script.py ${{outputs.kept}}",
        {"kept": "uri_folder"},
    )
    executor = start(begin(plan))
    while not [*homes.jobs().glob("*/outputs/kept/steps")]:
        assert executor.is_alive()
        time.sleep(0.01)
    kill(executor)
    dead = only()
    settled(dead)
    assert f"ml runs resume {dead.name}" in str(dead.error)
    go.touch()
    run = resumption.resume(dead)
    assert (run.status, run.id, run.folder) == ("Completed", dead.id, dead.folder)
    assert [pause.ended_by for pause in run.pauses] == ["executor-killed"]
    assert (run.outputs["kept"] / "steps").read_text() == "xx"
    log = (run.folder / "logs" / "std_log.txt").read_text()
    assert log.split() == ["begins", "after", "nothing", "begins", "after", "x"]
    assert LocalRuns().find(run.name) == run


def test_parts_are_refused(home: Path, sweep: Sweeps) -> None:
    """A trial goes on with its sweep."""
    run = LocalBackend().run(sweep(LOG + "log('score', 1.0)"))
    with pytest.raises(UserError, match=f"ml runs resume {run.name}"):
        resumption.plan_of(run.trials[0])


def test_what_still_runs_is_refused_and_named(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """With the number of its process."""
    executor = start(begin(waiting(sweep, tmp_path)))
    while not (tmp_path / "begun-2").exists():
        time.sleep(0.01)
    with pytest.raises(
        UserError, match=f"still-running.*is still running in process {executor.pid}"
    ):
        resumption.resume(only())
    kill(executor)
    settled(only())


def test_of_two_at_once_one_goes_on(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """The other is told; nothing runs twice."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    both = [start(lambda: resumption.resume(dead)) for _ in range(2)]
    while all(one.is_alive() for one in both):
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for one in both:
        one.join()
    assert sorted(one.exitcode or 0 for one in both) == [0, 1]
    run = only()
    assert run.status == "Completed"
    assert len(run.pauses) == 1
    assert [status for _, status in tracked(run)].count("FINISHED") == 6


def test_an_interrupted_sweep_goes_on(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """After SIGINT, and again after SIGTERM: two pauses, and every trial once."""
    plan = waiting(sweep, tmp_path)
    work = begin(plan)
    for number in (signal.SIGINT, signal.SIGTERM):
        for mark in tmp_path.glob("begun-*"):
            mark.unlink()
        executor = start(work)
        while not (tmp_path / "begun-2").exists():
            time.sleep(0.01)
        os.kill(executor.pid or 0, number)
        executor.join()
        stopped = only()
        assert (stopped.status, stopped.ended_by) == ("Canceled", number.name)
        work = partial(resumption.resume, stopped)
    (tmp_path / "go").touch()
    run = resumption.resume(only())
    assert [pause.ended_by for pause in run.pauses] == ["SIGINT", "SIGTERM"]
    assert [trial.status for trial in run.trials] == ["Completed"] * 6
    assert len(run.trials[2].former) == 2
    assert [status for _, status in tracked(run)].count("FINISHED") == 6


def test_data_that_changed_is_refused(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """And so is data that is gone; put back, the sweep goes on."""
    data = tmp_path / "data.csv"
    data.write_text("a,b")
    place = Place("jobs/job.yml", 9)
    plan = waiting(sweep, tmp_path)
    given = {"rows": InputPlan("rows", "uri_file", place, source="data.csv", path=data)}
    dead = killed(replace(plan, trial=replace(plan.trial, inputs=given)), tmp_path)
    data.write_text("a,c")
    assert refused(dead) == "data-changed"
    data.unlink()
    assert refused(dead) == "data-changed"
    data.write_text("a,b")
    (tmp_path / "go").touch()
    assert resumption.resume(dead).status == "Completed"


def test_code_that_is_gone_is_refused(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """The copy is taken again where the folder still has the same content, and not otherwise."""
    plan = waiting(sweep, tmp_path)
    dead = killed(plan, tmp_path)
    (copy,) = homes.snapshots().iterdir()
    script = copy / "script.py"
    text = script.read_text()
    script.write_text(text + "# changed")
    assert refused(dead) == "code-changed"
    shutil.rmtree(copy)
    assert plan.trial.code is not None
    (plan.trial.code / "script.py").write_text("print('other code')")
    assert refused(dead) == "code-changed"
    (plan.trial.code / "script.py").write_text(text)
    (tmp_path / "go").touch()
    run = resumption.resume(dead)
    assert run.status == "Completed"


def test_packages_that_changed_are_told(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """By name; it goes on all the same, and says nothing when nothing changed."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    settled(dead)
    assert list(saved_plan.read(dead.folder).notes()) == []
    plan = json.loads((dead.folder / jobs.PLAN).read_text())
    plan["packages"].append("numpy-1.0.dist-info")
    (dead.folder / jobs.PLAN).write_text(json.dumps(plan))
    (tmp_path / "go").touch()
    said: list[str] = []
    assert resumption.resume(dead, say=said.append).status == "Completed"
    assert said == ["this interpreter has changed since the run was started: numpy-1.0"]


def test_the_spec_may_change_meanwhile(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """The code in the folder is another by now: the sweep goes on with what it was begun with."""
    plan = waiting(sweep, tmp_path)
    dead = killed(plan, tmp_path)
    assert plan.trial.code is not None
    (plan.trial.code / "script.py").write_text("raise SystemExit('other code')")
    (tmp_path / "go").touch()
    assert resumption.resume(dead).status == "Completed"


def test_a_limit_counts_the_time_before(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """A sweep out of its time goes on only with more of it, counted from its beginning."""
    spent = LocalBackend().run(waiting(sweep, tmp_path, timeout_s=1.0))
    assert (spent.status, spent.ended_by) == ("Canceled", "timeout")
    (tmp_path / "go").touch()
    assert refused(spent) == "timeout-exceeded"
    assert refused(spent, timeout_s=0.5) == "timeout-exceeded"
    run = resumption.resume(spent, timeout_s=600)
    assert [trial.status for trial in run.trials] == ["Completed"] * 6
    assert run.active_s > 1


def test_torn_records_are_told_and_written_anew(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """The sweep's own from its plan and the store; a trial whose record is torn is run again."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    settled(dead)
    (dead.folder / records.FILE).write_text('{"schema_version": 1, "kind": "sw')
    (dead.folder / "trials" / "0" / records.FILE).write_text("")
    (dead.folder / "trials" / "1" / records.SAMPLE).write_text('{"number":')
    with pytest.raises(UserError, match=f"ml runs resume {dead.name}"):
        LocalRuns().find(dead.name)
    (tmp_path / "go").touch()
    run = resumption.resume(resumption.find(dead.name))
    assert (run.status, run.id) == ("Completed", dead.id)
    shutil.rmtree(dead.folder)
    assert values(run) == values(LocalBackend().run(waiting(sweep, tmp_path)))


def test_what_the_store_has_lost_runs_again(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """A machine that goes off may take the store's last seconds: a trial, or the sweep itself."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    settled(dead)
    with sqlite3.connect(homes.database()) as store:
        for table in ("metrics", "latest_metrics"):
            store.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (dead.trials[0].id,))
    store.close()
    (tmp_path / "go").touch()
    run = resumption.resume(dead)
    assert run.status == "Completed"
    assert run.trials[0].former[0].id == dead.trials[0].id
    assert run.trials[1].id == dead.trials[1].id
    homes.database().rename(home / "elsewhere.db")
    (run.folder / records.FILE).write_text(
        json.dumps(records.document(run.folder) | {"status": "Canceled", "ended_by": "SIGINT"})
    )
    assert refused(LocalRuns().find(run.name)) == "not-tracked"


@pytest.mark.parametrize("text", ["", '{"schema_version": 1', '{"plan": {"is": "x", "with": {}}}'])
def test_a_plan_that_cannot_be_read_is_told(
    home: Path, sweep: Sweeps, tmp_path: Path, text: str
) -> None:
    """And one that is not there: the run is of an earlier version."""
    dead = killed(waiting(sweep, tmp_path), tmp_path)
    settled(dead)
    (dead.folder / jobs.PLAN).write_text(text)
    assert refused(dead) == "no-plan"
    (dead.folder / jobs.PLAN).unlink()
    assert refused(dead) == "no-plan"


def test_the_same_sweep_twice_at_once_does_not_collide(home: Path, sweep: Sweeps) -> None:
    """Two folders, two parents in MLflow, each with trials of its own and the same values."""
    plan = sweep(LOG + "log('score', float(sys.argv[1]))")
    both = [start(begin(plan)) for _ in range(2)]
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    first, second = LocalRuns().all()
    assert first.id != second.id
    assert {one.id for one in first.trials}.isdisjoint(one.id for one in second.trials)
    assert values(first) == values(second)
    for run in (first, second):
        assert run.status == "Completed"
        assert [status for _, status in tracked(run)] == ["FINISHED"] * 3


def test_a_copy_of_the_code_knows_whether_it_is_whole(tmp_path: Path, home: Path) -> None:
    """Folders whose names sort otherwise than paths do are no exception."""
    code = tmp_path / "tree"
    for name in ("a/b.py", "a.py", "a-b/c.py", "z"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    taken = snapshot.take(code)
    assert taken is not None
    assert snapshot.is_whole(taken)
    (taken.folder / "a.py").chmod(0o755)
    assert not snapshot.is_whole(taken)


# Trials 0 and 1 log well and complete; the others log badly, and stay until somebody ends them.
POLICED = LOG + (
    "number = int(Path.cwd().parent.name)\n"
    "log('score', 10.0 if number < 2 else 1.0)\n"
    "Path(f'HERE/begun-{number}').touch()\n"
    "while number >= 2 and not Path('HERE/go').exists(): time.sleep(0.01)\n"
    "log('score', 10.0 if number < 2 else 1.0, 1)\n"
    "while number >= 2: time.sleep(0.01)\n"
)


def test_policies_know_the_curves_of_before(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """What had completed before the kill ends a trial that is worse after it."""
    policy = EarlyTermination("bandit", Place("jobs/job.yml", 30), 1, 2, slack_amount=5.0)
    plan = sweep(POLICED.replace("HERE", str(tmp_path)), max_total_trials=4)
    dead = killed(replace(plan, early_termination=policy), tmp_path)
    (tmp_path / "go").touch()
    run = resumption.resume(dead)
    assert [trial.ended_by for trial in run.trials] == ["", "", "bandit", "bandit"]
    assert run.status == "Completed"


def test_bayesian_sampling_knows_what_was_learnt(home: Path, sweep: Sweeps, tmp_path: Path) -> None:
    """One trial at a time: it comes to the very values of a sweep that was not killed."""
    script = LOG + (
        "number = int(Path.cwd().parent.name)\n"
        f"Path(f'{tmp_path}/begun-{{number}}').touch()\n"
        f"while number == 12 and not Path('{tmp_path}/go').exists(): time.sleep(0.01)\n"
        "log('score', -(float(sys.argv[1]) - 0.3) ** 2)\n"
    )
    plan = sweep(script, algorithm="bayesian", max_total_trials=14, max_concurrent_trials=1)
    executor = start(begin(plan))
    while not (tmp_path / "begun-12").exists():
        assert executor.is_alive()
        time.sleep(0.01)
    kill(executor)
    (tmp_path / "go").touch()
    run = resumption.resume(only())
    kinds = [records.read_sample(trial.folder) for trial in run.trials]
    assert [one.origin["kind"] for one in kinds if one][10:] == ["tpe"] * 4
    assert values(run) == values(LocalBackend().run(plan))


def test_a_sweep_that_ran_out_of_disk_goes_on(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there is room: the trial that could not begin, and the one that was ended for it."""
    real = records.write

    def fills_up(run: Run, lineage: dict[str, object]) -> None:
        if run.name.endswith("_2"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(run, lineage)

    plan = sweep(LOG + "log('score', float(sys.argv[1]))", max_total_trials=5)
    with monkeypatch.context() as patch:
        patch.setattr(records, "write", fills_up)
        full = LocalBackend().run(plan)
    assert (full.status, full.error and full.error.code) == ("Failed", "disk-full")
    run = resumption.resume(full)
    assert [trial.status for trial in run.trials] == ["Completed"] * 5
    assert [pause.ended_by for pause in run.pauses] == ["disk-full"]
    assert values(run) == values(LocalBackend().run(plan))
