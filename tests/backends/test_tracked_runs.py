"""The runs that the executor writes, as MlflowClient reads them."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from ml.backends.local.tracking import reader
from ml.backends.local.tracking.tracking import Tracking
from ml.core.home import tracking_uri
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
    "b/c": -2.0,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


def read(run_id: str) -> Run:
    """The run as MLflow's client reads it."""
    return MlflowClient(tracking_uri()).get_run(run_id)


def test_a_run_from_its_start_to_its_end(home: Path) -> None:
    """Status, times, tags, metrics and parameters."""
    with closing(Tracking()) as tracking:
        run_id = tracking.start("tests", FOLDER, "calm_river_01", TAGS)
        started = read(run_id)
        tracking.tag(run_id, {"ended_by": "median_stopping", "environment": "another"})
        tracking.metrics(run_id, VALUES)
        parameters = {"lr": 0.5, "name": "x y", "flag": True, "long": "v" * 5999}
        tracking.end(run_id, "Completed", parameters)
    assert (started.info.status, started.info.end_time) == ("RUNNING", None)
    run = read(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "calm_river_01")
    assert 0 <= run.info.end_time - run.info.start_time < 60_000
    assert run.data.tags == {
        **TAGS,
        "environment": "another",
        "ended_by": "median_stopping",
        "job.folder": str(FOLDER),
        "mlflow.source.type": "JOB",
        "mlflow.user": run.info.user_id,
        "mlflow.runName": "calm_river_01",
    }
    assert run.data.params == {"lr": "0.5", "name": "x y", "flag": "True", "long": "v" * 5999}
    assert repr(reader.latest(run_id)) == repr(dict(sorted(VALUES.items())))
    assert sorted(run.data.metrics) == sorted(VALUES)


def test_an_experiment_is_made_once(home: Path) -> None:
    """Its artifacts are in the home, also when another process made it meanwhile."""
    first, second = Tracking(), Tracking()
    ids = [tracking.start("with space", FOLDER, "x", {}) for tracking in (first, second)]
    ids.append(first.start("with space", FOLDER, "y", {}))
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("with space")
    assert experiment.artifact_location == str(home / "artifacts" / "with space")
    assert {run.info.run_id for run in client.search_runs([experiment.experiment_id])} == set(ids)


def test_what_a_script_logged_itself_stays(home: Path) -> None:
    """Its parameters win over ours; MLflow lets the script write before and after."""
    client, tracking = MlflowClient(tracking_uri()), Tracking()
    run_id = tracking.start("tests", FOLDER, "x", {})
    client.log_param(run_id, "lr", "31.0")
    client.log_metric(run_id, "loss", 1.0, step=3)
    client.set_tag(run_id, "mine", "1")
    tracking.end(run_id, "Failed", {"lr": 31, "other": 1})
    run = read(run_id)
    assert run.data.params == {"lr": "31.0", "other": "1"}
    assert (run.data.metrics, run.data.tags["mine"]) == ({"loss": 1.0}, "1")
    assert run.info.status == "FAILED"


def test_open_runs_of_a_folder(home: Path) -> None:
    """Those of its trials too, and not those that were closed."""
    tracking = Tracking()
    run_id = tracking.start("tests", FOLDER / "trials" / "0", "x", {})
    closed = tracking.start("tests", FOLDER, "y", {})
    tracking.end(closed, "Canceled", {})
    assert tracking.running(FOLDER) == [run_id]
    assert tracking.running(Path("/elsewhere")) == []
    assert tracking.runs_in(FOLDER) == [closed]


def test_a_run_is_reopened_and_set_aside(home: Path) -> None:
    """RUNNING again under its name; KILLED under another one, in another folder."""
    tracking = Tracking()
    run_id = tracking.start("tests", FOLDER, "x", {})
    tracking.end(run_id, "Canceled", {})
    tracking.reopen(run_id, {"resumed": "1"})
    assert (read(run_id).info.status, read(run_id).data.tags["resumed"]) == ("RUNNING", "1")
    tracking.set_aside(run_id, "x, attempt 1", FOLDER / "attempts" / "0.1")
    run = read(run_id)
    assert (run.info.status, run.info.run_name) == ("KILLED", "x, attempt 1")
    assert run.data.tags["mlflow.runName"] == "x, attempt 1"
    assert (tracking.runs_in(FOLDER), len(tracking.runs_in(FOLDER / "attempts" / "0.1"))) == ([], 1)


def test_long_texts_are_kept_as_far_as_mlflow_keeps_them(home: Path) -> None:
    """A tag of 7,000 characters, a name with a slash."""
    tracking = Tracking()
    run_id = tracking.start("with/slash", FOLDER, "x", {"a/b": "c", "long": "v" * 7000})
    assert read(run_id).data.tags["a/b"] == "c"
    assert read(run_id).data.tags["long"].startswith("v" * 5000)


def test_what_mlflow_refuses_is_refused(home: Path) -> None:
    """A tag's name with a forbidden character; an experiment that was deleted."""
    from mlflow.exceptions import MlflowException

    client, tracking = MlflowClient(tracking_uri()), Tracking()
    run_id = tracking.start("gone", FOLDER, "x", {})
    client.delete_experiment(client.get_experiment_by_name("gone").experiment_id)
    for each in (tracking, Tracking()):
        with pytest.raises(MlflowException, match="Invalid value"):
            each.tag(run_id, {"what?": "1"})
        with pytest.raises(MlflowException, match="must be in the 'active' state"):
            each.start("gone", FOLDER, "x", {})
    assert tracking.running(FOLDER) == []


def test_a_store_that_was_replaced_is_the_one_that_is_written_to(
    home: Path, fresh_store: Path
) -> None:
    """MLflow keeps connections to the file that was there before."""
    before = Tracking()
    before.start("tests", FOLDER, "x", {})
    (home / "mlflow.db").rename(home / "mlflow.db.aside")
    for suffix in ("-wal", "-shm"):
        (home / f"mlflow.db{suffix}").unlink(missing_ok=True)
    (home / "mlflow.db").write_bytes(fresh_store.read_bytes())
    run_id = Tracking().start("tests", FOLDER, "y", {})
    assert reader.tagged("job.folder", str(FOLDER)) == [run_id]


def test_writers_wait_for_each_other(home: Path) -> None:
    """Four executors that write 20 runs each at the same moment: every run is there."""
    code = (
        "from pathlib import Path; from ml.backends.local.tracking.tracking import Tracking\n"
        "t = Tracking()\n"
        "for i in range(20): t.end(t.start('new', Path('/'), str(i), {'i': str(i)}), 'Completed',"
        " {'i': i})\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    client = MlflowClient(tracking_uri())
    found = client.search_runs([client.get_experiment_by_name("new").experiment_id])
    assert sorted(int(run.data.params["i"]) for run in found) == sorted([*range(20)] * 4)
    assert {run.info.status for run in found} == {"FINISHED"}


def test_reading_does_not_import_mlflow(home: Path) -> None:
    """Its import takes two seconds: it waits for the first write."""
    code = (
        "import sys; from pathlib import Path\n"
        "from ml.backends.local.tracking.tracking import Tracking\n"
        "t = Tracking(); t.running(Path('/')); t.close()\n"
        "sys.exit('mlflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
