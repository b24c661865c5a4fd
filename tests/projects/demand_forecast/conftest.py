"""Few series, and a model of them that was trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.projects.demand_forecast import sales
from ml.projects.demand_forecast.train import SCHEMA
from ml.toolkit.data.series import Panel, read_panel
from ml.toolkit.training import forecasting


@pytest.fixture(scope="session", name="data")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the table of 24 series."""
    folder = tmp_path_factory.mktemp("sales")
    sales.main(["--out", str(folder), "--stores", "2", "--items", "12", "--days", "140"])
    return folder / sales.PROJECT


@pytest.fixture(scope="session", name="panel")
def _panel(data: Path) -> Panel:
    """The series of that table."""
    return read_panel(data, SCHEMA)


@pytest.fixture(scope="session", name="model")
def _model(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/tracking.db")
        patch.setenv("OMP_NUM_THREADS", "1")  # more wait for each other on a busy machine
        arguments = ["--data", str(data), "--model", str(folder / "model"), "--trees", "40"]
        forecasting.train(SCHEMA, arguments)
    return folder / "model"
