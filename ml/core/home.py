"""The folder of everything that runs leave on this machine; git ignores it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def home() -> Path:
    """`.local/` of the repository, or the folder that MLOPS_HOME names; absolute, made on use."""
    # Texts, quick to look up: a trial asks ten times.
    return _of(os.environ.get("MLOPS_HOME", ""), os.environ.get("HOME", ""), os.getcwd())  # noqa: PTH109


@cache
def _of(moved: str, user: str, working_folder: str) -> Path:
    from ml.core.repository import root

    return Path(moved).expanduser().absolute() if moved else root() / ".local"


def database() -> Path:
    """MLflow's SQLite file: experiments, runs, metrics and the model registry."""
    return _database(home())


@cache
def _database(home: Path) -> Path:
    return home / "mlflow.db"


def tracking_uri() -> str:
    """What MLFLOW_TRACKING_URI is set to for every local run."""
    return f"sqlite:///{database()}"


def artifacts() -> Path:
    """MLflow's artifacts, one folder an experiment."""
    return home() / "artifacts"


def jobs() -> Path:
    """One folder a run: `<name>/{job.json, logs/std_log.txt, outputs/<name>, snapshot}`."""
    return home() / "jobs"


def snapshots() -> Path:
    """One read-only copy of `code:` a content hash."""
    return home() / "snapshots"


def reusable() -> Path:
    """One file a completed step, named by everything that it depended on."""
    return home() / "reusable"


def environments() -> Path:
    """One folder an environment that was built from a conda file, named by its recipe."""
    return home() / "environments"


def assets() -> Path:
    """What runs registered: `<data or model>/<name>/<version>/{asset.yml, content}`."""
    return home() / "assets"


def live() -> Path:
    """One lock file a run that is going on; its lock is held for as long as the executor lives."""
    return home() / "live"


def models() -> Path:
    """One folder a registered model, named by its digest."""
    return home() / "models"


def evidence() -> Path:
    """The evidence of registered versions: `<model>/<version>/<sha256>`."""
    return home() / "evidence"
