"""A full disk, a locked store, a broken store: a clear error, and nothing earlier is harmed."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from mlflow.exceptions import MlflowException

from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.tracking import tracking
from ml.backends.runs import Run
from ml.core import faults
from ml.core.errors import Exit, UserError
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.conftest import ROOT

# A small disk of its own: a user namespace may mount one without being root.
ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=3m tmpfs "$SMALL"
cp "$STORE" "$SMALL/mlflow.db"
exec "$PYTHON" -m tests.backends.small_disk "$SMALL" "$CODE"
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk-full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk-full"),
        (sqlite3.OperationalError("database or disk is full"), "disk-full"),
        (sqlite3.OperationalError("disk I/O error"), "disk-error"),
        (sqlite3.OperationalError("database is locked"), "database-locked"),
        (sqlite3.DatabaseError("file is not a database"), "database-corrupt"),
        (sqlite3.DatabaseError("database disk image is malformed"), "database-corrupt"),
        (MlflowException("Detected out-of-date database schema"), "database-outdated"),
        (PermissionError(errno.EACCES, "denied"), "no-access"),
        (OSError(errno.EROFS, "Read-only file system"), "no-access"),
        (shutil.Error([("/a", "/b", "[Errno 28] No space left on device: '/b'")]), "disk-full"),
        (shutil.Error([("/a", "/b", "[Errno 13] Permission denied: '/a'")]), "no-access"),
    ],
)
def test_every_fault_has_a_problem(error: Exception, code: str) -> None:
    """Also when it comes wrapped, as MLflow wraps SQLAlchemy's."""
    wrapped = RuntimeError("something happened")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        problem = faults.explain(one)
        assert problem is not None
        assert problem.code == code
        assert problem.hint


def test_a_folder_in_place_of_a_file_of_the_home(own_home: Path, tmp_path: Path) -> None:
    """It is named; elsewhere it is no fault of the machine."""
    place = own_home / "audit.jsonl"
    for folder in (place, tmp_path / "x"):
        folder.mkdir()
    known = pytest.raises(UserError, match=r"not-a-file.*audit.jsonl is a folder")
    with known, faults.as_user_errors():
        place.read_bytes()
    with pytest.raises(IsADirectoryError), faults.as_user_errors():
        (tmp_path / "x").read_bytes()


def test_files_may_not_grow(own_home: Path) -> None:
    """Under `ulimit -f` SQLite says only that it was refused; the same home works without."""
    made = f"""
import resource, sqlite3
from ml.core import faults
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
store = sqlite3.connect({str(own_home / "mlflow.db")!r})
try:
    store.execute("CREATE TABLE a (b)")
    for _ in range(9):
        with store:
            store.execute("INSERT INTO a VALUES (zeroblob(4096))")
except sqlite3.Error as error:
    print(faults.explain(error))
"""
    done = subprocess.run([sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("error[disk-error]") and "ulimit -f" in done.stdout, done
    with sqlite3.connect(own_home / "mlflow.db") as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_home_that_is_a_file(
    command: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    """Or is under one: the file is left as it is, and the variable that names it is told."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "file" / below))
    with pytest.raises(UserError) as refused:
        LocalBackend().run(command("print(1)"))
    assert refused.value.problems[0].code == "no-access"
    assert str(tmp_path / "file") in refused.value.problems[0].actual
    assert "MLOPS_HOME" in refused.value.problems[0].hint
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_is_not_ours_is_named_and_the_home_is_not_blamed(home: Path) -> None:
    """Data that may not be read; of what a copy of a folder gathered, the file that failed."""
    for error in (
        PermissionError(errno.EACCES, "Permission denied", "/data/secret.csv"),
        shutil.Error([("/data/secret.csv", "/copy", "[Errno 13] denied: '/data/secret.csv'")]),
    ):
        problem = faults.explain(error)
        assert problem is not None and problem.actual == "/data/secret.csv: Permission denied"
        assert "/data/secret.csv" in problem.hint and "MLOPS_HOME" not in problem.hint
    inside = faults.explain(PermissionError(errno.EACCES, "Permission denied", str(home / "x")))
    assert inside is not None and "MLOPS_HOME" in inside.hint


def test_a_bug_is_not_explained_away() -> None:
    """What nobody knows goes on as it is."""
    assert faults.explain(KeyError("x")) is None
    assert faults.explain(shutil.Error("same file")) is None
    assert faults.explain(FileNotFoundError(errno.ENOENT, "none", "/somewhere/else")) is None
    with pytest.raises(KeyError), faults.as_user_errors():
        raise KeyError("x")


def test_a_disk_that_fills_up_under_a_snapshot_leaves_nothing(
    home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unfinished copy goes; the run after that works."""
    plan = command("print(1)")

    def full(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(4))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        with pytest.raises(UserError) as refused:
            LocalBackend().run(plan)
    assert refused.value.exit_code == Exit.RUN_FAILED
    assert refused.value.problems[0].code == "disk-full"
    assert list((home / "snapshots").iterdir()) == []
    assert LocalBackend().run(plan).status == "Completed"


def small_disk_command() -> list[str] | None:
    """How this machine lets a test mount a disk; None when it does not."""
    for prefix in (["unshare", "-m"], ["unshare", "-Urm"]):
        if shutil.which("unshare") is None:
            return None
        probe = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return [*prefix, "bash", "-c", ON_A_SMALL_DISK]
    return None


@pytest.mark.slow
@pytest.mark.attack("The disk is full while a job runs")
def test_a_disk_that_is_really_full(
    home: Path, fresh_store: Path, command: Plans, tmp_path: Path
) -> None:
    """A job that fills its disk fails with `disk-full`; the run before it stays readable.

    Where no disk can be mounted (an unprivileged container), a quota on what one file may hold
    does not give the same error, so the same job runs against a device that is always full.
    """
    disk, small = small_disk_command(), tmp_path / "small"
    small.mkdir()
    code = command("", "true").code
    assert code is not None
    settings = {"SMALL": small, "STORE": fresh_store, "CODE": code, "PYTHON": sys.executable}
    environment = {**os.environ, **{key: str(path) for key, path in settings.items()}}
    if disk is None:
        run = LocalBackend().run(command("", "echo x > /dev/full"))
        assert run.error is not None
        assert "No space left on device" in run.error.actual
        return
    done = subprocess.run(disk, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.attack("Another program holds the tracking store")
def test_a_locked_store(home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says which file, and how to find who holds it."""
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.2)
    holder = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError) as refused:
        LocalBackend().run(command())
    holder.close()
    problem = refused.value.problems[0]
    assert problem.code == "database-locked"
    assert str(home / "mlflow.db") in problem.actual
    assert "fuser" in problem.hint
    assert LocalBackend().run(command("print(1)")).status == "Completed"


@pytest.mark.parametrize(
    "content", [b"this is not a database, but it is long enough" * 100, b"\0" * 4096]
)
@pytest.mark.attack("The tracking store is damaged")
def test_a_broken_store(home: Path, command: Plans, content: bytes) -> None:
    """Says what to do with it, and leaves the file and every job folder alone."""
    run = LocalBackend().run(command("print(1)"))
    for extra in home.glob("mlflow.db-*"):
        extra.unlink()
    (home / "mlflow.db").write_bytes(content)
    with pytest.raises(UserError) as refused:
        LocalBackend().run(command("print(1)"))
    assert refused.value.problems[0].code == "database-corrupt"
    assert (home / "mlflow.db").read_bytes() == content
    assert LocalRuns().find("latest") == run


def test_a_sweep_whose_disk_fills_up_ends_its_trials(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process stays, the sweep is Failed with the reason, the trials so far are kept."""
    real, calls = shutil.copytree, []

    def fills_up(source: object, target: object, **options: object) -> object:
        calls.append(target)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target, **options)

    monkeypatch.setattr("shutil.copytree", fills_up)
    run = LocalBackend().run(sweep(LOG + "log('score', 1.0)", max_total_trials=3))
    assert [trial.status for trial in run.trials] == ["Completed", "Completed", "Failed"]
    assert run.trials[2].error is not None
    assert run.trials[2].error.code == "disk-full"
    assert run.best == run.trials[0].name


def test_a_sweep_that_cannot_go_on_closes_what_was_running(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the third trial is to start: the one that still runs is ended."""
    real, calls = records.write, []

    def fills_up(run: Run, lineage: dict[str, object]) -> None:
        calls.append(run.name)
        if run.name.endswith("_2"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(run, lineage)

    monkeypatch.setattr(records, "write", fills_up)
    script = LOG + "log('score', 1.0); time.sleep(0 if os.getcwd().endswith('0/work') else 600)"
    run = LocalBackend().run(sweep(script))
    assert run.status == "Failed"
    assert run.error is not None
    assert run.error.code == "disk-full"
    assert [(t.status, t.ended_by) for t in run.trials] == [
        ("Completed", ""),
        ("Canceled", "sweep_failed"),
    ]
    assert all(processes_of(trial.id) == [] for trial in run.trials)
    assert tracking.Tracking().running(home / "jobs") == []
