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
    # Cached per value of these: every trial calls this ten times.
    return _of(os.environ.get("MLOPS_HOME", ""), os.environ.get("HOME", ""), os.getcwd())  # noqa: PTH109


@cache
def _of(moved: str, user: str, working_folder: str) -> Path:
    from ml.core.repository import root

    path = Path(moved).expanduser().absolute() if moved else root() / ".local"
    with suppress(OSError):  # a command that only reads needs no folder
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        if not moved:  # an earlier version of this template made it readable for others
            path.chmod(PRIVATE)
    return path


@cache
def user() -> str:
    """Return the operating system's user name; `unknown` in a container without one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def database() -> Path:
    """Return the path of MLflow's SQLite file: experiments, runs, metrics, model registry."""
    return _database(home())


@cache
def _database(home: Path) -> Path:
    return home / "mlflow.db"


def tracking_uri() -> str:
    """Return the value of MLFLOW_TRACKING_URI in local runs."""
    return f"sqlite:///{database()}"


def artifacts() -> Path:
    """Return the folder of MLflow's artifacts, with a folder for each experiment."""
    return home() / "artifacts"


def jobs() -> Path:
    """Return the folder of runs: `<name>/{job.json,logs/std_log.txt,outputs/<name>,snapshot}`."""
    return home() / "jobs"


def snapshots() -> Path:
    """Return the folder with a read-only copy of `code:` for each content hash."""
    return home() / "snapshots"


def deployment_specs() -> Path:
    """Return the folder of proposed deployment specs: `<deployment digest>/`."""
    return home() / "servings"


def step_cache() -> Path:
    """Return the cache of pipeline steps: a file per completed step, named by its inputs' hash."""
    return home() / "reusable"


def environments() -> Path:
    """Return the folder of environments built from conda files, each named by its recipe's hash."""
    return home() / "environments"


def assets() -> Path:
    """Return the folder of assets that runs registered: `<data or model>/<name>/<version>/`."""
    return home() / "assets"


def run_locks() -> Path:
    """Return the folder with a lock file for each active run; its executor holds the lock."""
    return home() / "live"


def models() -> Path:
    """Return the folder of registered models: `<digest>/`."""
    return home() / "models"


def evidence() -> Path:
    """Return the folder with the evidence of versions: `<model>/<version>/<sha256>/`."""
    return home() / "evidence"
