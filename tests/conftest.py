"""What every test gets: a home of its own, so that no test sees another's runs or a person's."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`.local/` of this test alone, and no tracking variables inherited from outside."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MLOPS_HOME", str(home))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return home
