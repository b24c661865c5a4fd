"""Runs written straight into MLflow's tables, against the same runs written by MlflowClient."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from ml.backends.local.tracking import tables
from ml.backends.local.tracking.tables import Tables, Unusual
from ml.backends.local.tracking.tracking import Tracking
from ml.backends.local.tracking.tracking import Tracking as Opened
from ml.core.home import database, tracking_uri
from tests.conftest import ROOT

FOLDER = Path("/somewhere/jobs/calm_river_01")
TAGS = {
    "environment": "azureml:ml-cpu:1",
    "data.x": "",
    "ünïcode": "wörds",
    "mlflow.note": "n" * 99,
}
VALUES: dict[str, float] = {
    "a": 0.1,
    "b/c": -2,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


@pytest.fixture
def both(home: Path) -> Iterator[tuple[Opened, Opened]]:
    """One that writes into the tables, one that goes by MlflowClient."""
    direct, by_client = Tracking(), Tracking(by_client=True)
    assert (direct.is_direct, by_client.is_direct) == (True, False)
    yield direct, by_client
    direct.close()


def write(tracking: Tracking, experiment: str, tags: Mapping[str, str]) -> str:
    """A run with everything that the executor ever writes."""
    run_id = tracking.start(experiment, FOLDER, "calm_river_01", tags)
    tracking.tag(run_id, {"ended_by": "median_stopping", "environment": "another"})
    tracking.metrics(run_id, VALUES)
    tracking.end(run_id, "Completed", {"lr": 0.5, "name": "x y", "flag": True, "long": "v" * 5999})
    return run_id


def shown(run: Run) -> str:
    """All that MLflow says of the run, without what differs between any two runs.

    As text: NaN is not equal to itself.
    """
    said: dict[str, Any] = run.to_dictionary()
    run_id, info = said["info"]["run_id"], said["info"]
    assert 0 <= info["end_time"] - info["start_time"] < 60_000
    for key in ("run_id", "start_time", "end_time"):
        del info[key]
    info["artifact_uri"] = info["artifact_uri"].replace(run_id, "ID")
    return repr(said)


def rows(run_id: str) -> dict[str, list[tuple[object, ...]]]:
    """What the tables hold of the run, times apart."""
    asked = {
        "runs": "name, source_type, source_name, entry_point_name, user_id, status, source_version,"
        " lifecycle_stage, experiment_id, deleted_time",
        "metrics": "key, value, step, is_nan, typeof(value), typeof(is_nan)",
        "latest_metrics": "key, value, step, is_nan",
        "tags": "key, value",
        "params": "key, value, typeof(value)",
    }
    with closing(sqlite3.connect(database())) as connection:
        return {
            table: sorted(
                connection.execute(f"SELECT {what} FROM {table} WHERE run_uuid = ?", (run_id,)),
                key=repr,
            )
            for table, what in asked.items()
        }


@pytest.mark.parametrize("first", ["direct", "by_client"])
def test_both_ways_write_the_same_run(both: tuple[Opened, Opened], first: str) -> None:
    """Field by field, as MlflowClient reads it and as it lies in the tables."""
    order = both if first == "direct" else both[::-1]  # the first makes the experiment
    ids = [write(tracking, "tests", TAGS) for tracking in order]
    client = MlflowClient(tracking_uri())
    one, other = (client.get_run(run_id) for run_id in ids)
    assert shown(one) == shown(other)
    assert rows(ids[0]) == rows(ids[1])
    assert len({client.get_run(run_id).info.run_id for run_id in ids}) == 2
    for key in VALUES:
        (a,), (b,) = (client.get_metric_history(run_id, key) for run_id in ids)
        assert repr((a.key, a.value, a.step)) == repr((b.key, b.value, b.step))
    assert [both[0].artifacts_of(i) for i in ids] == [both[1].artifacts_of(i) for i in ids]


def test_an_experiment_is_the_same_either_way(both: tuple[Opened, Opened]) -> None:
    """And one that exists is found, not made again."""
    for tracking, name in zip(both, ("one", "two"), strict=True):
        tracking.start(name, FOLDER, "x", {})
    client = MlflowClient(tracking_uri())
    one, two = (dict(client.get_experiment_by_name(name)) for name in ("one", "two"))
    assert one.pop("artifact_location").endswith("/artifacts/one")
    assert two.pop("artifact_location").endswith("/artifacts/two")
    for key in ("experiment_id", "name", "creation_time", "last_update_time"):
        one.pop(key), two.pop(key)
    assert one == two
    for tracking in both:
        tracking.start("one", FOLDER, "y", {})
        tracking.start("two", FOLDER, "y", {})
    assert len(client.search_runs([client.get_experiment_by_name("one").experiment_id])) == 3


def test_what_a_script_logged_itself_stays(both: tuple[Opened, Opened]) -> None:
    """Its parameters win over ours; MLflow lets the script write before and after."""
    client = MlflowClient(tracking_uri())
    ids = []
    for tracking in both:
        ids.append(tracking.start("tests", FOLDER, "x", {}))
        client.log_param(ids[-1], "lr", "31.0")
        client.log_metric(ids[-1], "loss", 1.0, step=3)
        client.set_tag(ids[-1], "mine", "1")
        tracking.end(ids[-1], "Failed", {"lr": 31, "other": 1})
    one, other = (client.get_run(run_id) for run_id in ids)
    assert one.data.params == other.data.params == {"lr": "31.0", "other": "1"}
    assert shown(one) == shown(other)


def test_open_runs_are_found_either_way(both: tuple[Opened, Opened]) -> None:
    """Those of the folder, and not those that were closed."""
    ids = [tracking.start("tests", FOLDER / "trials" / "0", "x", {}) for tracking in both]
    closed = both[0].start("tests", FOLDER, "y", {})
    both[1].end(closed, "Canceled", {})
    for tracking in both:
        assert set(tracking.running(FOLDER)) == set(ids)
        assert tracking.running(Path("/elsewhere")) == []


@pytest.mark.parametrize(
    ("experiment", "tags", "name"),
    [
        ("with/slash", {}, "x"),
        ("with space", {}, "x"),
        ("tests", {"a/b": "c"}, "x"),
        ("tests", {"long": "v" * 7000}, "x"),
        ("tests", {"mlflow.runName": "x"}, "x"),
    ],
)
def test_what_is_unusual_goes_by_the_client(
    both: tuple[Opened, Opened], experiment: str, tags: dict[str, str], name: str
) -> None:
    """It ends as if there were no other way."""
    ids = [tracking.start(experiment, FOLDER, name, tags) for tracking in both]
    client = MlflowClient(tracking_uri())
    for run_id in ids:
        client.set_terminated(run_id)
    assert shown(client.get_run(ids[0])) == shown(client.get_run(ids[1]))


def test_what_mlflow_refuses_is_refused(both: tuple[Opened, Opened]) -> None:
    """A tag's name with a forbidden character; an experiment that was deleted."""
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri())
    run_id = both[0].start("gone", FOLDER, "x", {})
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    for tracking in (*both, Tracking()):
        with pytest.raises(MlflowException, match="Invalid value"):
            tracking.tag(run_id, {"what?": "1"})
        with pytest.raises(MlflowException, match="must be in the 'active' state"):
            tracking.start("gone", FOLDER, "x", {})
    assert both[0].running(FOLDER) == both[1].running(FOLDER)


def test_a_store_of_another_schema_is_left_to_the_client(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pinned MLflow makes the schema that is known here; any other is not touched."""
    with closing(Tables(database(), 1.0)):
        pass
    monkeypatch.setattr(tables, "SCHEMA", "another")
    with pytest.raises(Unusual):
        Tables(database(), 1.0)
    tracking = Tracking()
    assert not tracking.is_direct
    run_id = write(tracking, "tests", TAGS)
    assert MlflowClient(tracking_uri()).get_run(run_id).info.status == "FINISHED"


def test_writers_wait_for_each_other(home: Path) -> None:
    """Four executors that write 50 runs each at the same moment: every run is there."""
    code = (
        "from pathlib import Path; from ml.backends.local.tracking.tracking import Tracking\n"
        "t = Tracking(); assert t.is_direct\n"
        "for i in range(50): t.end(t.start('new', Path('/'), str(i), {'i': str(i)}), 'Completed',"
        " {'i': i})\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    client = MlflowClient(tracking_uri())
    found = client.search_runs([client.get_experiment_by_name("new").experiment_id])
    assert sorted(int(run.data.params["i"]) for run in found) == sorted([*range(50)] * 4)
    assert {run.info.status for run in found} == {"FINISHED"}


def test_writing_does_not_import_mlflow(home: Path) -> None:
    """Its import costs a second, which no run needs to pay."""
    code = (
        "import sys; from pathlib import Path\n"
        "from ml.backends.local.tracking.tracking import Tracking\n"
        "t = Tracking(); t.end(t.start('e', Path('/'), 'n', {}), 'Completed', {})\n"
        "sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
