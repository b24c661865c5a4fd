"""The folder with the results of all runs on this machine; git ignores it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

PRIVATE = 0o700


def home() -> Path:
    """Return `.local/` of the repository, or the folder in MLOPS_HOME, as an absolute path.

    Only its owner can read it: it holds callers' requests and the tokens of routers.
    """
    # Cached by these texts: every trial calls this ten times.
    return _of(os.environ.get("MLOPS_HOME", ""), os.environ.get("HOME", ""), os.getcwd())  # noqa: PTH109


@cache
def _of(moved: str, user: str, working_folder: str) -> Path:
    from ml.core.repository import root

    path = Path(moved).expanduser().absolute() if moved else root() / ".local"
    with suppress(OSError):  # a command that only reads needs no folder
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if not moved:  # one that an earlier version made
            path.chmod(PRIVATE)
    return path


@cache
def user() -> str:
    """Return the name of the user for records; `unknown` in a container without one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def database() -> Path:
    """MLflow's SQLite file: experiments, runs, metrics and the model registry."""
    return _database(home())


@cache
def _database(home: Path) -> Path:
    return home / "mlflow.db"


def tracking_uri() -> str:
    """Return the value of MLFLOW_TRACKING_URI in local runs."""
    return f"sqlite:///{database()}"


def artifacts() -> Path:
    """MLflow's artifacts, one folder for each experiment."""
    return home() / "artifacts"


def jobs() -> Path:
    """One folder for each run: `<name>/{job.json, logs/std_log.txt, outputs/<name>, snapshot}`."""
    return home() / "jobs"


def snapshots() -> Path:
    """One read-only copy of `code:` for each content hash."""
    return home() / "snapshots"


def servings() -> Path:
    """One folder for each serving code with its settings that was proposed, named by its digest."""
    return home() / "servings"


def reusable() -> Path:
    """One file for each completed step, named by a hash of all that it depends on."""
    return home() / "reusable"


def environments() -> Path:
    """One folder for each environment built from a conda file, named by its recipe."""
    return home() / "environments"


def assets() -> Path:
    """Assets that runs registered: `<data or model>/<name>/<version>/{asset.yml, content}`."""
    return home() / "assets"


def live() -> Path:
    """One lock file for each active run; its executor holds the lock until it ends."""
    return home() / "live"


def models() -> Path:
    """One folder for each registered model, named by its digest."""
    return home() / "models"


def evidence() -> Path:
    """Return the evidence of registered versions: `<model>/<version>/<sha256>`."""
    return home() / "evidence"
