"""Making room: what goes, what stays and why, and how much is freed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from ml.backends.local import cleaning
from ml.backends.local.environments import building
from ml.backends.local.runs import jobs
from ml.backends.storage import BLOCK_BYTES, Cleaning, Needed, size_of
from ml.core import home
from tests.backends.made_runs import DAY_S, made, made_model, made_snapshot


def nothing_needed(paths: dict[Path, str] | None = None, **runs: str) -> Needed:
    return Needed(paths or {}, runs, home.home() / "models")


def plan(needed: Needed | None = None, **asked: object) -> Cleaning:
    return cleaning.plan(needed or nothing_needed(), **asked)  # type: ignore[arg-type]


def going(found: Cleaning, kind: str = "run") -> set[str]:
    return {item.name for item in found.items if item.kind == kind}


def test_no_run_goes_that_was_not_asked_for() -> None:
    """Without a number and an age only orphans go."""
    made("old_oak_01", days_ago=100)
    assert plan() == Cleaning((), 0, {}, cleaning.GRACE_S)


def test_the_latest_and_the_young_stay() -> None:
    """By number, by age, by both, and of one experiment alone."""
    for number in range(4):
        made(f"oak_oak_0{number}", days_ago=number * 10)
    made("other_oak_09", days_ago=50, experiment="other")
    before = time.time() - 15 * DAY_S
    old = {"oak_oak_02", "oak_oak_03", "other_oak_09"}
    assert going(plan(keep=2)) == old
    assert going(plan(keep=0)) == {*old, "oak_oak_00", "oak_oak_01"}
    assert going(plan(older_than=before)) == old
    assert going(plan(keep=3, older_than=before)) == {"oak_oak_03", "other_oak_09"}
    assert going(plan(keep=0, experiment="other")) == {"other_oak_09"}


def test_a_run_goes_with_its_artifacts_and_no_others() -> None:
    """MLflow's folder for the run; those of other runs, and of none, stay."""
    run, kept = made("gone_oak_01", days_ago=2), made("kept_oak_02")
    folders = [home.artifacts() / "1" / run_id for run_id in (run.id, kept.id, "by-hand")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "plot.png").write_bytes(b"x" * 5000)
    found = plan(keep=1)
    freed, wrong = cleaning.remove(found, plan(keep=1))
    assert wrong == []
    assert [folder.exists() for folder in folders] == [False, True, True]
    assert not run.folder.exists() and kept.folder.exists()
    assert freed >= 8192 and freed == found.frees + BLOCK_BYTES * 8


def test_orphaned_copies_go() -> None:
    """A snapshot that no run is left of, a model that nothing needs; not what was just used."""
    made_snapshot("used")
    made_snapshot("orphan")
    made_snapshot("fresh", days_ago=0)
    needed = made_model("registered")
    made_model("stray")
    made("one_oak_01", snapshot="used")
    found = plan(nothing_needed({needed: "faq 1 is registered"}))
    assert going(found, "snapshot") == {"orphan"}
    assert going(found, "model") == {"stray"}
    assert cleaning.remove(found, found)[1] == []
    assert {path.name for path in home.snapshots().iterdir()} == {"used", "fresh"}
    assert needed.is_dir()


def test_a_snapshot_goes_with_the_last_run_of_it() -> None:
    """Two runs of one content: it stays for the one that stays."""
    made_snapshot("shared")
    made("old_oak_01", days_ago=2, snapshot="shared")
    made("new_oak_02", snapshot="shared")
    assert going(plan(keep=1), "snapshot") == set()
    assert going(plan(keep=0), "snapshot") == {"shared"}


def test_what_others_need_stays_and_says_why() -> None:
    """A run that a version came from, one whose files are needed, a snapshot that serves."""
    made_snapshot("served")
    run, other = made("made_oak_01"), made("files_oak_02")
    needed = Needed(
        {home.snapshots() / "served": "it serves", other.folder / "outputs": "it is declared"},
        {run.id: "faq 1 is registered"},
        home.home() / "models",
    )
    found = plan(needed, keep=0)
    assert found.stay == {run.name: "faq 1 is registered", other.name: "it is declared"}
    assert found.items == ()


def test_an_environment_without_a_run_goes_unless_it_is_in_use() -> None:
    """Its lock says whether a process works in it."""
    place = home.environments() / "built"
    place.mkdir(parents=True)
    os.utime(place, (0, 0))
    (home.environments() / building.LOCKS).mkdir()
    with (home.environments() / building.LOCKS / "built").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert going(plan(), "environment") == set()
    found = plan()
    assert going(found, "environment") == {"built"}
    assert cleaning.remove(found, plan())[1] == [] and not place.exists()


def test_a_run_that_goes_on_stays_with_all_it_may_use() -> None:
    """Itself, the run whose output it reads, and every snapshot that was taken since it began."""
    source = made("source_oak_01", days_ago=1)
    with jobs.new() as folder:
        made_snapshot("taken", days_ago=0.001)
        earlier = made_snapshot("earlier", days_ago=1)
        data = {"model": {"source": str(source.folder / "outputs" / "model")}}
        folder.rmdir()
        run = made(folder.name, status="Running", ended=None, lineage={"data": data})
        found = plan(keep=0)
        assert found.stay[run.name] == "it is still running"
        assert found.stay[source.name] == f"{run.name} refers to it"
        assert going(found, "snapshot") == {earlier.name}
    assert going(plan(keep=0)) == {run.name, source.name}


def test_a_long_pipeline_keeps_the_code_of_steps_that_have_not_begun() -> None:
    """It took all of it before its first step, hours ago; nothing refers to it yet."""
    with jobs.new() as folder:
        (folder / "x").touch()
        then = time.time() - 5 * 3600
        os.utime(home.run_locks() / folder.name, (then, then))
        made_snapshot("of_a_later_step", days_ago=5 / 24)
        made_snapshot("of_yesterday", days_ago=1)
        assert going(plan(), "snapshot") == {"of_yesterday"}


def test_what_links_of_kept_runs_lead_to_stays() -> None:
    """A pipeline's output may be a link to another run's artifacts."""
    old = made("old_oak_01", days_ago=2)
    target = home.artifacts() / "1" / old.id / "outputs"
    target.mkdir(parents=True)
    new = made(
        "new_oak_02", outputs={"default": home.jobs() / "new_oak_02" / "outputs" / "default"}
    )
    (new.folder / "outputs").mkdir()
    (new.folder / "outputs" / "default").symlink_to(target)
    assert plan(keep=1).stay == {old.name: f"{new.name} refers to it"}
    assert plan(keep=0).stay == {}


def test_bytes_with_a_second_name_are_not_counted_as_freed() -> None:
    """A reused step's outputs are hard links: the first run's removal frees nothing of them."""
    old, new = made("old_oak_01", days_ago=2), made("new_oak_02")
    (old.folder / "big.bin").write_bytes(b"x" * 1_000_000)
    os.link(old.folder / "big.bin", new.folder / "big.bin")
    assert plan(keep=1).frees < 100_000
    assert plan(keep=0).frees > 1_000_000
    assert size_of(home.jobs()) < 1_100_000
    cleaning.remove(plan(keep=1), plan(keep=1))
    assert (new.folder / "big.bin").stat().st_size == 1_000_000


def test_notes_of_reusable_steps_go_with_their_run() -> None:
    """And those of a run that stays, stay."""
    old, new = made("old_oak_01", days_ago=2), made("new_oak_02")
    home.step_cache().mkdir()
    for key, run in (("a", old), ("b", new)):
        note = {"folder": str(run.folder / "steps" / "prepare"), "outputs": {}}
        (run.folder / "steps" / "prepare").mkdir(parents=True)
        (home.step_cache() / key).write_text(json.dumps(note))
    found = plan(keep=1)
    assert going(found, "reuse") == {"a"}


def test_leftovers_of_killed_programs_go_once_they_are_old() -> None:
    """Half copies, half removals, folders without a record; not what is being made now."""
    then = time.time() - DAY_S
    for path in (
        home.snapshots() / ".unfinished-abc",
        home.home() / "models" / ".unfinished-abc",
        home.home() / ".removing-abc",
        home.jobs() / "half_oak_01",
    ):
        path.mkdir(parents=True)
        os.utime(path, (then, then))
    (home.snapshots() / ".unfinished-now").mkdir()
    (home.jobs() / "begun_oak_02").mkdir()
    found = plan()
    assert len(going(found, "leftover")) == 3 and len(found.items) == 4
    assert cleaning.remove(found, found)[1] == []
    assert (home.snapshots() / ".unfinished-now").exists()
    assert (home.jobs() / "begun_oak_02").exists()


def test_what_became_needed_meanwhile_stays() -> None:
    """Between the plan and the answer of a person."""
    made_model("proposed")
    first = plan()
    assert going(first, "model") == {"proposed"}
    os.utime(home.home() / "models" / "proposed")
    freed, _ = cleaning.remove(first, plan())
    assert (home.home() / "models" / "proposed").is_dir()
    assert freed <= 8192


def test_a_job_may_have_made_its_folders_read_only() -> None:
    """They go all the same, and nothing that a link leads to."""
    run, outside = made("stiff_oak_01", days_ago=2), home.home() / "mine.txt"
    outside.write_text("mine")
    stiff = run.folder / "outputs" / "stiff"
    stiff.mkdir(parents=True)
    (stiff / "file").touch()
    (stiff / "link").symlink_to(outside)
    stiff.chmod(0o500)
    assert cleaning.remove(plan(keep=0), plan(keep=0))[1] == []
    assert not run.folder.exists()
    assert outside.read_text() == "mine"
    assert not list(home.home().glob(".removing-*"))


@pytest.mark.parametrize("asked", [{"keep": 0}, {}])
def test_an_empty_home(asked: dict[str, int]) -> None:
    """Nothing to do is no error."""
    assert plan(**asked) == Cleaning((), 0, {}, cleaning.GRACE_S)
