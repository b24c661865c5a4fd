"""Earlier runs: found, as they are; what a killed executor left is closed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs import jobs, records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.core import home as homes
from ml.core.errors import Place, Problem, UserError
from tests.backends.conftest import Plans
from tests.backends.executors import locks, start


def test_a_run_that_is_not_there(home: Path, command: Plans) -> None:
    """Says which there are."""
    with pytest.raises(UserError) as refused:
        LocalRuns().find("latest")
    assert "this machine has none yet" in str(refused.value)
    run = LocalBackend().run(command("print(1)"))
    with pytest.raises(UserError) as refused:
        LocalRuns().find("calm_river_99")
    assert refused.value.problems[0].code == "no-such-run"
    assert run.name in str(refused.value)


def test_a_record_says_everything(tmp_path: Path) -> None:
    """What is written is what is read, NaN and problems included."""
    place = Place("a.yml", 3)
    run = Run(
        id="1",
        name="calm_river_03",
        status="Failed",
        experiment="e",
        folder=tmp_path,
        started=1.5,
        ended=2.5,
        parameters={"x": 0.5, "s": "t", "b": True},
        metrics={"good": 0.25, "bad": float("inf")},
        outputs={"m": tmp_path / "outputs" / "m"},
        error=Problem("code", "actual", "expected", "hint", place),
        warnings=(Problem("w", "f", severity="warning"),),
    )
    records.write(run, {"spec": "a.yml:3"})
    assert records.read(tmp_path) == run
    assert records.lineage(tmp_path) == {"spec": "a.yml:3"}
    json.loads((tmp_path / "job.json").read_text(), parse_constant=pytest.fail)
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_names_do_not_repeat(home: Path) -> None:
    """A folder is a name's only holder, even when chance repeats it."""
    names = set()
    for _ in range(200):
        with jobs.new() as folder:
            names.add(folder.name)
            (folder / "x").touch()
    assert len(names) == 200


def test_a_lock_tells_the_living_from_the_dead(home: Path) -> None:
    """While the executor lives the run is alive; when it failed to close it, abandoned."""
    with pytest.raises(ZeroDivisionError), jobs.new() as folder:
        assert jobs.is_alive(folder.name)
        assert jobs.abandoned() == []
        (folder / "something").touch()
        raise ZeroDivisionError
    assert not jobs.is_alive(folder.name)
    assert jobs.abandoned() == [folder.name]
    jobs.forget(folder.name)
    assert jobs.abandoned() == []


def test_what_a_killed_executor_was_starting_holds_its_lock_a_moment_longer(home: Path) -> None:
    """A program between fork and exec has the lock too; the run is abandoned all the same."""
    waits, ends = os.pipe()

    def killed_while_starting() -> None:
        with jobs.new() as folder:
            (folder / "something").touch()
            if os.fork() == 0:
                os.read(waits, 1)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    start(killed_while_starting).join()
    (folder,) = homes.jobs().iterdir()
    seen = jobs.is_alive(folder.name), jobs.abandoned()
    os.write(ends, b".")
    assert seen == (True, [folder.name])
    with jobs.hold(folder.name):
        pass
    assert jobs.abandoned() == locks(home) == []
