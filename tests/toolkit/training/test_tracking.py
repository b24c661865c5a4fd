"""Tracking, on a real MLflow store in SQLite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.toolkit.training.tracking import NotFinite, tracking
from tests.conftest import ROOT


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty store, in the environment as a backend sets it."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


def test_it_logs_to_the_run_that_the_environment_names(store: str, monkeypatch: pytest.MonkeyPatch):
    """Parameters and steps end in the backend's run; no second run is made."""
    client = MlflowClient(store)
    run = client.create_run("0")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    with tracking() as tracker:
        tracker.parameters({"leaves": 7, "objective": "binary"})
        for step in (10, 20):
            tracker.metrics({"gain": step / 100, "rank": 3}, step)
    logged = client.get_run(run.info.run_id)
    history = client.get_metric_history(run.info.run_id, "gain")
    assert logged.data.params == {"leaves": "7", "objective": "binary"}
    assert [(point.step, point.value) for point in history] == [(10, 0.1), (20, 0.2)]
    assert len(client.search_runs(["0"])) == 1 and logged.info.status == "FINISHED"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_fails_the_run(store: str, bad: float):
    """Nothing of it is stored (MLflow would keep infinity as a finite number)."""
    with pytest.raises(NotFinite, match="gain at step 3"), tracking() as tracker:
        tracker.metrics({"rank": 1, "gain": bad}, 3)
    (run,) = MlflowClient(store).search_runs(["0"])
    assert run.info.status == "FAILED" and run.data.metrics == {}


_UNCLOSED = """
from ml.toolkit.training.tracking import tracking
def step(): ...
with tracking():
    file = open("predictions.csv", "w")
    file.write("last")
"""


def test_a_file_that_a_script_leaves_open_is_whole(store: str, tmp_path: Path):
    """Its variables and functions refer to each other: only a collection finds the file."""
    (tmp_path / "train.py").write_text(_UNCLOSED)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=variables, check=True)
    assert (tmp_path / "predictions.csv").read_text() == "last"
