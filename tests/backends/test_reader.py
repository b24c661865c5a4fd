"""What the reader of MLflow's file returns, against MlflowClient."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from ml.backends.local.tracking import reader
from ml.backends.local.tracking.tracking import Tracking
from ml.core import home as places
from ml.core.home import tracking_uri

VALUES = {"a": 0.1, "b/c": -2.0, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
FINITE = 1.7976931348623157e308  # MlflowClient returns it for an infinity


@pytest.fixture
def client(home: Path) -> MlflowClient:
    """MLflow's own, on the store of the test."""
    return MlflowClient(tracking_uri(), tracking_uri())


def test_metrics_parameters_and_tags(client: MlflowClient) -> None:
    """Of one run, every value of each, and none of another run's."""
    experiment = client.create_experiment("theirs")
    run, other = (client.create_run(experiment).info.run_id for _ in range(2))
    for step in range(3):
        points = [Metric(key, value + step, step, step) for key, value in VALUES.items()]
        client.log_batch(run, points, [Param(f"p{step}", "x y")], [RunTag("team", "a")])
    client.log_metric(other, "a", 9.0)
    theirs = client.get_run(run)
    assert reader.parameters(run) == theirs.data.params
    assert reader.tag([run, other, "no run"], "team") == {run: "a"}
    latest = reader.latest(run)
    assert sorted(latest) == sorted(theirs.data.metrics) == sorted(VALUES)
    assert latest["a"] == theirs.data.metrics["a"]
    assert theirs.data.metrics["inf"] == FINITE
    assert (latest["inf"], latest["-inf"]) == (math.inf, -math.inf)
    assert math.isnan(latest["nan"])
    for metric in ("a", "b/c"):
        history = [(point.step, point.value) for point in client.get_metric_history(run, metric)]
        assert reader.curve(run, metric) == [value for _, value in history]
        assert reader.curves([run, "no run"], metric) == {run: tuple(history)}
        assert reader.all_curves(run)[metric] == tuple(history)
    assert set(reader.curves([run, other], "a")) == {run, other}
    assert set(reader.all_curves(run)) == set(VALUES)


def test_many_runs_in_one_call(client: MlflowClient) -> None:
    """More than SQLite allows as the variables of one statement."""
    run = client.create_run(client.create_experiment("theirs")).info.run_id
    client.log_metric(run, "a", 1.0)
    ids = [f"no run {number}" for number in range(2000)]
    assert reader.curves([*ids, run], "a") == {run: ((0, 1.0),)}


def test_runs_by_their_folder(client: MlflowClient) -> None:
    """Open ones, closed ones and deleted ones."""
    tracking, folder = Tracking(), Path("/somewhere/jobs/calm_river_01")
    first, second, deleted = (tracking.start("tests", folder, "x", {}) for _ in range(3))
    client.set_terminated(second)
    client.delete_run(deleted)
    key, value = "job.folder", str(folder)
    experiment = client.get_experiment_by_name("tests").experiment_id
    found = client.search_runs([experiment], f"tags.`{key}` = '{value}'")
    assert set(reader.tagged(key, value)) == {run.info.run_id for run in found} == {first, second}
    assert reader.running(key) == [(first, value)]
    assert reader.artifacts(first) == client.get_run(first).info.artifact_uri
    assert reader.artifacts("no run") is None


def test_registered_models(client: MlflowClient) -> None:
    """Versions with their tags, and aliases; a deleted version is not one."""
    assert (reader.models(), reader.model_versions(), reader.aliases()) == ([], [], [])
    client.create_registered_model("faq")
    run = client.create_run(client.create_experiment("theirs")).info.run_id
    for number in range(11):
        client.create_model_version("faq", f"/models/{number}", run, tags={"digest": str(number)})
    client.delete_model_version("faq", "3")
    client.set_registered_model_alias("faq", "prod", "11")
    versions = {version.version: version for version in reader.model_versions()}
    theirs = {str(version.version): version for version in client.search_model_versions()}
    assert list(versions) == sorted(theirs, key=int)
    for number, version in theirs.items():
        read = versions[number]
        assert (read.model, read.run, read.source) == (version.name, run, version.source)
        assert read.digest == version.tags["digest"]
    assert reader.models() == ["faq"]
    assert reader.aliases() == [("prod", "faq", "11")]
    assert places.database().is_file()
