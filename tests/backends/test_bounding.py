"""The disk limit: what is removed above it, what never is, and what is printed."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.backends.choice import open_backend
from ml.backends.local import cleaning
from ml.backends.local.backend import LocalBackend
from ml.backends.local.environments import building
from ml.backends.local.runs import jobs
from ml.backends.local.storage import LEAST, MOST, VARIABLE, LocalStorage
from ml.backends.runs import Run
from ml.backends.storage import Cleaning, Needed, size_of
from ml.cli import app
from ml.cli.disk import enforce
from ml.core import home
from ml.core.errors import Refused
from tests.backends.made_runs import made, made_model, made_snapshot, made_sweep

STORAGE = LocalStorage()
BIG = 100_000


def bulky(run: Run, size: int = BIG, name: str = "model") -> Run:
    """The run with an output of `size` bytes."""
    folder = run.folder / "outputs" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(b"x" * size)
    return run


def environment(name: str, days_ago: float = 1.0, size: int = BIG) -> Path:
    """A built environment, last used so long ago."""
    place = home.environments() / name
    place.mkdir(parents=True)
    (place / "torch.so").write_bytes(b"x" * size)
    (home.environments() / building.LOCKS).mkdir(exist_ok=True)
    then = place.stat().st_mtime - days_ago * 86400
    os.utime(place, (then, then))
    return place


def needed(paths: dict[Path, str] | None = None, **runs: str) -> Needed:
    return Needed(paths or {}, runs, home.home() / "models")


def hold(
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    what: Needed | None = None,
    reads: Path | None = None,
) -> Cleaning:
    """Keep the home within that share of what it takes now; what was planned."""
    monkeypatch.setenv(VARIABLE, f"{int(size_of(home.home()) * share)}B")

    def plan() -> Cleaning:
        return STORAGE.eviction(STORAGE.usage(), what or needed(), [reads] if reads else [])

    found = plan()
    assert STORAGE.remove(found, plan())[1] == []
    return found


def has_output(run: Run) -> bool:
    return (run.folder / "outputs" / "model" / "weights.bin").exists()


def test_nothing_goes_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what nobody would miss."""
    run = bulky(made("old_oak_01", days_ago=9))
    bulky(made("new_oak_02"))
    assert hold(monkeypatch, 1.1).items == ()
    assert has_output(run)


def test_the_oldest_outputs_go_and_no_more_than_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs and the record stay, and the run says what became of the rest."""
    runs = [bulky(made(f"oak_oak_0{number}", days_ago=9 - number)) for number in range(5)]
    taken = size_of(home.home())
    found = hold(monkeypatch, 0.8)
    assert [item.name for item in found.items] == ["oak_oak_00", "oak_oak_01"]
    assert [has_output(run) for run in runs] == [False, False, True, True, True]
    assert (runs[0].folder / "logs" / "std_log.txt").exists()
    assert STORAGE.evicted(runs[0]) is not None and STORAGE.evicted(runs[2]) is None
    assert size_of(home.home()) <= 0.8 * taken


def test_a_runs_artifacts_go_with_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's folder for it is bulky too."""
    run = made("old_oak_01", days_ago=9)
    made("new_oak_02")
    plot = home.artifacts() / "1" / run.id / "plot.png"
    plot.parent.mkdir(parents=True)
    plot.write_bytes(b"x" * BIG)
    hold(monkeypatch, 0.5)
    assert not plot.exists()


@pytest.mark.parametrize(
    "protect",
    [
        lambda run: needed(**{run.id: "faq 1 is registered"}),
        lambda run: needed({run.folder / "outputs" / "model": "the endpoint serves from it"}),
        lambda run: STORAGE.keep(run, True),
    ],
    ids=["registered", "served", "kept"],
)
def test_what_is_needed_or_kept_stays(
    monkeypatch: pytest.MonkeyPatch, protect: Callable[[Run], Needed | None]
) -> None:
    """The next oldest goes in its place."""
    old = bulky(made("old_oak_01", days_ago=9))
    other = bulky(made("other_oak_02", days_ago=8))
    bulky(made("new_oak_03"))
    what = protect(old)
    hold(monkeypatch, 0.7, what)
    assert (has_output(old), has_output(other)) == (True, False)


def test_a_run_that_is_kept_no_more_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `ml runs clean` leaves a kept one as well."""
    old = bulky(made("old_oak_01", days_ago=9))
    made("new_oak_02")
    STORAGE.keep(old, True)
    assert list(cleaning.plan(needed(), keep=1).stay) == [old.name]
    STORAGE.keep(old, False)
    hold(monkeypatch, 0.5)
    assert not has_output(old)


def test_what_the_next_run_reads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input may be another run's output."""
    old = bulky(made("old_oak_01", days_ago=9))
    made("new_oak_02")
    hold(monkeypatch, 0.5, reads=old.folder / "outputs" / "model")
    assert has_output(old)
    hold(monkeypatch, 0.5)
    assert not has_output(old)


def test_a_run_that_goes_on_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its executor lives."""
    with jobs.new() as folder:
        folder.rmdir()
        run = bulky(made(folder.name, days_ago=9, status="Running", ended=None))
        made("new_oak_02")
        hold(monkeypatch, 0.5)
        assert has_output(run)
    hold(monkeypatch, 0.5)
    assert not has_output(run)


def test_the_best_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every experiment; of a sweep the best trial, while its other trials may go."""
    best = made_sweep("best_oak_01", 0.1, 0.9, 0.2, days_ago=9)
    worse = made_sweep("worse_oak_02", 0.3, 0.4, days_ago=5)
    latest = bulky(made("last_oak_03", experiment="other"))
    for sweep in (best, worse):
        for trial in sweep.trials:
            bulky(trial)
    hold(monkeypatch, 0.01)
    assert [has_output(trial) for trial in best.trials] == [False, True, False]
    assert [has_output(trial) for trial in worse.trials] == [False, False]
    assert has_output(latest)


def test_orphans_go_first_and_environments_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing refers to is missed least; what is built again costs minutes."""
    made_snapshot("orphan", script="x" * BIG)
    built = environment("built")
    lineage = {"interpreter": {"python": "3.11", "built": "built"}}
    old = bulky(made("old_oak_01", days_ago=9, lineage=lineage))
    made("new_oak_02")
    found = hold(monkeypatch, 0.8)
    assert [item.kind for item in found.items] == ["snapshot"]
    found = hold(monkeypatch, 0.7)
    assert [item.kind for item in found.items] == ["outputs"]
    assert built.exists() and not has_output(old)
    found = hold(monkeypatch, 0.5)
    assert [item.kind for item in found.items] == ["environment"]
    assert not built.exists()


def test_an_environment_that_is_worked_in_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock tells; a registered model's copy and a registered asset are never in question."""
    place = environment("used")
    model = made_model("registered")
    asset = home.assets() / "data" / "words" / "1"
    asset.mkdir(parents=True)
    (asset / "asset.yml").write_text("x" * BIG)
    what = needed({model: "faq 1 is registered"})
    with (home.environments() / building.LOCKS / "used").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        hold(monkeypatch, 0.1, what)
        assert place.exists()
    hold(monkeypatch, 0.1, what)
    assert not place.exists()
    assert model.exists() and (asset / "asset.yml").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 5e8), ("2.5 gb", 2.5e9), ("1000", 1000.0), ("1tb", 1e12), ("none", None)],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, size: float | None) -> None:
    """As a person writes them; `none` takes the bound away."""
    monkeypatch.setenv(VARIABLE, text)
    assert STORAGE.usage().limit == size


def test_a_size_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound out of a typing mistake."""
    monkeypatch.setenv(VARIABLE, "20 bytes or so")
    with pytest.raises(Refused) as error:
        STORAGE.usage()
    assert error.value.problems[0].code == "not-a-size"


def test_without_a_setting_it_is_a_share_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between what a project needs and what nobody would miss."""
    monkeypatch.delenv(VARIABLE, raising=False)
    found = STORAGE.usage().limit
    assert found is not None and LEAST <= found <= MOST


def test_one_line_names_what_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that nothing can be; no line below the limit."""
    said: list[str] = []
    old = bulky(made("old_oak_01", days_ago=9))
    bulky(made("new_oak_02"))
    enforce(LocalBackend(), said.append)
    assert said == []
    monkeypatch.setenv(VARIABLE, "150kB")
    enforce(LocalBackend(), said.append)
    (line,) = said
    assert "removed the outputs of old_oak_01" in line and "ml runs keep" in line
    assert not has_output(old)
    monkeypatch.setenv(VARIABLE, "1kB")
    enforce(LocalBackend(), said.append)
    assert "nothing can go" in said[1] and VARIABLE in said[1]


def test_nothing_goes_while_the_registry_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored models and no registry: what they are needed for is not known."""
    made_model("stored")
    old = bulky(made("old_oak_01", days_ago=9))
    made("new_oak_02")
    monkeypatch.setenv(VARIABLE, "1kB")
    said: list[str] = []
    enforce(LocalBackend(), said.append)
    assert "nothing can be removed" in said[0]
    assert has_output(old)


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(1)", "raise KeyboardInterrupt"])
def test_after_every_command_that_ran_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """Whichever it was (run, demo, release propose, runs resume) and however it ended."""

    def work() -> None:
        open_backend()
        with jobs.new() as folder:
            (folder / "job.log").write_text("begun\n")
        exec(ending)

    monkeypatch.setattr(jobs, "worked_on", set())
    monkeypatch.setitem(app.COMMANDS, "work", ("work:command", ""))
    monkeypatch.setitem(sys.modules, "work", SimpleNamespace(command=work))
    old = bulky(made("old_oak_01", days_ago=9))
    bulky(made("new_oak_02"))
    monkeypatch.setenv(VARIABLE, "150kB")
    with pytest.raises(SystemExit):
        app.main(["work"])
    assert "removed the outputs of old_oak_01" in capsys.readouterr().err
    assert not has_output(old)


def test_a_command_that_only_reads_removes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking is free of consequences, and of the time that measuring takes."""
    monkeypatch.setattr(jobs, "worked_on", set())
    old = bulky(made("old_oak_01", days_ago=9))
    bulky(made("new_oak_02"))
    monkeypatch.setenv(VARIABLE, "150kB")
    with pytest.raises(SystemExit):
        app.main(["runs", "list"])
    assert "removed" not in capsys.readouterr().err
    assert has_output(old)


def test_a_limit_that_is_no_size_hides_no_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command keeps its exit code; the mistake is told."""
    monkeypatch.setattr(jobs, "worked_on", {"some_run_01"})
    monkeypatch.setenv(VARIABLE, "a lot")
    with pytest.raises(SystemExit) as ended:
        app.main(["runs", "list"])
    assert ended.value.code in {0, None}
    assert "not-a-size" in capsys.readouterr().err
