"""Fixtures: a small table of series, and models that are trained once per session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ml.automl.forecasting import trial
from ml.projects.demand_forecast import sales, split
from ml.projects.demand_forecast.train import SCHEMA
from ml.toolkit.data.series import Panel, read_panel
from ml.toolkit.training import forecasting


@pytest.fixture(scope="session", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a table with 24 series."""
    folder = tmp_path_factory.mktemp("sales")
    sales.main(["--out", str(folder), "--stores", "2", "--items", "12", "--days", "140"])
    return folder / sales.PROJECT


@pytest.fixture(scope="session", name="panel")
def _panel(data: Path) -> Panel:
    """Return the panel of that table."""
    return read_panel(data, SCHEMA)


@pytest.fixture(scope="session", name="model")
def _model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model trained on that table."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/tracking.db")
        patch.setenv("OMP_NUM_THREADS", "1")  # more threads would slow down on a busy machine
        arguments = ["--data", str(data), "--model", str(folder / "model"), "--trees", "40"]
        forecasting.train(SCHEMA, arguments)
    return folder / "model"


@pytest.fixture(scope="session", name="searched")
def _searched(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model folder of the ensemble of two trials of jobs/search.yml."""
    folder = tmp_path_factory.mktemp("searched")
    split.main(["--data", str(data), "--train", str(folder / "table")])
    spec = yaml.safe_load((SCHEMA.parents[1] / "jobs/search.yml").read_text())["jobs"]["search"]
    job = {
        **{"task": "forecasting", "target": "sales", "seed": 0, "metric": spec["primary_metric"]},
        **{"n_cross_validations": spec["n_cross_validations"], "forecasting": spec["forecasting"]},
    }
    trees = {"relative": True, "n_estimators": 60, "min_data_in_leaf": 20}
    for number, sampled in enumerate(
        [
            {"family": "seasonal_naive"},
            {"family": "light_gbm", **trees},
            {"family": "voting_ensemble", "members": [0, 1]},
        ]
    ):
        place = folder / "trials" / str(number)
        words = [f"--{name}={place / name}" for name in ("model", "predictions")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["trial", f"--training-data={folder / 'table'}", *words])
            patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/tracking.db")
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("AUTOML_JOB", json.dumps(job))
            patch.setenv("AZUREML_SWEEP_model", json.dumps(sampled))
            trial.main()
    return folder / "trials/2/model"
