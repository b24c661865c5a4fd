"""The MLflow store: made once, shared by many, read as MlflowClient reads it."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from ml.backends.local.tracking import reader
from ml.backends.local.tracking.tracking import Tracking, prepare
from ml.core.home import tracking_uri
from tests.conftest import ROOT

WRITER = """
import mlflow, sys
with mlflow.start_run(run_id=sys.argv[1]):
    for step in range(100):
        mlflow.log_metric("m", step + 0.5, step=step)
"""


@pytest.mark.slow
def test_two_first_runs_at_the_same_moment_make_one_store(own_home: Path) -> None:
    """Three processes that all find no store, and one made in the background."""
    code = (
        "from pathlib import Path; from ml.backends.local.tracking.tracking import Tracking\n"
        "print(Tracking().start('e', Path('/'), 'n', {}))"
    )
    background = prepare()
    assert background is not None
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    ids = {process.communicate()[0].strip() for process in started}
    assert background.wait() == 0
    assert len(ids) == 3
    client = MlflowClient(tracking_uri())
    assert {client.get_run(run_id).info.status for run_id in ids} == {"RUNNING"}
    assert prepare() is None
    assert not (own_home / "mlflow.unfinished").exists()
    with sqlite3.connect(own_home / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_outdated_store_is_refused_before_anything_is_created(home: Path) -> None:
    """Also one that an earlier MLflow has checked; its tables are looked at once per release."""
    Tracking().close()
    with closing(sqlite3.connect(home / "mlflow.db")) as connection, connection:
        (checked,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
        connection.execute("PRAGMA user_version = 3014000")
    assert checked >= 3015000
    with pytest.raises(MlflowException, match="out-of-date"):
        Tracking()
    assert reader.mlflow_version() == 3014000


@pytest.mark.slow
def test_concurrent_writers_lose_no_metric(home: Path) -> None:
    """Three scripts log 100 values each while a watcher reads: the store is never "locked"."""
    tracking = Tracking()
    ids = [tracking.start("tests", home, f"run{i}", {}) for i in range(3)]
    feed = reader.Feed("m")
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri()}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, run_id],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for run_id in ids
    ]
    seen: dict[str, list[float]] = {run_id: [] for run_id in ids}
    while True:
        ended = all(writer.poll() is not None for writer in writers)
        for run_id, value in feed.new():
            seen[run_id].append(value)
        if ended:
            break
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], errors
    assert all(values == [step + 0.5 for step in range(100)] for values in seen.values())


def test_values_are_read_as_they_were_logged(home: Path) -> None:
    """NaN and the infinities come back as such, where MLflow's own table holds 0 and 1.8e308."""
    tracking = Tracking()
    run_id, feed = tracking.start("tests", home, "run", {}), reader.Feed("m")
    client = MlflowClient(tracking_uri())
    logged = [0.5, math.nan, math.inf, -math.inf, 1e300, 0.0]
    client.log_batch(run_id, [Metric("m", v, 1, step) for step, v in enumerate(logged)])
    client.log_metric(run_id, "other", 3.0)
    read = [value for found, value in feed.new() if found == run_id]
    assert [repr(value) for value in read] == [repr(value) for value in logged]
    assert feed.new() == []
    assert reader.latest(run_id) == {"m": 0.0, "other": 3.0}
    theirs = [metric.value for metric in client.get_metric_history(run_id, "m")]
    assert [v for v in read if math.isfinite(v)] == [
        v for v in theirs if math.isfinite(v) and abs(v) < 1.7e308
    ]


def test_a_feed_begins_where_it_was_opened(home: Path) -> None:
    """What earlier runs logged is not read again."""
    client, run_id = MlflowClient(tracking_uri()), Tracking().start("tests", home, "run", {})
    client.log_metric(run_id, "m", 1.0)
    feed = reader.Feed("m")
    client.log_metric(run_id, "m", 2.0, step=1)
    assert feed.new() == [(run_id, 2.0)]


def test_artifacts_lie_in_the_home(home: Path) -> None:
    """One folder an experiment."""
    tracking = Tracking()
    place = Path(tracking.artifacts_of(tracking.start("tests", home, "run", {})))
    assert place.is_relative_to(home / "artifacts" / "tests")


def test_reading_follows_the_store(
    home: Path, fresh_store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another home, another process, after it was closed: never what was open before."""
    client, tracking = MlflowClient(tracking_uri()), Tracking()
    run_id = tracking.start("tests", home, "run", {})
    client.log_metric(run_id, "m", 1.0)
    assert reader.latest(run_id) == {"m": 1.0}
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reader.latest(run_id) == {"m": 1.0} else 1)
    assert os.waitpid(pid, 0)[1] == 0
    client.log_metric(run_id, "m", 2.0, step=1)
    assert reader.latest(run_id) == {"m": 2.0}
    with monkeypatch.context() as patch:
        patch.setenv("MLOPS_HOME", str(tmp_path))
        shutil.copy(fresh_store, tmp_path / "mlflow.db")
        assert reader.latest(run_id) == {}
    assert reader.latest(run_id) == {"m": 2.0}
    tracking.close()
    assert reader.latest(run_id) == {"m": 2.0}


def test_a_new_store_takes_nothing_over_from_one_that_was_moved_away(home: Path) -> None:
    """SQLite would read the log that lay beside it as its own."""
    tracking = Tracking()
    run_id = tracking.start("tests", home / "jobs" / "a_b_01", "a_b_01", {})
    assert (home / "mlflow.db-wal").exists()
    (home / "mlflow.db").rename(home / "mlflow.db.broken")
    assert run_id not in Tracking().running(home / "jobs")
