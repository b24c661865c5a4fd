"""A home with an MLflow store that is ready: making one takes seconds."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.release.conftest import copied, declared, promoted, trained

__all__ = ["copied", "declared", "promoted", "trained"]


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store without runs."""
    from ml.backends.local.tracking.tracking import Tracking

    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLOPS_HOME", str(folder))
        Tracking()
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "mlflow.db"


@pytest.fixture
def home(own_home: Path, fresh_store: Path) -> Path:
    """This test's home, its store ready."""
    shutil.copy(fresh_store, own_home / "mlflow.db")
    return own_home
